//! LVM's volumes and the partitions of an image, by lvm and kpartx as they are.

use crate::dm::mapper::Mapper;
use crate::support::mounts::skip;
use crate::support::{output, tool};

fn is_missing(program: &str) -> bool {
    let found = output(tool("sh").args(["-c", &format!("command -v {program}")])).status.success();
    if !found {
        skip("volumes by other programs", &format!("there is no {program}"));
    }
    !found
}

#[test]
fn lvm_makes_linear_and_striped_volumes_and_grows_one() {
    let Some(mapper) = Mapper::new() else { return };
    if is_missing("lvm") {
        return;
    }
    let out = mapper.script(
        "
truncate --size 64M one.img two.img
one=$(losetup --find --show one.img)
trap 'losetup --detach $one' EXIT
two=$(losetup --find --show two.img)
trap 'rm -rf /dev/$N; losetup --detach $one $two' EXIT
# No other disk of this machine is looked at.
cat > lvm.conf <<END
devices { filter = [ \"a|^$one\\$|\", \"a|^$two\\$|\", \"r|.*|\" ] use_devicesfile = 0 }
activation { udev_sync = 0 udev_rules = 0 monitoring = 0 }
backup { backup = 0 archive = 0 }
global { locking_dir = \"$PWD/lock\" }
END
export LVM_SYSTEM_DIR=$PWD
exec 2> errors
pvcreate $one $two > /dev/null
vgcreate $N $one $two > /dev/null
lvcreate --yes --size 20M --name lin $N > /dev/null
lvcreate --yes --size 16M --stripes 2 --name str $N > /dev/null
lin=/dev/$N/lin; str=/dev/$N/str
mkfs.ext4 -q $lin; mkfs.ext4 -q $str
vgchange --activate n $N > /dev/null
dmsetup ls
vgchange --activate y $N > /dev/null
fsck.ext4 -fn $str > /dev/null
lvextend --size 28M $N/lin > /dev/null
resize2fs $lin > /dev/null
fsck.ext4 -fn $lin > /dev/null
dmsetup table | sed 's/.*: //; s/ [0-9]*:[0-9]* / DEV /g' | sort
vgchange --activate n $N > /dev/null
vgremove --force $N > /dev/null
dmsetup ls",
    );
    let expected = "No devices found\n0 32768 striped 2 128 DEV 43008 DEV 2048\n0 40960 linear DEV 2048\n\
                    40960 16384 linear DEV 59392\nNo devices found\n";
    assert_eq!(out, expected, "{}", mapper.log());
}

#[test]
fn kpartx_maps_the_partitions_of_a_disk() {
    let Some(mapper) = Mapper::new() else { return };
    if is_missing("kpartx") {
        return;
    }
    let out = mapper.script(
        "
truncate --size 40M disk.img
python3 -c '
import struct
disk = open(\"disk.img\", \"r+b\")
disk.seek(446)
for first, count in ((2048, 30000), (32768, 40000)):
    disk.write(struct.pack(\"<B3sB3sII\", 0, b\"\", 0x83, b\"\", first, count))
disk.seek(510)
disk.write(b\"\\x55\\xaa\")'
disk=$(losetup --find --show disk.img)
trap 'losetup --detach $disk' EXIT
kpartx -a -p -$N- $disk
dmsetup table | sed 's/.*: //; s/ [0-9]*:[0-9]* / DEV /' | sort
part=/dev/mapper/$(basename $disk)-$N-2
mkfs.ext4 -q $part
fsck.ext4 -fn $part > /dev/null 2>&1
kpartx -d -p -$N- $disk
dmsetup ls",
    );
    assert_eq!(out, "0 30000 linear DEV 2048\n0 40000 linear DEV 32768\nNo devices found\n");
}
