//! Volumes that cryptsetup makes, opens, suspends, resizes and closes.

use crate::dm::mapper::Mapper;
use crate::support::{output, tool};

/// Makes a LUKS2 volume in disk.img, quickly, whose passphrase is `pass`.
const FORMAT: &str = "
truncate --size 32M disk.img
printf pass | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 disk.img -
";

#[test]
fn a_volume_is_formatted_opened_mounted_and_closed() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(FORMAT);
    mapper.script(
        "
printf pass | cryptsetup open disk.img $N-x -
mkfs.ext4 -q /dev/mapper/$N-x
mkdir mnt
mount /dev/mapper/$N-x mnt
echo hello > mnt/file
code=0; cryptsetup close $N-x || code=$?
test $code = 5
grep -q ' mnt\\| '$PWD/mnt /proc/mounts",
    );
    // The devices outlive the command, and its caller.
    let status = mapper.script("cryptsetup status $N-x || true");
    assert!(status.contains("is active and is in use.") && status.contains("LUKS2"), "{status}");
    mapper.script("umount mnt; cryptsetup close $N-x; test ! -e /dev/mapper/$N-x");
    let again = mapper.script(
        "
printf pass | cryptsetup open disk.img $N-x -
fsck.ext4 -fn /dev/mapper/$N-x >&2
mount -o ro /dev/mapper/$N-x mnt
cat mnt/file
umount mnt
cryptsetup close $N-x
dmsetup ls",
    );
    assert!(again.contains("hello") && again.contains("No devices found"), "{again}");
    // The image holds a LUKS volume that `underseal read` decrypts as well.
    let pass = mapper.scratch.file("pass", b"pass");
    let mut read = tool(env!("CARGO_BIN_EXE_underseal"));
    read.arg("read").arg(mapper.scratch.path("disk.img")).arg("--passphrase-file").arg(pass);
    let plain = output(&mut read);
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    assert!(plain.stdout.windows(6).any(|bytes| bytes == b"hello\n"));
}

#[test]
fn a_wrong_passphrase_leaves_nothing() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(FORMAT);
    let out = mapper.script(
        "
code=0; printf wrong | cryptsetup open disk.img $N-x - || code=$?
echo $code; dmsetup ls; losetup --list --noheadings --output BACK-FILE",
    );
    assert!(out.starts_with("2\nNo devices found"), "{out}");
    assert!(!out.contains(mapper.scratch.folder().to_str().unwrap()), "{out}");
}

#[test]
fn a_suspended_volume_has_no_key_and_goes_on_with_it() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(FORMAT);
    let shown = mapper.script(
        "
printf pass | cryptsetup open disk.img $N-x -
printf before | dd of=/dev/mapper/$N-x oflag=direct bs=4096 conv=sync,notrunc status=none
key=$(dmsetup table --showkeys $N-x)
cryptsetup luksSuspend $N-x
test \"$(dmsetup table --showkeys $N-x)\" != \"$key\"
dmsetup info $N-x | grep State
dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 of=/dev/null status=none &
sleep 1
kill -0 $! && echo waits
printf pass | cryptsetup luksResume $N-x
wait $!
test \"$(dmsetup table --showkeys $N-x)\" = \"$key\"
dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | tr -d '\\000'
cryptsetup close $N-x",
    );
    assert!(shown.contains("SUSPENDED\nwaits\nbefore"), "{shown}");
}

#[test]
fn a_volume_under_the_null_cipher_is_suspended_and_resumed() {
    let Some(mapper) = Mapper::new() else { return };
    let shown = mapper.script(
        "
truncate --size 32M disk.img
printf pass | cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 \\
    --cipher null disk.img -
printf pass | cryptsetup open disk.img $N-x -
cryptsetup luksSuspend $N-x
printf pass | cryptsetup luksResume $N-x
dmsetup info $N-x | grep State
cryptsetup close $N-x",
    );
    assert!(shown.contains("ACTIVE"), "{shown}");
}

#[test]
fn a_resized_volume_is_the_same_one() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(FORMAT);
    let sizes = mapper.script(
        "
printf pass | cryptsetup open disk.img $N-x -
blockdev --getsz /dev/mapper/$N-x
printf here | dd of=/dev/mapper/$N-x oflag=direct bs=4096 conv=sync,notrunc status=none
printf pass | cryptsetup resize --size 8192 $N-x
blockdev --getsz /dev/mapper/$N-x
printf pass | cryptsetup resize $N-x
blockdev --getsz /dev/mapper/$N-x
dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | tr -d '\\000'
cryptsetup close $N-x",
    );
    assert_eq!(sizes, "32768\n8192\n32768\nhere");
}

#[test]
fn the_open_volume_of_a_device_is_found_when_that_is_reencrypted() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(FORMAT);
    let script = "
printf pass | cryptsetup open disk.img $N-x -
lower=$(cryptsetup status $N-x | sed -n 's/^ *device: *//p')
number=$(lsblk --noheadings --nodeps --output MAJ:MIN $lower | tr -d ' ')
held=$(ls /sys/dev/block/$number/holders)
cat $(dirname $S)/holders/$number/$held/dm/name | sed 's/.*-//'
printf kept | dd of=/dev/mapper/$N-x oflag=direct bs=4096 conv=sync,notrunc status=none
printf pass | cryptsetup reencrypt --hotzone-size 4M $lower - | sed -n 's/.*\\(Auto-detected\\).*/\\1/p'
dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | tr -d '\\000'; echo
cryptsetup close $N-x
test ! -e $(dirname $S)/holders/$number";
    let socket = mapper.folder().join("control");
    let script = format!("S={}{script}", socket.display());
    for out in [mapper.script(&script), mapper.supervised(&script)] {
        assert_eq!(out, "x\nAuto-detected\nkept\n", "{}", mapper.log());
    }
}

#[test]
fn a_volume_whose_reencryption_failed_is_known_and_closed_with_its_helpers() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
truncate --size 32M disk.img
low=$(losetup --find --show disk.img)
trap 'losetup --detach $low' EXIT
dmsetup create $N-low --table \"0 65536 linear $low 0\"
fast='--pbkdf pbkdf2 --pbkdf-force-iterations 1000'
printf pass | cryptsetup luksFormat --batch-mode --offset 8192 $fast /dev/mapper/$N-low -
printf pass | cryptsetup open /dev/mapper/$N-low $N-x -
printf kept | dd of=/dev/mapper/$N-x oflag=direct bs=4096 conv=sync,notrunc status=none
dmsetup create $N-bad --table '0 65536 error'
dmsetup load $N-low --table \"0 62976 linear $low 0
62976 8 delay $low 62976 0 /dev/mapper/$N-bad 62976 0
62984 2552 linear $low 62984\"
dmsetup resume $N-low
printf pass > pass
fails cryptsetup reencrypt --batch-mode --active-name $N-x --hotzone-size 8M $fast --key-file pass 2> /dev/null
cryptsetup status $N-x | grep reencryption:
dmsetup ls | grep -c .
cryptsetup close $N-x
dmsetup ls | cut -f1 | sed \"s/$N-//\" | sort
dmsetup load $N-low --table \"0 65536 linear $low 0\"
dmsetup resume $N-low
# Opening it repairs what the error has left.
cryptsetup open --key-file pass /dev/mapper/$N-low $N-x
dd if=/dev/mapper/$N-x iflag=direct bs=4096 count=1 status=none | tr -d '\\000'; echo
cryptsetup close $N-x
dmsetup remove $N-low
dmsetup remove $N-bad",
    );
    assert_eq!(out, "  reencryption:  in-progress\n5\nbad\nlow\nkept\n", "{}", mapper.log());
}
