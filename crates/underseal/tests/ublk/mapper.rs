//! Devices of `underseal dm` that are ublk disks: on kernels that change a disk's size.

use std::path::Path;
use std::time::Duration;

use crate::dm::mapper::library;
use crate::support::volume::text;
use crate::ublk::boots::Boot;

/// How long a task may take.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn a_device_of_the_mapper_is_a_disk(boot: &mut Boot) {
    let pass = boot.scratch.file("pass", b"pass");
    for (name, script) in [("volumes", VOLUMES), ("tables", TABLES), ("killed", KILLED), ("others", OTHERS)] {
        boot.task_within(name, LIMIT, &mapped(&pass, library(), script));
    }
}

/// A task's script after what all tasks here share. A kernel whose disks keep their sizes has loop
/// devices, and the rest of the task is left out.
fn mapped(pass: &Path, library: &Path, script: &str) -> String {
    format!(
        "OURS={} LIBRARY={} PASS={}\n{SHARED}\n{script}\n{AFTERWARDS}",
        env!("CARGO_BIN_EXE_underseal"),
        text(library),
        text(pass)
    )
}

const SHARED: &str = "
mkdir -p /run/bin
[ -e /run/bin/underseal ] || cp $OURS /run/bin/underseal
[ -e /run/bin/library.so ] || cp $LIBRARY /run/bin/library.so
export UNDERSEAL_DM_LIBRARY=/run/bin/library.so
# With it dmsetup renames nodes that the back end has renamed.
unset DM_DISABLE_UDEV
trap 'cat /run/dm/log || true' EXIT
dm() { /run/bin/underseal dm run --folder /run/dm \"$@\"; }
# of PART: the processes of ours whose command lines have this in them.
of() {
    { set +x; } 2> /dev/null
    for process in /proc/[0-9]*; do
        if tr '\\0' ' ' < $process/cmdline 2> /dev/null | grep -q \"dm $1\"; then echo ${process#/proc/}; fi
    done
}
fails() { if \"$@\"; then echo \"$*: it did not fail\"; exit 9; fi; }
# A file of the guest's memory on a loop device, $low.
low() {
    truncate -s 64M /run/low
    low=$(losetup --find --show /run/low)
}
key=$(printf %064d 1)
dm dmsetup create probe --table '0 8 zero'
case $(readlink -f /sys/dev/block/$(stat -c %Hr:%Lr /dev/mapper/probe)) in
*/ublkb*) dm dmsetup remove probe ;;
*)
    echo 'this kernel changes the size of no ublk device (Linux 6.16 does): the devices are loop devices'
    dm dmsetup remove probe
    exit 0
    ;;
esac
";

/// Nothing is left of the devices.
const AFTERWARDS: &str = "
fails ls /dev/ublkb* 2> /dev/null
[ \"$(ls /dev/mapper)\" = control ]
if dmesg | grep -E 'BUG|WARNING|hung task'; then exit 1; fi
kill $(of 'serve --folder') || true
rm -rf /run/dm /run/low
";

/// cryptsetup's volumes, with sectors of both sizes.
const VOLUMES: &str = "
for sector in 512 4096; do
    truncate -s 64M /run/image
    cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file $PASS \\
        --sector-size $sector /run/image
    dm cryptsetup open --key-file $PASS /run/image plain
    [ $(blockdev --getss /dev/mapper/plain) = $sector ]
    [ $(blockdev --getsize64 /dev/mapper/plain) = $((48 << 20)) ]
    lsblk --noheadings --raw --output NAME,SIZE,LOG-SEC | grep \"ublkb[0-9]* 48M $sector\"
    mkfs.ext4 -q /dev/mapper/plain
    mount /dev/mapper/plain /mnt
    cp /usr/bin/bash /mnt/
    fails dm cryptsetup close plain
    umount /mnt
    dm cryptsetup status plain | grep 'sector size: *'$sector
    dm cryptsetup close plain
    dm cryptsetup open --key-file $PASS /run/image plain
    e2fsck -fn /dev/mapper/plain
    mount /dev/mapper/plain /mnt
    cmp /usr/bin/bash /mnt/bash
    umount /mnt
    dm cryptsetup close plain
    rm /run/image
done
";

/// Tables that follow one another below a load that is verified, and those that cannot.
const TABLES: &str = "
low
dm dmsetup create a --table \"0 40960 linear $low 0\"
fio --name=load --filename=/dev/mapper/a --rw=randwrite --bsrange=4k-32k --iodepth=32 --ioengine=libaio --direct=1 \\
    --size=4M --loops=1000000 --verify=crc32c --verify_backlog=64 --verify_fatal=1 --verify_state_save=0 \\
    --thinktime=300ms --thinktime_blocks=64 --minimal --output=load.out &
load=$!
sleep 3
for round in 1 2 3; do
    dm dmsetup load a --table \"0 $((40960 + round * 2048)) linear $low 0\"
    dm dmsetup resume a
    [ $(blockdev --getsz /dev/mapper/a) = $((40960 + round * 2048)) ]
    sleep 1
done
dm dmsetup suspend a
sleep 1
dm dmsetup resume a
sleep 1
kill -INT $load
status=0
wait $load || status=$?
[ $status = 128 ] || { cat load.out; exit 1; }
# A cipher takes the place, as a suspended device's table.
dm dmsetup load a --table \"0 40960 crypt aes-xts-plain64 $key 0 $low 0\"
dm dmsetup suspend a
dd if=/dev/mapper/a of=/dev/null bs=4k count=1 iflag=direct &
reads=$!
sleep 1
kill -0 $reads
dm dmsetup resume a
wait $reads
[ $(blockdev --getsz /dev/mapper/a) = 40960 ]
echo here | dd of=/dev/mapper/a bs=4096 conv=sync oflag=direct status=none
fails grep -q here /run/low
# Blocks of another size.
dm dmsetup load a --table \"0 40960 crypt aes-xts-plain64 $key 0 $low 0 1 sector_size:4096\"
fails dm dmsetup resume a
grep 'its blocks have 512 bytes' /run/dm/log
[ \"$(dd if=/dev/mapper/a bs=4 count=1 status=none)\" = here ]
# A table that may be read only, on a disk that could be written to.
dm dmsetup load a --readonly --table \"0 40960 crypt aes-xts-plain64 $key 0 $low 0\"
dm dmsetup resume a
fails dd if=/dev/zero of=/dev/mapper/a bs=4096 count=1 oflag=direct status=none
[ \"$(dd if=/dev/mapper/a bs=4 count=1 iflag=fullblock status=none)\" = here ]
exec 5< /dev/mapper/a
fails dm dmsetup remove a
exec 5<&-
dm dmsetup rename a b
[ -b /dev/mapper/b ]
[ ! -e /dev/mapper/a ]
dm dmsetup remove b
losetup --detach $low
";

/// Back ends and servers that are killed: devices continue with a server, and users of those
/// without one get errors.
const KILLED: &str = "
low
dm dmsetup create a --table \"0 40960 linear $low 0\"
mkfs.ext4 -q /dev/mapper/a
mount /dev/mapper/a /mnt
kill -9 $(of 'serve --folder')
set -x
cp /usr/bin/bash /mnt/
dm dmsetup ls | grep '^a'
dm dmsetup load a --table \"0 45056 linear $low 0\"
dm dmsetup resume a
[ $(blockdev --getsz /dev/mapper/a) = 45056 ]
dm dmsetup remove --deferred a
dm dmsetup info a | grep 'DEFERRED REMOVE'
sync -f /mnt
echo 3 > /proc/sys/vm/drop_caches
cmp /usr/bin/bash /mnt/bash
umount /mnt
{ set +x; } 2> /dev/null
until [ ! -e /dev/mapper/a ]; do sleep 0.1; done
set -x
dm dmsetup create b --table \"0 40960 linear $low 0\"
number=$(stat -c %Lr /dev/mapper/b)
exec 5<> /dev/mapper/b
kill -9 $(of table-server)
set -x
fails timeout 60 dd if=/dev/zero bs=4k count=1 oflag=direct >&5
fails dd if=/dev/mapper/b of=/dev/null bs=4k count=1 iflag=direct
# No other disk gets the number that its name leads to.
dm dmsetup create c --table \"0 40960 linear $low 0\"
[ $(stat -c %Lr /dev/mapper/c) != $number ]
exec 5>&-
dm dmsetup remove b
[ ! -e /dev/mapper/b ]
exec 5<> /dev/mapper/c
kill -9 $(of 'serve --folder') $(of table-server)
set -x
dm dmsetup ls | grep 'No devices found'
fails timeout 60 dd if=/dev/zero bs=4k count=1 oflag=direct >&5
exec 5>&-
losetup --detach $low
";

/// Devices without a table, of numbers that are wanted, and beside others.
const OTHERS: &str = "
dm dmsetup create --notable n
dm dmsetup info n | grep 'State: *ACTIVE'
dm dmsetup remove n
dm dmsetup create m --major 253 --minor 2000 --table '0 2048 zero'
[ $(stat -c %Hr:%Lr /dev/mapper/m) = 7:2000 ]
dm dmsetup remove m
dm dmsetup create r --readonly --table '0 2048 zero'
[ $(blockdev --getro /dev/mapper/r) = 1 ]
dm dmsetup remove r
# Another back end has the disk's number.
dm dmsetup create x --table '0 2048 zero'
/run/bin/underseal dm run --folder /run/other dmsetup create y --table '0 2048 zero'
[ $(ls /dev/ublkb* | wc -l) = 2 ]
[ $(blockdev --getsz /dev/mapper/y) = 2048 ]
/run/bin/underseal dm run --folder /run/other dmsetup remove y
[ $(blockdev --getsz /dev/mapper/x) = 2048 ]
dm dmsetup remove x
for device in 1 2 3; do dm dmsetup create s$device --table '0 2048 zero'; done
for device in 2 1 3; do dm dmsetup remove --retry s$device; done
UNDERSEAL_DM_NODES=loop /run/bin/underseal dm run --folder /run/loops dmsetup create l --table '0 2048 zero'
[ $(stat -c %Hr /dev/mapper/l) = 7 ]
UNDERSEAL_DM_NODES=loop /run/bin/underseal dm run --folder /run/loops dmsetup remove l
";
