//! Targets over several devices: stripes, delays, hash trees.

use crate::dm::killed::servers;
use crate::dm::mapper::Mapper;
use crate::support::mounts::skip;
use crate::support::{output, tool};

/// Makes two block devices of 4 MiB, and detaches them in the end.
const LOWERS: &str = "
truncate --size 4M one.img two.img
one=$(losetup --find --show one.img)
trap 'losetup --detach $one' EXIT
two=$(losetup --find --show two.img)
trap 'losetup --detach $one $two' EXIT
";

#[test]
fn a_stripe_puts_its_chunks_on_its_devices_in_turn() {
    let Some(mapper) = Mapper::new() else { return };
    let script = "
dmsetup create $N-s --table \"0 8192 striped 2 8 $one 16 $two 0\"
dmsetup table $N-s | sed 's/ [0-9]*:[0-9]* / DEV /g'
dmsetup status $N-s | sed 's/ [0-9]*:[0-9]* / DEV /; s/ [0-9]*:[0-9]* / DEV /'
python3 -c '
import os, sys
with open(sys.argv[1], \"r+b\") as disk:
    for chunk in range(1024):
        disk.write(bytes([chunk % 251]) * 4096)' /dev/mapper/$N-s
fails dmsetup create $N-t --table \"0 8193 striped 2 8 $one 0 $two 0\" 2> /dev/null
fails dmsetup create $N-t --table \"0 8192 striped 2 8 $one 0\" 2> /dev/null
fails dmsetup create $N-t --table \"0 16384 striped 2 8 $one 16 $two 0\" 2> /dev/null
dmsetup remove $N-s
python3 -c '
one, two = (open(name, \"rb\").read() for name in (\"one.img\", \"two.img\"))
for chunk in range(1024):
    disk, at = (one, 8192) if chunk % 2 == 0 else (two, 0)
    at += chunk // 2 * 4096
    assert disk[at:at + 4096] == bytes([chunk % 251]) * 4096, chunk
print(\"right\")'";
    let out = mapper.script(&format!("{LOWERS}{script}"));
    assert_eq!(
        out,
        "0 8192 striped 2 8 DEV 16 DEV 0\n0 8192 striped 2 DEV DEV 1 AA\nright\n",
        "{}",
        mapper.log()
    );
}

#[test]
fn a_delay_has_devices_for_reads_and_writes_of_their_own() {
    let Some(mapper) = Mapper::new() else { return };
    let script = "
dmsetup create $N-bad --table '0 8192 error'
dmsetup create $N-d --table \"0 8192 delay /dev/mapper/$N-bad 0 0 $one 0 200\"
fails dd if=/dev/mapper/$N-d of=/dev/null iflag=direct bs=4096 count=1 status=none 2> /dev/null
python3 -c '
import mmap, os, sys, time
disk = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
page[:5] = b\"later\"
begin = time.monotonic()
os.pwrite(disk, page, 0)
assert time.monotonic() - begin >= 0.2' /dev/mapper/$N-d
dmsetup table $N-d | sed 's/ [0-9]*:[0-9]* / DEV /g'
dmsetup status $N-d
dmsetup remove $N-d; dmsetup remove $N-bad
head -c 5 one.img";
    let out = mapper.script(&format!("{LOWERS}{script}"));
    assert_eq!(out, "0 8192 delay DEV 0 0 DEV 0 200\n0 8192 delay 0 0 0\nlater", "{}", mapper.log());
}

/// As in the kernel, whose delays begin with the device and end before it does.
#[test]
fn a_long_delay_holds_up_neither_creation_nor_suspension_nor_removal() {
    let Some(mapper) = Mapper::new() else { return };
    let script = "
begun=$(date +%s)
dmsetup create $N-d --table \"0 8192 delay $one 0 0 $one 0 3600000\"
dd if=/dev/zero of=/dev/mapper/$N-d bs=4096 count=1 oflag=direct status=none & writes=$!
write() { printf $1 | dd of=/dev/mapper/$N-d bs=4096 conv=sync oflag=direct status=none; }
sleep 1
kill -0 $writes; echo it waits
dmsetup suspend $N-d
dmsetup resume $N-d
wait $writes
write first & writes=$!
sleep 1
dmsetup load $N-d --table \"0 8192 delay $one 0 0 $one 0 3600001\"
dmsetup resume $N-d
wait $writes
head -c 5 one.img; echo
dmsetup remove $N-d
dmsetup ls
test $(($(date +%s) - begun)) -lt 30 || echo late";
    let out = mapper.script(&format!("{LOWERS}{script}"));
    assert_eq!(out, "it waits\nfirst\nNo devices found\n", "{}", mapper.log());
    assert_eq!(servers(&mapper).len(), 0, "{}", mapper.log());
}

#[test]
fn veritysetups_trees_are_checked_as_they_are_read() {
    let Some(mapper) = Mapper::new() else { return };
    if !output(tool("sh").args(["-c", "command -v veritysetup"])).status.success() {
        return skip("a hash tree that veritysetup made", "there is no veritysetup");
    }
    let script = "
dd if=/dev/urandom of=one.img bs=1M count=4 conv=notrunc status=none
sum=$(sha256sum < one.img)
check() {
    root=$(veritysetup format --data-block-size 4096 \"$@\" $one $two | sed -n 's/^Root hash: *//p')
    veritysetup open $one $N-v $two $root
    test \"$(dd if=/dev/mapper/$N-v iflag=direct bs=64k status=none | sha256sum)\" = \"$sum\"
    test $(blockdev --getro /dev/mapper/$N-v) = 1
    dmsetup status $N-v
    veritysetup close $N-v
}
check
check --format 0 --hash sha1 --hash-block-size 1024
check --hash sha512 --salt -
# One byte of the data is another.
printf X | dd of=one.img bs=1 seek=1234567 conv=notrunc status=none
blockdev --flushbufs $one
veritysetup open $one $N-v $two $root
dd if=/dev/mapper/$N-v iflag=direct bs=4096 count=301 of=/dev/null status=none
fails dd if=/dev/mapper/$N-v iflag=direct bs=4096 skip=301 count=1 of=/dev/null status=none 2> /dev/null
dd if=/dev/mapper/$N-v iflag=direct bs=4096 skip=302 of=/dev/null status=none
dmsetup status $N-v
veritysetup close $N-v
# Another root is found by the first read.
veritysetup open $one $N-v $two $(echo $root | tr 0-9 1-90) 2> /dev/null || true
fails dd if=/dev/mapper/$N-v iflag=direct bs=4096 count=1 of=/dev/null status=none 2> /dev/null
veritysetup close $N-v
fails dmsetup create $N-v --table \"0 8192 verity 1 $one $two 4096 4096 1024 1 sha512 $root -\" 2> /dev/null";
    let out = mapper.script(&format!("{LOWERS}{script}"));
    assert_eq!(
        out,
        "0 8192 verity V\n0 8192 verity V\n0 8192 verity V\n0 8192 verity C\n",
        "{}",
        mapper.log()
    );
    assert!(mapper.log().contains("data block 301 is corrupted"), "{}", mapper.log());
}

#[test]
fn a_write_that_fails_on_a_lower_device_fails_there_and_then() {
    let Some(mapper) = Mapper::new() else { return };
    // Without a flush: no page cache lies between a device and those below it.
    let script = "
dmsetup create $N-bad --table '0 8192 error'
dmsetup create $N-d --table \"0 8 delay $one 0 0 /dev/mapper/$N-bad 0 0
8 8184 linear $one 8\"
python3 -c '
import mmap, os, sys
disk = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
os.preadv(disk, [page], 0)
os.pwrite(disk, page, 4096)
try: os.pwrite(disk, page, 0); print(\"acknowledged\")
except OSError as e: print(e.errno)' /dev/mapper/$N-d
dmsetup remove $N-d
dmsetup remove $N-bad";
    assert_eq!(mapper.script(&format!("{LOWERS}{script}")), "5\n", "{}", mapper.log());
}

#[test]
fn a_device_has_the_blocks_of_the_one_below() {
    let Some(mapper) = Mapper::new() else { return };
    let script = "
losetup --sector-size 4096 $one
dmsetup create $N-l --table \"0 4096 linear $one 8\"
blockdev --getss /dev/mapper/$N-l
fails dmsetup create $N-m --table \"0 4097 linear $one 8\" 2> /dev/null
fails dmsetup create $N-m --table \"0 4096 linear $one 9\" 2> /dev/null
dmsetup remove $N-l";
    assert_eq!(mapper.script(&format!("{LOWERS}{script}")), "4096\n", "{}", mapper.log());
}

#[test]
fn a_table_that_begins_a_recalculation_says_so() {
    let Some(mapper) = Mapper::new() else { return };
    let script = "
dmsetup create $N-i --table \"0 1 integrity $one 0 4 J 1 internal_hash:crc32c\"
sectors=$(dmsetup status $N-i | cut -d' ' -f5)
layer=\"0 $sectors integrity $one 0 4 J\"
recalculates() { dmsetup table ${1-} $N-i | grep -c ' recalculate ' || true; }
dmsetup reload $N-i --table \"$layer 1 internal_hash:crc32c\"
dmsetup resume $N-i
recalculates
dmsetup reload $N-i --table \"$layer 2 internal_hash:crc32c recalculate\"
recalculates --inactive
dmsetup resume $N-i
recalculates
# It stays in the superblock.
dmsetup reload $N-i --table \"$layer 1 internal_hash:crc32c\"
dmsetup resume $N-i
recalculates
dmsetup remove $N-i";
    assert_eq!(mapper.script(&format!("{LOWERS}{script}")), "0\n1\n1\n1\n", "{}", mapper.log());
}

#[test]
fn a_damaged_journal_leaves_a_device_whose_requests_fail() {
    let Some(mapper) = Mapper::new() else { return };
    let script = "
layer=\"0 1 integrity $one 0 4 J 1 internal_hash:crc32c\"
dmsetup create $N-i --table \"$layer\"
sectors=$(dmsetup status $N-i | cut -d' ' -f5)
dmsetup remove $N-i
layer=\"0 $sectors integrity $one 0 4 J 1 internal_hash:crc32c\"
dmsetup create $N-i --table \"$layer\"
dd if=/dev/zero of=/dev/mapper/$N-i oflag=direct bs=64k count=4 status=none
dmsetup remove $N-i
# The journal begins after the superblock's 4 KiB.
dd if=/dev/zero of=$one oflag=direct bs=4096 seek=1 count=8 conv=notrunc status=none
dmsetup create $N-i --table \"$layer\"
test $(blockdev --getsz /dev/mapper/$N-i) = $sectors
fails dd if=/dev/mapper/$N-i of=/dev/null iflag=direct bs=4096 count=1 status=none 2> /dev/null
fails dd if=/dev/zero of=/dev/mapper/$N-i oflag=direct bs=4096 count=1 status=none 2> /dev/null
dmsetup remove $N-i";
    mapper.script(&format!("{LOWERS}{script}"));
    assert!(mapper.log().contains("the journal is damaged"), "{}", mapper.log());
}
