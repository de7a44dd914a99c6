/* cut AT CALL... -- PROGRAM ARGUMENTS...: runs a program, and kills it as it enters any of these calls for the time with number AT,
 * whichever of its threads and processes does; the calls are counted together. AT 0 kills nothing; stderr's last line is their number then.
 *
 * strace does so too, but stops the program at each call of any kind, which takes ten times as long: its filter (--seccomp-bpf) is not for
 * signals. Here a filter in the program stops it at these calls alone. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if ((what) < 0) { perror(#what); _exit(99); } } while (0)

static const struct { const char *name; unsigned number; } CALLS[] = {
    {"fsync", SYS_fsync}, {"fdatasync", SYS_fdatasync}, {"pwrite64", SYS_pwrite64},
};

static struct sock_filter filter[16];
static struct sock_fprog program = {0, filter};

static void add(unsigned short code, unsigned k, unsigned char yes, unsigned char no) {
    filter[program.len++] = (struct sock_filter){code, yes, no, k};
}

int main(int argc, char **argv) {
    int at = argc > 1 ? atoi(argv[1]) : 0, word = 2, count = 0, status = 0, result = 0, pipes[2];
    add(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr), 0, 0);
    for (; word < argc && strcmp(argv[word], "--"); word++)
        for (unsigned i = 0; i < sizeof CALLS / sizeof *CALLS; i++)
            if (!strcmp(argv[word], CALLS[i].name)) {
                add(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i].number, 0, 1);
                add(BPF_RET | BPF_K, SECCOMP_RET_TRACE, 0, 0);
            }
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
    if (program.len != 2 * (word - 2) + 2 || word + 1 >= argc) {
        fprintf(stderr, "cut: AT CALL... -- PROGRAM ARGUMENTS...\n");
        return 99;
    }
    CHECK(pipe(pipes));
    pid_t child = fork();
    CHECK(child);
    if (!child) {
        char go;
        close(pipes[1]);
        CHECK(read(pipes[0], &go, 1));
        close(pipes[0]);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
        execvp(argv[word + 1], argv + word + 1);
        perror(argv[word + 1]);
        _exit(99);
    }
    CHECK(ptrace(PTRACE_SEIZE, child, 0,
        PTRACE_O_TRACESECCOMP | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_EXITKILL));
    close(pipes[0]);
    close(pipes[1]);
    for (pid_t pid; (pid = waitpid(-1, &status, __WALL)) > 0;) {
        if (!WIFSTOPPED(status)) {
            if (pid == child) result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int event = status >> 16;
        if (event == PTRACE_EVENT_SECCOMP && ++count == at) kill(pid, SIGKILL);
        /* A thread that was killed meanwhile is gone. */
        if (ptrace(PTRACE_CONT, pid, 0, event ? 0 : WSTOPSIG(status)) < 0 && errno != ESRCH) CHECK(-1);
    }
    if (!at) fprintf(stderr, "%d\n", count);
    return result;
}
