//! Debian 12's kernel, 6.1.

use crate::guest::Guest;
use crate::support::Scratch;
use crate::support::volume::{Volume, text};

#[test]
fn an_image_on_dm_crypt_is_written_and_read() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "24M");
    let mut guest = Guest::without_hardware(&scratch).under("bookworm");
    let (ours, image, pass) =
        (env!("CARGO_BIN_EXE_underseal"), text(&volume.image), text(&volume.passphrase));
    // dm-crypt cannot promise that it does not wait.
    guest.task(
        "older",
        &format!(
            "case $(uname -r) in 6.1.*) ;; *) exit 1 ;; esac
             truncate -s 64M /run/disk
             loop=$(losetup --find --show /run/disk)
             key=$(printf %064d 1)
             dmsetup create c --table \"0 $(blockdev --getsz $loop) crypt aes-xts-plain64 $key 0 $loop 0\"
             [ -e /dev/mapper/c ] || dmsetup mknodes
             mkfs.ext4 -q /dev/mapper/c
             mkdir /run/place
             mount /dev/mapper/c /run/place
             cp {image} /run/place/image
             head -c 1M /dev/urandom > /run/data
             for direct in '' --direct; do
                 {ours} write /run/place/image $direct --passphrase-file {pass} -i /run/data -q
                 sync
                 echo 3 > /proc/sys/vm/drop_caches
                 {ours} read /run/place/image $direct --passphrase-file {pass} --length 1M -o /run/back -q
                 cmp /run/data /run/back
                 rm /run/back
             done
             umount /run/place
             dmsetup remove c
             losetup --detach $loop"
        ),
    );
    guest.boot();
}
