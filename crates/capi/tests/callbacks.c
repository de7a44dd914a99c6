/* Callbacks that use the handle whose callbacks they are: callbacks IMAGE. The image holds a LUKS2 volume with the passphrase
 * "secret". */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "underseal.h"

#define U(text) (const uint8_t *)(text), sizeof(text) - 1
#define OK(call)                                                                                           \
        do {                                                                                               \
                int code = (call);                                                                         \
                if (code) {                                                                                \
                        fprintf(stderr, "%d: %s: %d: %s\n", __LINE__, #call, code, underseal_error(disk)); \
                        exit(1);                                                                           \
                }                                                                                          \
        } while (0)

static struct underseal *disk;
static int fd;
/* The number of the call that callbacks make, or -1; and how many they made. */
static int wanted = -1, made;

static int use(int number)
{
        uint8_t bytes[16] = {0};
        uint64_t size;
        size_t done;
        uint32_t slot;
        char *json;
        switch (number) {
        case 0: return underseal_info_json(disk, &json);
        case 1: return underseal_set_keyslot(disk, 0);
        case 2: return underseal_set_path(disk, "/other");
        case 3: return underseal_set_reencryption(disk, "mode", "decrypt");
        case 4: return underseal_unlock_passphrase(disk, U("secret"));
        case 5: return underseal_size(disk, &size, NULL);
        case 6: return underseal_pread(disk, bytes, sizeof bytes, 0, &done);
        case 7: return underseal_pwrite(disk, bytes, sizeof bytes, 0);
        case 8: return underseal_flush(disk);
        case 9: return underseal_discard(disk, 0, 1 << 20);
        case 10: return underseal_keyslot_remove(disk, 0, 1);
        case 11: return underseal_keyslot_change(disk, U("secret"), U("new"), -1, &slot);
        case 12: return underseal_reencrypt(disk, U("secret"), NULL, NULL, NULL);
        default: return 1;
        }
}

static void call(void)
{
        if (wanted < 0)
                return;
        int code = use(wanted);
        if (code != -EDEADLK || !strstr(underseal_error(disk), "callback")) {
                fprintf(stderr, "call %d: %d, not %d: %s\n", wanted, code, -EDEADLK, underseal_error(disk));
                exit(1);
        }
        made++;
}

static int file_pread(void *argument, uint8_t *buffer, size_t len, uint64_t offset)
{
        (void)argument;
        call();
        return pread(fd, buffer, len, (off_t)offset) == (ssize_t)len ? 0 : -EIO;
}

static int file_pwrite(void *argument, const uint8_t *buffer, size_t len, uint64_t offset)
{
        (void)argument;
        call();
        return pwrite(fd, buffer, len, (off_t)offset) == (ssize_t)len ? 0 : -EIO;
}

static int file_flush(void *argument)
{
        (void)argument;
        call();
        return fdatasync(fd) ? -errno : 0;
}

/* The callbacks have been called; they are quiet from now on. */
static void called(void)
{
        wanted = -1;
        assert(made > 0);
        made = 0;
}

int main(int count, char **arguments)
{
        assert(count == 2);
        /* A call that waits for itself is ended by the signal. */
        alarm(60);
        fd = open(arguments[1], O_RDWR | O_CLOEXEC);
        struct stat about;
        assert(!fstat(fd, &about));
        const struct underseal_callbacks callbacks = {
                .size = (uint64_t)about.st_size, .pread = file_pread, .pwrite = file_pwrite, .flush = file_flush};
        for (int number = 0; use(number) != 1; number++) {
                uint8_t bytes[5000] = {1};
                size_t done;
                char *json;
                disk = underseal_new();
                OK(underseal_set_callbacks(disk, &callbacks));
                OK(underseal_set_flags(disk, UNDERSEAL_WRITABLE));
                wanted = number;
                OK(underseal_info_json(disk, &json));
                called();
                underseal_string_free(json);
                wanted = number;
                OK(underseal_unlock_passphrase(disk, U("secret")));
                called();
                wanted = number;
                OK(underseal_pread(disk, bytes, sizeof bytes, 100, &done));
                called();
                wanted = number;
                OK(underseal_pwrite(disk, bytes, sizeof bytes, 100));
                called();
                wanted = number;
                OK(underseal_flush(disk));
                called();
                /* The handle is as it was. */
                OK(underseal_pwrite(disk, bytes, sizeof bytes, 100));
                OK(underseal_flush(disk));
                underseal_free(disk);
                disk = NULL;
        }
        puts("ok");
        return 0;
}
