//! Output of dmsetup, and tables that replace others.

use crate::dm::mapper::Mapper;

#[test]
fn a_device_lives_from_create_to_remove() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
dmsetup targets | grep -c .
dmsetup create $N-a --uuid U-$N --table '0 2048 zero'
dmsetup info --columns --noheadings -o name,uuid,attr,open,segments,events $N-a
dmsetup table $N-a
dmsetup rename $N-a $N-b
test -b /dev/mapper/$N-b; test ! -e /dev/mapper/$N-a
blockdev --getsz /dev/mapper/$N-b
dmsetup create $N-a --notable
dmsetup ls
code=0; dmsetup create $N-b --notable 2> /dev/null || code=$?; echo $code
dmsetup remove $N-a
dmsetup remove --uuid U-$N
dmsetup ls",
    );
    let n = mapper.name("");
    let expected = [
        "8",
        &format!("{n}a:U-{}:L--w:0:1:0", &n[..n.len() - 1]),
        "0 2048 zero ",
        "2048",
        &format!("{n}a"),
        &format!("{n}b"),
        "1",
        "No devices found",
    ];
    let lines: Vec<_> = out.lines().map(|line| line.split('\t').next().unwrap_or_default()).collect();
    assert_eq!(lines, expected, "{out}\n{}", mapper.log());
}

#[test]
fn tables_share_a_lower_device_that_others_are_kept_from() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
truncate --size 4M low.img
low=$(losetup --find --show low.img)
trap 'losetup --detach $low' EXIT
printf first | dd of=$low bs=4096 conv=sync,notrunc status=none
printf second | dd of=$low bs=4096 seek=1 conv=sync,notrunc status=none
dmsetup create $N-a --table \"0 8 linear $low 0\"
dmsetup create $N-b --table \"0 8 linear $low 8\"
dd if=/dev/mapper/$N-a bs=4096 count=1 status=none | tr -d '\\000'; echo
dd if=/dev/mapper/$N-b bs=4096 count=1 status=none | tr -d '\\000'; echo
dmsetup deps -o devno $N-a | sed 's/(7, [0-9]*)/(7, N)/'
python3 -c 'import os, sys
try: os.open(sys.argv[1], os.O_RDWR | os.O_EXCL); print(\"mine\")
except OSError as e: print(e.errno)' $low
dmsetup remove $N-a
dmsetup remove $N-b
python3 -c 'import os, sys; os.open(sys.argv[1], os.O_RDWR | os.O_EXCL)' $low",
    );
    assert_eq!(out, "first\nsecond\n1 dependencies\t: (7, N)\n16\n");
}

#[test]
fn a_table_takes_the_place_of_another_between_two_requests() {
    let Some(mapper) = Mapper::new() else { return };
    // Writes continue while the device moves from one half of the disk to the other: each block is
    // in the half that was live.
    let out = mapper.script(
        "
truncate --size 16M low.img
low=$(losetup --find --show low.img)
trap 'losetup --detach $low' EXIT
dmsetup create $N-a --table \"0 16384 linear $low 0\"
cat > writer.py <<'END'
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
for block in range(2048):
    page[:8] = block.to_bytes(8, 'little')
    page[8:16] = b'written!'
    assert os.pwrite(fd, page, block * 4096) == 4096
    if block == 100: open('under-way', 'w')
END
python3 writer.py /dev/mapper/$N-a &
while test ! -e under-way; do sleep 0.01; done
for half in 16384 0 16384 0 16384; do
    dmsetup reload $N-a --table \"0 16384 linear $low $half\"
    dmsetup resume $N-a
done
wait $!
dmsetup remove $N-a
python3 -c '
halves = open(\"low.img\", \"rb\").read()
found = [0, 0]
for block in range(2048):
    at = [(block * 4096 + half * (8 << 20)) for half in (0, 1)]
    here = [halves[a:a+16] == block.to_bytes(8, \"little\") + b\"written!\" for a in at]
    assert sum(here) == 1, (block, here)
    found[here.index(True)] += 1
assert sum(found) == 2048
print(\"all\")'",
    );
    assert_eq!(out, "all\n", "{}", mapper.log());
}

#[test]
fn the_answers_are_the_kernels_line_by_line() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.scratch.file("commands.sh", include_bytes!("commands.sh"));
    let out = mapper.script(
        "
mkdir answers
truncate --size 4M low.img
low=$(losetup --find --show low.img)
trap 'losetup --detach $low' EXIT
export low
cd answers
bash ../commands.sh | sed \"s,$low,LOW,g; s/$N/cmp/g\"",
    );
    let expected = include_str!("kernel.txt");
    for (number, (ours, theirs)) in out.lines().zip(expected.lines()).enumerate() {
        assert_eq!(ours, theirs, "line {}\n{out}\n{}", number + 1, mapper.log());
    }
    assert_eq!(out.lines().count(), expected.lines().count());
}

#[test]
fn libdevmapper_is_found_where_a_program_has_loaded_it_for_itself_alone() {
    let Some(mapper) = Mapper::new() else { return };
    // As systemd loads libcryptsetup; the library stands before libdevmapper's function.
    let out = mapper.script(
        "
dmsetup create $N-a --table '0 8 zero'
python3 -c '
import ctypes, os, sys
ctypes.CDLL(\"libdevmapper.so.1.02.1\")
name = ctypes.create_string_buffer(128)
node = os.stat(sys.argv[1]).st_rdev
found = ctypes.CDLL(None).dm_device_get_name(os.major(node), os.minor(node), 1, name, 128)
print(found, name.value[:3].decode())' /dev/mapper/$N-a
dmsetup remove $N-a",
    );
    assert_eq!(out, "1 dm-\n");
}

/// udev's rule makes a link as soon as the device is bound.
#[test]
fn a_name_is_a_node_also_where_udev_has_made_a_link() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-x --notable
minor=$(dmsetup info -c --noheadings -o minor $N-x)
ln -s ../loop$minor /dev/mapper/$N-x
dmsetup load $N-x --table '0 2048 zero'
dmsetup resume $N-x
test -b /dev/mapper/$N-x -a ! -L /dev/mapper/$N-x
test $(ls -A /dev/mapper | grep -c $N) = 1
dmsetup remove $N-x
test ! -e /dev/mapper/$N-x",
    );
}

/// udev watches the device's own node for writes, and programs lock that one against udev.
#[test]
fn a_name_is_the_device_s_own_node() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-x --table '0 2048 zero'
own=/dev/loop$(dmsetup info -c --noheadings -o minor $N-x)
for name in x y; do
    test $name = x || dmsetup rename $N-x $N-y
    if test $(stat -c %d /dev/mapper) = $(stat -c %d $own); then
        test $(stat -c %i /dev/mapper/$N-$name) = $(stat -c %i $own)
        test $(stat -c %h $own) = 2
    fi
done
dmsetup remove $N-y
test ! -e /dev/mapper/$N-y",
    );
}

/// Linux accepts these tables, and the first request never ends.
#[test]
fn a_table_that_lies_on_its_own_device_is_refused() {
    let Some(mapper) = Mapper::new() else { return };
    let script = "
truncate --size 8M low.img
low=$(losetup --find --show low.img)
trap 'losetup --detach $low' EXIT
dmsetup create $N-a --table \"0 8192 linear $low 0\"
dmsetup create $N-b --table \"0 8192 linear /dev/mapper/$N-a 0\"
fails dmsetup reload $N-a --table \"0 8192 linear /dev/mapper/$N-a 0\"
fails dmsetup reload $N-a --table \"0 8192 linear /dev/mapper/$N-b 0\"
loop=$(losetup --find --show /dev/mapper/$N-b)
fails dmsetup reload $N-a --table \"0 8192 linear $loop 0\"
losetup --detach $loop
mkfs.ext2 -q /dev/mapper/$N-b
mkdir on
mount /dev/mapper/$N-b on
truncate --size 1M on/file
loop=$(losetup --find --show on/file)
fails dmsetup reload $N-a --table \"0 2048 linear $loop 0\"
losetup --detach $loop
until umount on 2> /dev/null; do sleep 0.1; done
dmsetup create $N-c --notable
dmsetup load $N-c --table \"0 8192 linear /dev/mapper/$N-b 0\"
fails dmsetup load $N-a --table \"0 8192 linear /dev/mapper/$N-b 0\"
dmsetup reload $N-b --table \"0 8192 linear $low 0\"
dmsetup resume $N-b
dmsetup reload $N-a --table \"0 8192 linear /dev/mapper/$N-b 0\"
dmsetup resume $N-a
dd if=/dev/mapper/$N-a of=/dev/null bs=4096 count=1 status=none
dmsetup remove $N-a
dmsetup remove $N-c
dmsetup remove $N-b";
    mapper.script(script);
    let told = mapper.log();
    assert_eq!(told.matches("cannot lie on its own device").count(), 5, "{told}");
}

#[test]
fn a_caller_that_waits_for_an_event_is_answered_across_a_rename_and_a_removal() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-a --table '0 8 zero'
timeout 60 dmsetup wait $N-a &
sleep 1
dmsetup rename $N-a $N-b
wait $!
timeout 60 dmsetup wait $N-b 1 &
sleep 1
dmsetup remove $N-b
wait $!",
    );
}

#[test]
fn a_deferred_removal_that_is_cancelled_is_not_done() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
dmsetup create $N-a --table '0 8 zero'
exec 9< /dev/mapper/$N-a
dmsetup remove --deferred $N-a
dmsetup message $N-a 0 @cancel_deferred_remove
exec 9<&-
sleep 1
dmsetup info $N-a > info
dmsetup remove $N-a",
    );
}
