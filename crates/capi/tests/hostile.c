/* Opens images that nobody made well, as a C program would: hostile PASSPHRASE IMAGE.. Each call returns 0 or -errno with a text.
 * The images are opened by their paths, and on callbacks that lie about the size or fail after so many calls. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "underseal.h"

static const char *image;

/* Fails the test unless a call ended well or with an errno and its text. */
static int ended(struct underseal *disk, int code)
{
        if (code > 0 || code < -4095 || (code && !*underseal_error(disk))) {
                fprintf(stderr, "%s: %d, %s\n", image, code, underseal_error(disk));
                exit(1);
        }
        return code;
}

/* Unlocks, reads at the beginning, in the middle and at the end, writes; frees. Returns the first failure. */
static int use(struct underseal *disk, const char *passphrase)
{
        static uint8_t buffer[70000];
        uint64_t size = 0;
        size_t done;
        char *json = NULL;
        int first = ended(disk, underseal_unlock_passphrase(disk, (const uint8_t *)passphrase, strlen(passphrase)));
        if (!ended(disk, underseal_info_json(disk, &json)))
                assert(json && *json == '{');
        underseal_string_free(json);
        ended(disk, underseal_size(disk, &size, NULL));
        const uint64_t places[] = {0, 1, size / 2 + 7, size - 5, size, UINT64_MAX};
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
                int code = ended(disk, underseal_pread(disk, buffer, sizeof buffer, places[i], &done));
                assert(code || done <= sizeof buffer);
                first = first ? first : code;
                ended(disk, underseal_pwrite(disk, buffer, 600, places[i]));
        }
        ended(disk, underseal_discard(disk, 0, size));
        ended(disk, underseal_flush(disk));
        underseal_free(disk);
        return first;
}

/* A device in memory: so many bytes are there, and so many calls succeed. A reencryption calls from several threads. */
struct memory {
        uint8_t *bytes;
        uint64_t len;
        long calls;
};

static int memory_pread(void *argument, uint8_t *buffer, size_t len, uint64_t offset)
{
        struct memory *memory = argument;
        if (__atomic_fetch_sub(&memory->calls, 1, __ATOMIC_SEQ_CST) <= 0)
                return -EREMOTEIO;
        if (offset > memory->len || len > memory->len - offset)
                return -EIO;
        memcpy(buffer, memory->bytes + offset, len);
        return 0;
}

static int memory_pwrite(void *argument, const uint8_t *buffer, size_t len, uint64_t offset)
{
        struct memory *memory = argument;
        if (__atomic_fetch_sub(&memory->calls, 1, __ATOMIC_SEQ_CST) <= 0 || offset > memory->len || len > memory->len - offset)
                return -ENOSPC;
        memcpy(memory->bytes + offset, buffer, len);
        return 0;
}

static int on_memory(struct memory *memory, uint64_t claimed, const char *passphrase)
{
        struct underseal_callbacks callbacks = {
                .argument = memory, .size = claimed, .pread = memory_pread, .pwrite = memory_pwrite};
        struct underseal *disk = underseal_new();
        assert(!underseal_set_callbacks(disk, &callbacks));
        assert(!underseal_set_flags(disk, UNDERSEAL_WRITABLE | UNDERSEAL_ALLOW_DISCARDS));
        return use(disk, passphrase);
}

static int third_step(void *argument, uint64_t done, uint64_t total)
{
        assert(done <= total);
        return ++*(int *)argument == 3;
}

/* Reencrypts on the device, in steps of which two are done, and resumes. */
static int reencrypted(struct memory *memory, uint64_t claimed, const char *passphrase)
{
        struct underseal_callbacks callbacks = {
                .argument = memory, .size = claimed, .pread = memory_pread, .pwrite = memory_pwrite};
        const char *const modes[] = {"reencrypt", "resume", "encrypt"};
        int first = 0;
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
                struct underseal *disk = underseal_new();
                int steps = 0, finished = -1;
                assert(!underseal_set_callbacks(disk, &callbacks));
                assert(!underseal_set_reencryption(disk, "mode", modes[i]));
                assert(!underseal_set_reencryption(disk, "pbkdf2", "1000"));
                assert(!underseal_set_reencryption(disk, "hotzone-size", "1048576"));
                assert(!underseal_set_reencryption(disk, "reduce", "33554432"));
                int code = ended(disk, underseal_reencrypt(disk, (const uint8_t *)passphrase, strlen(passphrase),
                                                           third_step, &steps, &finished));
                assert(code ? finished == -1 : finished == 0 || finished == 1);
                first = first ? first : code;
                underseal_free(disk);
        }
        return first;
}

int main(int count, char **arguments)
{
        int opened = 0;
        for (int i = 2; i < count; i++) {
                image = arguments[i];
                struct underseal *disk = underseal_new();
                assert(!underseal_set_path(disk, image));
                opened += !use(disk, arguments[1]);

                FILE *file = fopen(image, "rb");
                assert(file && !fseek(file, 0, SEEK_END));
                struct memory memory = {.len = (uint64_t)ftell(file)};
                uint8_t *whole = malloc(memory.len + 1), *bytes = malloc(memory.len + 1);
                rewind(file);
                assert(whole && bytes && fread(whole, 1, memory.len, file) == memory.len);
                fclose(file);
                memory.bytes = bytes;
                const uint64_t sizes[] = {0, 1, 511, memory.len / 2, memory.len + 4096, UINT64_MAX};
                for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
                        memcpy(bytes, whole, memory.len);
                        memory.calls = 1000000;
                        on_memory(&memory, sizes[j], arguments[1]);
                        reencrypted(&memory, sizes[j], arguments[1]);
                }
                memcpy(bytes, whole, memory.len);
                reencrypted(&memory, memory.len, arguments[1]);
                /* Only for the first image, which is sound: each call is the last one that succeeds. */
                for (long calls = 0; i == 2; calls++) {
                        memcpy(bytes, whole, memory.len);
                        memory.calls = calls;
                        int code = on_memory(&memory, memory.len, arguments[1]);
                        assert(code == 0 || code == -EREMOTEIO || code == -ENOSPC || code == -EIO);
                        if (!code && memory.calls > 0)
                                break;
                        assert(calls < 500);
                }
                free(whole);
                free(bytes);
        }
        printf("%d opened\n", opened);
        return 0;
}
