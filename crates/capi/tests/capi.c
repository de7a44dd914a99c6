/* Exercises libunderseal as a C program would: capi IMAGE FOLDER. The image holds a LUKS2 volume with the passphrase "secret", the
 * folder has volumes of other systems. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "underseal.h"

#define U(text) (const uint8_t *)(text), sizeof(text) - 1
#define OK(handle, call)                                                                                     \
        do {                                                                                                 \
                int code = (call);                                                                           \
                if (code) {                                                                                  \
                        fprintf(stderr, "%d: %s: %d: %s\n", __LINE__, #call, code, underseal_error(handle)); \
                        exit(1);                                                                             \
                }                                                                                            \
        } while (0)
#define FAILS(wanted, call)                                                                        \
        do {                                                                                       \
                int code = (call);                                                                 \
                if (code != -(wanted)) {                                                           \
                        fprintf(stderr, "%d: %s: %d, not %d\n", __LINE__, #call, code, -(wanted)); \
                        exit(1);                                                                   \
                }                                                                                  \
        } while (0)

static struct underseal *opened(const char *path, unsigned flags)
{
        struct underseal *disk = underseal_new();
        OK(disk, underseal_set_path(disk, path));
        OK(disk, underseal_set_flags(disk, flags));
        OK(disk, underseal_unlock_passphrase(disk, U("secret")));
        return disk;
}

static int file_pread(void *argument, uint8_t *buffer, size_t len, uint64_t offset)
{
        ssize_t done = pread(*(int *)argument, buffer, len, (off_t)offset);
        return done == (ssize_t)len ? 0 : -EIO;
}

static int broken_pread(void *argument, uint8_t *buffer, size_t len, uint64_t offset)
{
        (void)argument, (void)buffer, (void)len;
        return offset < 4096 ? -EREMOTEIO : 7;
}

static void *reader(void *disk)
{
        uint8_t buffer[5000];
        size_t done;
        for (int i = 0; i < 200; i++) {
                OK(disk, underseal_pread(disk, buffer, sizeof buffer, 1234, &done));
                assert(done == sizeof buffer);
        }
        return NULL;
}

/* A destructor of the thread's own data, which runs when those of the library are gone. */
static void at_thread_end(void *disk)
{
        uint8_t byte;
        size_t done;
        OK(disk, underseal_pread(disk, &byte, 1, 0, &done));
        OK(disk, underseal_pwrite(disk, &byte, 1, 0));
        OK(disk, underseal_flush(disk));
}

static void *last_words(void *disk)
{
        static pthread_key_t key;
        assert(!pthread_key_create(&key, at_thread_end));
        assert(!pthread_setspecific(key, disk));
        return reader(disk);
}

static struct underseal *foreign(const char *folder, const char *name)
{
        char path[4096];
        struct underseal *disk = underseal_new();
        assert(snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path);
        OK(disk, underseal_set_path(disk, path));
        OK(disk, underseal_set_flags(disk, UNDERSEAL_WRITABLE));
        return disk;
}

/* Volumes of other systems; the passphrases are those of the images' manifest. */
static void formats(const char *folder)
{
        uint8_t buffer[512], sum = 0;
        size_t done;
        char *json;

        /* A header tells of BitLocker, without the secret too. */
        struct underseal *disk = foreign(folder, "bl-8004-512.img");
        OK(disk, underseal_info_json(disk, &json));
        assert(strstr(json, "\"format\":\"bitlk\""));
        underseal_string_free(json);
        FAILS(EPERM, underseal_unlock_passphrase(disk, U("wrong")));
        OK(disk, underseal_unlock_passphrase(disk, U("u87FCvc2b3Hhupvr")));
        OK(disk, underseal_pread(disk, buffer, sizeof buffer, 0, &done));
        assert(done == sizeof buffer);
        OK(disk, underseal_pwrite(disk, U("x"), 100));
        FAILS(EROFS, underseal_pwrite(disk, U("x"), 655360));
        assert(strstr(underseal_error(disk), "by the volume's format"));
        underseal_free(disk);

        /* VeraCrypt's outer volume around a hidden one, and the hidden one. */
        for (int hidden = 0; hidden < 2; hidden++) {
                disk = foreign(folder, "vc-hidden.img");
                FAILS(EINVAL, underseal_set_option(disk, "type", "zip"));
                FAILS(EINVAL, underseal_set_option(disk, "no option", "1"));
                FAILS(EINVAL, underseal_set_option(disk, NULL, "1"));
                FAILS(EINVAL, underseal_set_option(disk, "type", "\xff"));
                OK(disk, underseal_set_option(disk, "type", "tcrypt"));
                OK(disk, underseal_set_option(disk, "pim", hidden ? "3" : "2"));
                OK(disk, underseal_set_option(disk, "hidden", hidden ? "1" : "0"));
                FAILS(EINVAL, underseal_protect_hidden(disk, U("x"), ~0u));
                if (hidden) {
                        OK(disk, underseal_unlock_passphrase(disk, U("mfvc8fa4Ak4pn!HcvjCikEiDns-z5G_uepvfyeG")));
                        OK(disk, underseal_pread(disk, buffer, sizeof buffer, 0, &done));
                        for (size_t i = 0; i < done; i++)
                                sum |= buffer[i];
                        assert(sum);
                } else {
                        OK(disk, underseal_protect_hidden(disk, U("mfvc8fa4Ak4pn!HcvjCikEiDns-z5G_uepvfyeG"), 3));
                        FAILS(EPERM, underseal_unlock_passphrase(disk, U("wrong")));
                        OK(disk, underseal_unlock_passphrase(disk, U("_7mccBfthtu6czgBsF37gu")));
                        OK(disk, underseal_pwrite(disk, U("x"), 0));
                        FAILS(EROFS, underseal_pwrite(disk, U("x"), 40960));
                        FAILS(EROFS, underseal_pwrite(disk, U("x"), 0));
                }
                underseal_free(disk);
        }

        /* loop-AES opens with its key file alone. */
        char path[4096];
        snprintf(path, sizeof path, "%s/loop-v2.key", folder);
        disk = foreign(folder, "loop-v2-128.img");
        OK(disk, underseal_set_option(disk, "type", "loopaes"));
        OK(disk, underseal_set_option(disk, "key-size", "16"));
        OK(disk, underseal_unlock_keyfile(disk, path));
        OK(disk, underseal_pread(disk, buffer, sizeof buffer, 0, &done));
        underseal_free(disk);
}

int main(int count, char **arguments)
{
        assert(count == 3);
        const char *path = arguments[1];
        uint8_t buffer[100] = {0};
        uint64_t size;
        uint32_t sector, number;
        size_t done;
        char *json;

        /* Refusals, each with a text. */
        FAILS(EINVAL, underseal_size(NULL, &size, NULL));
        assert(strlen(underseal_error(NULL)) > 0);
        underseal_free(NULL);
        struct underseal *disk = underseal_new();
        FAILS(EINVAL, underseal_unlock_passphrase(disk, U("secret")));
        FAILS(EINVAL, underseal_set_path(disk, NULL));
        FAILS(EINVAL, underseal_set_flags(disk, 1u << 30));
        FAILS(EINVAL, underseal_set_fd(disk, -1));
        FAILS(EBADF, underseal_set_fd(disk, 1000));
        FAILS(EINVAL, underseal_set_callbacks(disk, NULL));
        OK(disk, underseal_set_path(disk, "/nonexistent/image"));
        FAILS(ENOENT, underseal_unlock_passphrase(disk, U("secret")));
        assert(strstr(underseal_error(disk), "/nonexistent/image"));
        OK(disk, underseal_set_path(disk, path));
        FAILS(EPERM, underseal_unlock_passphrase(disk, U("wrong")));
        FAILS(EINVAL, underseal_unlock_passphrase(disk, NULL, 5));
        FAILS(EINVAL, underseal_pread(disk, buffer, 1, 0, &done));
        OK(disk, underseal_info_json(disk, &json));
        assert(strstr(json, "\"format\":\"luks2\""));
        underseal_string_free(json);
        underseal_free(disk);

        /* Bytes at any position. */
        disk = opened(path, UNDERSEAL_WRITABLE);
        OK(disk, underseal_size(disk, &size, &sector));
        assert(size == 8 << 20 && sector == 4096);
        OK(disk, underseal_pwrite(disk, U("any byte"), 1000001));
        OK(disk, underseal_flush(disk));
        OK(disk, underseal_pread(disk, buffer, 8, 1000001, &done));
        assert(done == 8 && !memcmp(buffer, "any byte", 8));
        OK(disk, underseal_pread(disk, buffer, sizeof buffer, size - 3, &done));
        assert(done == 3);
        OK(disk, underseal_pread(disk, buffer, sizeof buffer, UINT64_MAX, &done));
        assert(done == 0);
        FAILS(ENXIO, underseal_pwrite(disk, U("ab"), size - 1));
        FAILS(EINVAL, underseal_pread(disk, buffer, SIZE_MAX, 0, &done));
        FAILS(EOPNOTSUPP, underseal_discard(disk, 0, 4096));
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
                assert(!pthread_create(&threads[i], NULL, i ? reader : last_words, disk));
        for (int i = 0; i < 3; i++)
                pthread_join(threads[i], NULL);
        struct underseal *second = underseal_new();
        OK(second, underseal_set_path(second, path));
        FAILS(EBUSY, underseal_unlock_passphrase(second, U("secret")));
        underseal_free(second);
        underseal_free(disk);

        /* A read-only handle, a descriptor, callbacks. */
        disk = opened(path, 0);
        FAILS(EROFS, underseal_pwrite(disk, U("x"), 0));
        underseal_free(disk);
        int fd = open(path, O_RDONLY);
        disk = underseal_new();
        OK(disk, underseal_set_fd(disk, fd));
        OK(disk, underseal_unlock_passphrase(disk, U("secret")));
        OK(disk, underseal_pread(disk, buffer, 8, 1000001, &done));
        assert(!memcmp(buffer, "any byte", 8));
        underseal_free(disk);
        struct underseal_callbacks callbacks = {.argument = &fd, .size = 24 << 20, .pread = file_pread};
        disk = underseal_new();
        OK(disk, underseal_set_callbacks(disk, &callbacks));
        OK(disk, underseal_unlock_passphrase(disk, U("secret")));
        OK(disk, underseal_pread(disk, buffer, 8, 1000001, &done));
        assert(!memcmp(buffer, "any byte", 8));
        underseal_free(disk);
        callbacks.pread = broken_pread;
        disk = underseal_new();
        OK(disk, underseal_set_callbacks(disk, &callbacks));
        FAILS(EREMOTEIO, underseal_unlock_passphrase(disk, U("secret")));
        callbacks.pread = NULL;
        FAILS(EINVAL, underseal_set_callbacks(disk, &callbacks));
        underseal_free(disk);
        close(fd);

        /* Keyslots. */
        disk = underseal_new();
        OK(disk, underseal_set_path(disk, path));
        FAILS(EPERM, underseal_keyslot_add(disk, U("wrong"), U("two"), -1, &number));
        OK(disk, underseal_keyslot_add(disk, U("secret"), U("two"), 3, &number));
        assert(number == 3);
        OK(disk, underseal_unlock_passphrase(disk, U("two")));
        OK(disk, underseal_keyslot_remove(disk, 3, 0));
        FAILS(ENOENT, underseal_keyslot_remove(disk, 3, 0));
        FAILS(ENOENT, underseal_keyslot_remove(disk, 0, 0));
        underseal_free(disk);
        formats(arguments[2]);
        puts("ok");
        FAILS(0, underseal_protect_process());
        return 0;
}
