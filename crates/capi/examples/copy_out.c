/* Copies the plaintext of an encrypted image into a file: copy_out IMAGE OUTPUT, with the passphrase on standard input.
 *
 *     cc copy_out.c $(pkg-config --cflags --libs underseal) -o copy_out
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <underseal.h>

int main(int count, char **arguments)
{
        static uint8_t buffer[1 << 20];
        if (count != 3) {
                fprintf(stderr, "usage: copy_out IMAGE OUTPUT < PASSPHRASE\n");
                return 2;
        }
        size_t length = fread(buffer, 1, 8192, stdin);
        if (length && buffer[length - 1] == '\n')
                length--;

        struct underseal *disk = underseal_new();
        int failed = underseal_set_path(disk, arguments[1]) || underseal_unlock_passphrase(disk, buffer, length);
        memset(buffer, 0, length);

        FILE *output = failed ? NULL : fopen(arguments[2], "wbx");
        uint64_t offset = 0;
        size_t done = 0;
        while (output && !(failed = underseal_pread(disk, buffer, sizeof buffer, offset, &done)) && done) {
                if (fwrite(buffer, 1, done, output) != done)
                        break;
                offset += done;
        }
        if (failed)
                fprintf(stderr, "copy_out: %s\n", underseal_error(disk));
        else if (!output || ferror(output) | fclose(output))
                failed = (perror(arguments[2]), 1);
        underseal_free(disk);
        return failed ? 1 : 0;
}
