/* Children of a fork while threads of the parent use the handle: fork IMAGE. The image holds a LUKS2 volume with the passphrase
 * "secret". A child that waits for ever is ended by a signal. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "underseal.h"

#define U(text) (const uint8_t *)(text), sizeof(text) - 1

static struct underseal *disk;
static atomic_int over, inside;
/* How often the threads have called, and whether they rest: a child, once it is there, has nothing of theirs but the processors. */
static atomic_uint calls[3], resting;
static int fd;

static int goes_on(atomic_uint *calls)
{
        while (resting)
                usleep(100);
        ++*calls;
        return !over;
}

/* Calls that fail. */
static void *fails(void *calls)
{
        uint8_t byte = 0;
        while (goes_on(calls))
                assert(underseal_pwrite(disk, &byte, 1, 1ull << 60) == -ENXIO);
        return NULL;
}

/* One thread at a time asks for the text. */
static void *asks(void *calls)
{
        size_t sum = 0;
        while (goes_on(calls))
                sum += strlen(underseal_error(disk));
        assert(sum);
        return NULL;
}

static int slow_pread(void *argument, uint8_t *buffer, size_t len, uint64_t offset)
{
        (void)argument;
        inside = 1;
        while (!over)
                usleep(1000);
        return pread(fd, buffer, len, (off_t)offset) == (ssize_t)len ? 0 : -EIO;
}

static void *unlocks(void *unused)
{
        assert(!underseal_unlock_passphrase(disk, U("secret")));
        return unused;
}

/* The end of a child: 0, or the number of the first thing that was not as it should be. */
static int child(void)
{
        uint8_t bytes[512];
        size_t done;
        char *json;
        alarm(20);
        if (underseal_pread(disk, bytes, sizeof bytes, 0, &done) || done != sizeof bytes)
                return 1;
        if (underseal_pwrite(disk, bytes, 1, 0) != -EBUSY || !strstr(underseal_error(disk), "fork"))
                return 2;
        if (underseal_flush(disk) != -EBUSY || underseal_discard(disk, 0, 4096) >= 0)
                return 3;
        if (underseal_info_json(disk, &json))
                return 4;
        underseal_string_free(json);
        return 0;
}

/* A child of a program whose thread unlocks the volume. */
static int child_of_unlocking(void)
{
        uint8_t byte;
        size_t done;
        char *json;
        alarm(20);
        if (underseal_info_json(disk, &json) != -EBUSY || !strstr(underseal_error(disk), "fork"))
                return 11;
        if (underseal_set_keyslot(disk, 0) != -EBUSY || underseal_unlock_passphrase(disk, U("secret")) != -EBUSY)
                return 12;
        return underseal_pread(disk, &byte, 1, 0, &done) == -EINVAL ? 0 : 13;
}

static void forks(int (*run)(void))
{
        int status;
        pid_t pid = fork();
        assert(pid >= 0);
        if (pid == 0)
                _exit(run());
        resting = 1;
        assert(waitpid(pid, &status, 0) == pid);
        resting = 0;
        if (status) {
                fprintf(stderr, "a child: signal %d, status %d\n", WTERMSIG(status), WEXITSTATUS(status));
                exit(1);
        }
}

int main(int count, char **arguments)
{
        pthread_t threads[3];
        assert(count == 2);
        disk = underseal_new();
        assert(!underseal_set_path(disk, arguments[1]) && !underseal_set_flags(disk, UNDERSEAL_WRITABLE));
        assert(!underseal_unlock_passphrase(disk, U("secret")));
        for (int i = 0; i < 3; i++)
                assert(!pthread_create(&threads[i], NULL, i ? fails : asks, &calls[i]));
        for (int i = 0; i < 300; i++) {
                /* Each of them calls again. */
                for (int of = 0; of < 3; of++) {
                        unsigned before = calls[of];
                        while (calls[of] - before < 30)
                                sched_yield();
                }
                forks(child);
        }
        over = 1;
        for (int i = 0; i < 3; i++)
                pthread_join(threads[i], NULL);
        underseal_free(disk);

        over = 0;
        fd = open(arguments[1], O_RDONLY | O_CLOEXEC);
        struct stat about;
        assert(!fstat(fd, &about));
        const struct underseal_callbacks callbacks = {.size = (uint64_t)about.st_size, .pread = slow_pread};
        disk = underseal_new();
        assert(!underseal_set_callbacks(disk, &callbacks));
        assert(!pthread_create(&threads[0], NULL, unlocks, NULL));
        while (!inside)
                usleep(1000);
        forks(child_of_unlocking);
        over = 1;
        pthread_join(threads[0], NULL);
        underseal_free(disk);
        close(fd);
        puts("ok");
        return 0;
}
