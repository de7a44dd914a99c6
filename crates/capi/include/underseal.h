/* libunderseal: encrypted disk images (LUKS1, LUKS2, plain dm-crypt, VeraCrypt, BitLocker, FileVault 2, loop-AES) as bytes
 * at positions, without root or a daemon.
 *
 * A handle is set up, unlocked once, and then read and written:
 *
 *     struct underseal *disk = underseal_new();
 *     size_t done;
 *     if (!disk || underseal_set_path(disk, "disk.img") ||
 *         underseal_unlock_passphrase(disk, secret, secret_len) ||
 *         underseal_pread(disk, buffer, sizeof buffer, 0, &done))
 *             fprintf(stderr, "%s\n", underseal_error(disk));
 *     underseal_free(disk);
 *
 * Functions return 0 or -errno: -EPERM for a wrong passphrase or key, -EINVAL for a missing or damaged header and for bad
 * arguments, -EOPNOTSUPP for what is not supported, -EBUSY when another program uses the image, -ENXIO for a device or range
 * that is too short, -EROFS, -EILSEQ for a sector whose tag does not match, -ENOENT for keyslots, -ENOMEM, or the errno of the
 * system call that failed.
 *
 * Threads may share an unlocked handle for reading, writing, flushing and discarding. Set-up, unlocking, keyslot changes and
 * underseal_free are one thread's. Copies of passphrases are wiped; those of the caller are the caller's to wipe.
 *
 * A child of a fork reads on, whatever threads of its parent are doing; it gets -EBUSY from changes and flushes, and for a handle
 * that was being unlocked at the fork.
 *
 * New volumes are not in this library: run `underseal format`.
 */
#ifndef UNDERSEAL_H
#define UNDERSEAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct underseal;

/* Allows writes; the image is locked for this handle alone. */
#define UNDERSEAL_WRITABLE 1u
/* Accepts a header that names cipher_null, which encrypts nothing. */
#define UNDERSEAL_ALLOW_NULL 2u
/* Passes discards to the lower device, which then shows which sectors are in use. */
#define UNDERSEAL_ALLOW_DISCARDS 4u

/* A program's own lower device. Functions return 0 or -errno and may be called from any thread that
 * uses the handle. A function that uses the same handle gets -EDEADLK from it, except for underseal_error. */
struct underseal_callbacks {
        void *argument;                                                          /* given to each function */
        uint64_t size;                                                           /* in bytes */
        int (*pread)(void *argument, uint8_t *buffer, size_t len, uint64_t offset); /* fills all of len */
        int (*pwrite)(void *argument, const uint8_t *buffer, size_t len, uint64_t offset); /* null: read only */
        int (*flush)(void *argument);                                            /* null: always stable */
};

/* Makes a handle. */
struct underseal *underseal_new(void);
/* Closes the image, wipes its key and frees the handle. Null is ignored. */
void underseal_free(struct underseal *handle);
/* The text of the handle's last failure, valid until the next call of this function on the handle. */
const char *underseal_error(const struct underseal *handle);

/* What to open: a path or nbd: or rbd: address, a descriptor (duplicated), or a program's own device. */
int underseal_set_path(struct underseal *handle, const char *image);
int underseal_set_fd(struct underseal *handle, int fd);
int underseal_set_callbacks(struct underseal *handle, const struct underseal_callbacks *callbacks);
/* Reads the header from another file than the data. */
int underseal_set_header(struct underseal *handle, const char *header);
/* UNDERSEAL_* flags, or 0. */
int underseal_set_flags(struct underseal *handle, unsigned int flags);
/* Tries one keyslot only; -1 tries all. */
int underseal_set_keyslot(struct underseal *handle, int keyslot);
/* Sets an option by name; -EINVAL for a name or value that is none. Volumes with a LUKS, BitLocker or FileVault 2 header need none:
 *   type           luks, plain, tcrypt (TrueCrypt, VeraCrypt), bitlk, fvault2, loopaes
 *   partition      number of the partition of a whole disk that holds the volume
 *   key-file       tcrypt: a key file, or a folder of them, beside the passphrase; once for each. fvault2: EncryptedRoot.plist.wipekey
 *   pim            tcrypt: VeraCrypt's Personal Iterations Multiplier
 *   hidden, backup-header, system   tcrypt: 1 or 0
 *   cipher, hash   plain, loopaes; tcrypt: where they are known, which saves seconds
 *   key-size       plain, loopaes: in bytes
 *   sector-size    plain: in bytes
 *   offset, skip   plain, loopaes: in sectors of 512 bytes
 *   other-device   fvault2: path of a further disk of the volume; once for each */
int underseal_set_option(struct underseal *handle, const char *name, const char *value);
/* Protects the hidden volume of a tcrypt volume that opens with this passphrase and PIM (0: none): a write to the outer volume
 * that would reach it fails with -EROFS, and so does every later one. */
int underseal_protect_hidden(struct underseal *handle, const uint8_t *passphrase, size_t len, unsigned int pim);

/* Unlocks the volume, once. A volume that opens with key files of option key-file alone takes a passphrase of no bytes. */
int underseal_unlock_passphrase(struct underseal *handle, const uint8_t *passphrase, size_t len);
int underseal_unlock_keyfile(struct underseal *handle, const char *file);
int underseal_unlock_key(struct underseal *handle, const uint8_t *key, size_t len);

/* The size of the plaintext in bytes, and of an encryption sector. Either pointer may be null. */
int underseal_size(const struct underseal *handle, uint64_t *size, uint32_t *sector_size);
/* Reads up to len bytes; *done is fewer at the end of the volume only. */
int underseal_pread(const struct underseal *handle, uint8_t *buffer, size_t len, uint64_t offset, size_t *done);
/* Writes all of len bytes. Nothing is written when the range ends beyond the volume (-ENXIO). */
int underseal_pwrite(const struct underseal *handle, const uint8_t *buffer, size_t len, uint64_t offset);
/* Returns when everything that was written is on stable storage. */
int underseal_flush(const struct underseal *handle);
/* Discards the whole sectors within a range. */
int underseal_discard(const struct underseal *handle, uint64_t offset, uint64_t len);

/* What the header says, as JSON, for underseal_string_free. The volume need not be unlocked. */
int underseal_info_json(const struct underseal *handle, char **json);
void underseal_string_free(char *text);

/* Keyslots of an image that has a path. keyslot -1 takes the first free one (add) or tries all (change). An empty new passphrase
 * is -EINVAL. */
int underseal_keyslot_add(struct underseal *handle, const uint8_t *passphrase, size_t passphrase_len,
                          const uint8_t *added, size_t added_len, int keyslot, uint32_t *number);
int underseal_keyslot_remove(struct underseal *handle, int keyslot, int last);
int underseal_keyslot_change(struct underseal *handle, const uint8_t *old_passphrase, size_t old_len,
                             const uint8_t *new_passphrase, size_t new_len, int keyslot, uint32_t *number);

/* Sets an option of the handle's reencryptions by name; -EINVAL for a name or value that is none:
 *   mode           reencrypt (the default: a new random key, with the cipher and sectors that are set), encrypt (plain data in
 *                  place, under a new LUKS2 header), decrypt, resume (what is under way, of any kind; begins nothing)
 *   cipher, key-size, sector-size   of the data afterwards; sizes in bytes
 *   reduce         encrypt: the bytes at the end of the image that are given up for a header in front of the data
 *   keep-key       1: only cipher or sectors change
 *   resilience     checksum, journal, or none, with which a crash loses data
 *   resilience-hash  of the checksums: sha256
 *   hotzone-size   the most bytes of a step: 67108864
 *   lose-keyslots  1: keyslots whose passphrases are not given open nothing afterwards
 *   force          1: encrypts another system's volume or a whole disk with partitions as it is; larger sectors under data of
 *                  no known file system; decrypts over the start of an image; cuts the end off a file system (reduce)
 *   label, pbkdf2 (rounds), argon2id (PASSES,KIB,THREADS)   encrypt: of the new header and its keyslot
 * The new file for the header of encrypt without reduce, and of decrypt, is the one of underseal_set_header. */
int underseal_set_reencryption(struct underseal *handle, const char *name, const char *value);
/* Keeps another keyslot that this passphrase opens: a new key needs the passphrase of each. Once for each. */
int underseal_keep_passphrase(struct underseal *handle, const uint8_t *passphrase, size_t len);
/* Reencrypts the closed volume of a handle that is not unlocked, in place; the image is locked meanwhile (-EBUSY where it is
 * open). The passphrase opens the volume, or will after encrypt. The progress, which may be null, gets the bytes that are done
 * and all bytes before each step and at the end, in the calling thread; unless it returns 0 the reencryption stops before the
 * next step. Then *finished is 0, else 1; it may be null. What was stopped, failed or was killed is sound: the volume opens for
 * reading, and mode resume, `underseal reencrypt` and cryptsetup go on. Flags and underseal_set_option do not matter here, or
 * are refused. Callbacks are called from several threads, and their flush must keep what was written. Functions of the handle
 * that the progress calls, other than underseal_error, may fail with -EBUSY. */
int underseal_reencrypt(struct underseal *handle, const uint8_t *passphrase, size_t len,
                        int (*progress)(void *argument, uint64_t done, uint64_t total), void *argument, int *finished);

/* Keeps this process's memory out of core dumps, and away from debuggers and other processes of the
 * same user. Without it a dump has the program's own passphrases and plaintext, but no keys of this
 * library unless a call is under way. 0 or -errno. */
int underseal_protect_process(void);

#ifdef __cplusplus
}
#endif

#endif
