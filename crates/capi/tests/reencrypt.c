/* Reencrypts volumes as a C program would: reencrypt IMAGE HEADER. The image holds a LUKS2 volume with the passphrases "secret",
 * "two" and "three", the header is a file that is not there. Leaves a volume with AES-CBC that "secret" and "two" open. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "underseal.h"

#define U(text) (const uint8_t *)(text), sizeof(text) - 1
#define GIVES(wanted, handle, call)                                                                                   \
        do {                                                                                                          \
                int code = (call);                                                                                    \
                if (code != -(wanted)) {                                                                              \
                        fprintf(stderr, "%d: %s: %d, not %d: %s\n", __LINE__, #call, code, -(wanted),                 \
                                underseal_error(handle));                                                             \
                        exit(1);                                                                                      \
                }                                                                                                     \
        } while (0)
#define OK(handle, call) GIVES(0, handle, call)

enum { MIB = 1 << 20, SIZE = 8 * MIB };

static struct underseal *named(const char *path)
{
        struct underseal *disk = underseal_new();
        OK(disk, underseal_set_path(disk, path));
        return disk;
}

static void set(struct underseal *disk, const char *name, const char *value)
{
        OK(disk, underseal_set_reencryption(disk, name, value));
}

/* The bytes that the volume has all the time. */
static uint8_t byte_at(size_t at)
{
        return (uint8_t)(at * 31 ^ at >> 9);
}

static void holds(struct underseal *disk, size_t len)
{
        static uint8_t buffer[SIZE];
        size_t done;
        OK(disk, underseal_pread(disk, buffer, len, 0, &done));
        assert(done == len);
        for (size_t i = 0; i < len; i++)
                assert(buffer[i] == byte_at(i));
}

struct watch {
        struct underseal *disk;
        uint64_t stop, done, total;
        int calls;
};

/* Stops at so many bytes; the handle takes no other call meanwhile. */
static int watch(void *argument, uint64_t done, uint64_t total)
{
        struct watch *watch = argument;
        assert(done >= watch->done && done <= total);
        watch->done = done;
        watch->total = total;
        watch->calls++;
        GIVES(EBUSY, watch->disk, underseal_set_reencryption(watch->disk, "mode", "decrypt"));
        GIVES(EBUSY, watch->disk, underseal_keep_passphrase(watch->disk, U("two")));
        GIVES(EBUSY, watch->disk, underseal_unlock_passphrase(watch->disk, U("secret")));
        GIVES(EBUSY, watch->disk, underseal_reencrypt(watch->disk, U("secret"), NULL, NULL, NULL));
        return done >= watch->stop ? 7 : 0;
}

static void refused(const char *path)
{
        int finished = 42;
        struct underseal *disk = underseal_new();
        GIVES(EINVAL, disk, underseal_reencrypt(NULL, U("secret"), NULL, NULL, NULL));
        GIVES(EINVAL, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, NULL));
        OK(disk, underseal_set_path(disk, "/nonexistent/image"));
        GIVES(ENOENT, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, NULL));
        OK(disk, underseal_set_path(disk, path));
        GIVES(EINVAL, disk, underseal_set_reencryption(disk, "no option", "1"));
        GIVES(EINVAL, disk, underseal_set_reencryption(disk, NULL, "1"));
        GIVES(EINVAL, disk, underseal_set_reencryption(disk, "mode", NULL));
        GIVES(EINVAL, disk, underseal_set_reencryption(disk, "argon2id", "4,1024"));
        GIVES(EINVAL, disk, underseal_keep_passphrase(disk, NULL, 3));
        set(disk, "mode", "resume");
        /* A value that is none leaves the others as they are. */
        GIVES(EINVAL, disk, underseal_set_reencryption(disk, "mode", "undo"));
        GIVES(EINVAL, disk, underseal_set_reencryption(disk, "key-size", "many"));
        GIVES(EINVAL, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished));
        assert(strstr(underseal_error(disk), "no reencryption is under way"));
        set(disk, "mode", "reencrypt");
        OK(disk, underseal_keep_passphrase(disk, U("two")));
        OK(disk, underseal_keep_passphrase(disk, U("three")));
        GIVES(EPERM, disk, underseal_reencrypt(disk, U("wrong"), NULL, NULL, &finished));
        GIVES(EINVAL, disk, underseal_reencrypt(disk, NULL, 5, NULL, NULL, &finished));
        set(disk, "cipher", "aes-xts-nothing");
        GIVES(EOPNOTSUPP, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished));
        /* Options that say how a volume is unlocked would be passed over. */
        OK(disk, underseal_set_option(disk, "partition", "1"));
        GIVES(EINVAL, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished));
        underseal_free(disk);
        /* A volume that is open, by this handle and by another one. */
        disk = named(path);
        OK(disk, underseal_unlock_passphrase(disk, U("secret")));
        GIVES(EINVAL, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished));
        struct underseal *other = named(path);
        GIVES(EBUSY, other, underseal_reencrypt(other, U("secret"), NULL, NULL, &finished));
        underseal_free(other);
        underseal_free(disk);
        assert(finished == 42);
}

static void stopped_and_resumed(const char *path)
{
        int finished = 42;
        struct underseal *disk = named(path);
        struct watch state = {.disk = disk, .stop = 2 * MIB};
        set(disk, "cipher", "aes-cbc-essiv:sha256");
        set(disk, "key-size", "32");
        set(disk, "hotzone-size", "1048576");
        OK(disk, underseal_keep_passphrase(disk, U("two")));
        OK(disk, underseal_keep_passphrase(disk, U("three")));
        OK(disk, underseal_reencrypt(disk, U("secret"), watch, &state, &finished));
        assert(finished == 0 && state.done == 2 * MIB && state.total == SIZE && state.calls == 3);
        underseal_free(disk);

        disk = named(path);
        OK(disk, underseal_set_flags(disk, UNDERSEAL_WRITABLE));
        GIVES(EOPNOTSUPP, disk, underseal_unlock_passphrase(disk, U("secret")));
        OK(disk, underseal_set_flags(disk, 0));
        OK(disk, underseal_unlock_passphrase(disk, U("secret")));
        holds(disk, SIZE);
        underseal_free(disk);

        disk = named(path);
        state = (struct watch){.disk = disk, .stop = UINT64_MAX};
        set(disk, "mode", "resume");
        OK(disk, underseal_reencrypt(disk, U("secret"), watch, &state, &finished));
        assert(finished == 1 && state.done == SIZE && state.calls >= 2);
        /* The handle opens the volume afterwards. */
        OK(disk, underseal_unlock_passphrase(disk, U("secret")));
        holds(disk, SIZE);
        underseal_free(disk);
}

static void keyslots(const char *path)
{
        int finished = 42;
        struct underseal *disk = named(path);
        OK(disk, underseal_keep_passphrase(disk, U("two")));
        GIVES(EINVAL, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished));
        assert(strstr(underseal_error(disk), "were not given"));
        underseal_free(disk);
        /* On a descriptor; the options of the failed call stay. */
        int fd = open(path, O_RDWR | O_CLOEXEC);
        disk = underseal_new();
        OK(disk, underseal_set_fd(disk, fd));
        OK(disk, underseal_keep_passphrase(disk, U("two")));
        GIVES(EINVAL, disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished));
        set(disk, "lose-keyslots", "1");
        OK(disk, underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished));
        assert(finished == 1);
        OK(disk, underseal_unlock_passphrase(disk, U("two")));
        holds(disk, SIZE);
        underseal_free(disk);
        close(fd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        disk = underseal_new();
        OK(disk, underseal_set_fd(disk, fd));
        int code = underseal_reencrypt(disk, U("secret"), NULL, NULL, NULL);
        assert(code < 0 && *underseal_error(disk));
        underseal_free(disk);
        close(fd);
}

/* A device in memory, of which so many writes succeed. */
struct memory {
        uint8_t bytes[MIB];
        int writes;
};

static int memory_pread(void *argument, uint8_t *buffer, size_t len, uint64_t offset)
{
        memcpy(buffer, ((struct memory *)argument)->bytes + offset, len);
        return 0;
}

static int memory_pwrite(void *argument, const uint8_t *buffer, size_t len, uint64_t offset)
{
        struct memory *memory = argument;
        if (__atomic_fetch_sub(&memory->writes, 1, __ATOMIC_SEQ_CST) <= 0)
                return -ENOSPC;
        assert(offset <= sizeof memory->bytes && len <= sizeof memory->bytes - offset);
        memcpy(memory->bytes + offset, buffer, len);
        return 0;
}

static int memory_flush(void *argument)
{
        (void)argument;
        return 0;
}

/* Encrypts and decrypts a device in memory, each ended by a device that is full after so many writes, and resumed. */
static void on_memory(const char *header)
{
        static struct memory memory;
        const struct underseal_callbacks callbacks = {
                .argument = &memory, .size = MIB, .pread = memory_pread, .pwrite = memory_pwrite, .flush = memory_flush};
        for (size_t i = 0; i < MIB; i++)
                memory.bytes[i] = byte_at(i);
        for (int decrypt = 0; decrypt < 2; decrypt++) {
                int finished = 0, failures = 0;
                struct underseal *disk = underseal_new();
                OK(disk, underseal_set_callbacks(disk, &callbacks));
                OK(disk, underseal_set_header(disk, header));
                set(disk, "mode", decrypt ? "decrypt" : "encrypt");
                set(disk, "hotzone-size", "131072");
                set(disk, "pbkdf2", "1000");
                while (!finished) {
                        memory.writes = 2;
                        int code = underseal_reencrypt(disk, U("secret"), NULL, NULL, &finished);
                        assert(code == (finished ? 0 : -ENOSPC));
                        failures += !finished;
                        assert(failures < 20);
                        /* All bytes are in their old or their new form. */
                        struct underseal *half = underseal_new();
                        OK(half, underseal_set_callbacks(half, &callbacks));
                        OK(half, underseal_set_header(half, header));
                        if (!decrypt || !finished) {
                                OK(half, underseal_unlock_passphrase(half, U("secret")));
                                holds(half, MIB);
                        }
                        underseal_free(half);
                }
                assert(failures > 1);
                size_t same = 0;
                for (size_t i = 0; i < MIB; i++)
                        same += memory.bytes[i] == byte_at(i);
                assert(decrypt ? same == MIB : same < MIB / 100);
                underseal_free(disk);
        }
}

int main(int count, char **arguments)
{
        assert(count == 3);
        static uint8_t bytes[SIZE];
        for (size_t i = 0; i < SIZE; i++)
                bytes[i] = byte_at(i);
        struct underseal *disk = named(arguments[1]);
        OK(disk, underseal_set_flags(disk, UNDERSEAL_WRITABLE));
        OK(disk, underseal_unlock_passphrase(disk, U("secret")));
        OK(disk, underseal_pwrite(disk, bytes, SIZE, 0));
        OK(disk, underseal_flush(disk));
        underseal_free(disk);
        refused(arguments[1]);
        stopped_and_resumed(arguments[1]);
        keyslots(arguments[1]);
        on_memory(arguments[2]);
        puts("ok");
        return 0;
}
