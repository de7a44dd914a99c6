//! A volume on a zoned disk is a zoned disk.

use crate::support::volume::text;
use crate::ublk::boots::Boot;

/// In memory: 2 zones that may be written anywhere, and 254 that may not, of 4 MiB.
const DISK: &str = "null_blk nr_devices=1 zoned=1 zone_size=4 zone_nr_conv=2 memory_backed=1 gb=1";

pub(crate) fn zones_are_told_written_in_order_appended_to_and_emptied(boot: &mut Boot) {
    boot.modules(&["btrfs", DISK]);
    let pass = text(&boot.volume.passphrase);
    let variables = format!("OURS={} PASS={pass}", env!("CARGO_BIN_EXE_underseal"));
    boot.task("zoned", &format!("{variables}\n{ZONED}"));
}

/// Appending is tried by btrfs, which writes all data so. What it wrote through us it reads through
/// dm-crypt.
const ZONED: &str = "
. ./serve.sh
plain='--type plain --cipher aes-xts-plain64 --key-size 512 --sector-size 4096 --hash sha512'
refused 'has zones' sh -c \"$OURS open /dev/nullb0 --ublk --passphrase-file $PASS $plain || { echo try: --direct; false; }\"
serve /dev/nullb0 zoned $plain --direct
[ $(cat /sys/block/ublkb0/queue/zoned) = host-managed ]
[ $(cat /sys/block/ublkb0/queue/nr_zones) = 256 ]
blkzone report /dev/ublkb0 > ours
blkzone report /dev/nullb0 | cmp - ours
verify /dev/ublkb0 --zonemode=zbd --rw=write --bsrange=64k-64k --offset=8M --size=12M
blkzone report --count 4 /dev/nullb0 | grep -q 'wptr 0x002000'
blkzone reset --offset 16384 --count 1 /dev/ublkb0
blkzone finish --offset 24576 --count 1 /dev/ublkb0
blkzone report /dev/ublkb0 > ours
blkzone report /dev/nullb0 | cmp - ours
blkzone reset /dev/ublkb0
mkfs.btrfs -q -f -O zoned -d single -m single /dev/ublkb0
mount /dev/ublkb0 /mnt
cp -r /usr/share/doc/util-linux /usr/bin/bash /mnt/
umount /mnt
stop
cryptsetup open $plain /dev/nullb0 crypt < $PASS
mount -o ro /dev/mapper/crypt /mnt
diff -r /usr/share/doc/util-linux /mnt/util-linux
cmp /usr/bin/bash /mnt/bash
umount /mnt
cryptsetup close crypt
";
