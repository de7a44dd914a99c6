// User Mode Linux is started with this library, because of processors with AMX. Before 6.14 it keeps 2,696 bytes of a
// process's registers; AMX has more, and the host sets registers only in their full size: the first process of the guest
// would die. The library adds zeros, the state of a process that does not use AMX.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

typedef long request_t(int, int, void *, void *);

static request_t *libc;

__attribute__((constructor)) static void find(void) { libc = (request_t *)dlsym(RTLD_NEXT, "ptrace"); }

// The registers in full size. User Mode Linux has one thread and small stacks.
static _Alignas(64) uint8_t full[1 << 16];
static size_t full_size;

// A word there has a bit for each set of registers that is in use. These are the ones in the first 2,696 bytes.
enum { IN_USE = 512, KEPT = 0x2ff };

static long set(int process, void *type, const struct iovec *kept)
{
    if (full_size == 0) {
        struct iovec asked = {full, sizeof full};
        if (libc(PTRACE_GETREGSET, process, type, &asked) != 0)
            return -1;
        full_size = asked.iov_len;
        memset(full, 0, sizeof full);
    }
    if (full_size <= kept->iov_len)
        return libc(PTRACE_SETREGSET, process, type, (void *)kept);
    memcpy(full, kept->iov_base, kept->iov_len);
    *(uint64_t *)(full + IN_USE) &= KEPT;
    struct iovec whole = {full, full_size};
    return libc(PTRACE_SETREGSET, process, type, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    int process = va_arg(arguments, int);
    void *address = va_arg(arguments, void *), *data = va_arg(arguments, void *);
    va_end(arguments);
    if (request == PTRACE_SETREGSET && (uintptr_t)address == NT_X86_XSTATE)
        return set(process, address, data);
    return libc(request, process, address, data);
}
