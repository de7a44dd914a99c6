//! The block device is what the volume is.

use crate::support::scratch::assert_same;
use crate::support::volume::Volume;
use crate::support::{Scratch, bytes};
use crate::ublk::boots::Boot;
use crate::ublk::tasks::script;

pub(crate) fn a_volume_is_a_disk_to_the_kernel(boot: &mut Boot) {
    let volume = boot.volume;
    let small = Volume::at(boot.scratch, "small").format("32M", &["--sector-size", "512"]);
    let other = Scratch::new();
    let (damaged, bad) = Volume::damaged(&other, &bytes(7, 4 << 20));
    boot.task("small", &script(&small, SMALL));
    boot.task("damaged", &script(&damaged, &format!("BAD={}\n{DAMAGED}", bad / 4096)));
    boot.task("filesystem", &script(volume, FILESYSTEM));
    boot.task("freed", &script(volume, FREED));
    boot.task("operator", &script(volume, OPERATOR));
    boot.task("resize", &script(volume, RESIZE));
    boot.task("user", &script(volume, USER));
    boot.task("load", &script(volume, LOAD));
    boot.check(move || drop(other));
}

pub(crate) fn its_processors_have_queues_of_their_own(boot: &mut Boot) {
    let volume = boot.volume;
    boot.task("shape", &script(volume, SHAPE));
    boot.task("both", &script(volume, ON_BOTH));
}

/// Sizes, alignment, queues, the write cache, nothing written where only reading was asked for;
/// memory that stays.
const SHAPE: &str = "
serve /run/image disk --ublk-queues 3
queue=/sys/block/ublkb0/queue
[ $(blockdev --getsize64 /dev/underseal/disk) = $((32 << 20)) ]
[ $(cat $queue/logical_block_size) = 4096 ]
[ $(ls /sys/block/ublkb0/mq | wc -l) -ge 2 ]
[ \"$(cat $queue/write_cache)\" = 'write back' ]
[ $(cat $queue/fua) = 1 ]
[ $(cat $queue/discard_max_bytes) = 0 ]
[ $(awk '/VmLck/ { print $2 }' /proc/$server/status) -gt 10000 ]
[ $(awk '/VmRSS/ { print $2 }' /proc/$server/status) -lt 400000 ]
# PF_MEMALLOC_NOIO, of all its threads
for task in /proc/$server/task/*; do
    case $(cat $task/comm) in ublk*) [ $(( $(awk '{ print $9 }' $task/stat) & 0x80000 )) != 0 ];; esac
done
stop
serve /run/image disk --read-only --allow-discards
[ $(blockdev --getro /dev/ublkb0) = 1 ]
refused 'Operation not permitted' sh -c 'dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1 || echo try: another; false'
stop
";

/// Blocks of 512 bytes where the volume's sectors are.
const SMALL: &str = "
serve /run/image small
[ $(cat /sys/block/ublkb0/queue/logical_block_size) = 512 ]
verify /dev/ublkb0 --bsrange=512-9k --size=1M
stop
";

/// A sector that is not as it was written: an error, until it is written again.
const DAMAGED: &str = "
serve /run/image damaged --metrics 127.0.0.1:9533
ip link set lo up 2> /dev/null || true
if dd if=/dev/ublkb0 of=/dev/null bs=4k skip=$BAD count=1 iflag=direct 2> dd.err; then exit 1; fi
grep 'Invalid or incomplete multibyte' dd.err
dd if=/dev/ublkb0 of=/dev/null bs=4k count=$BAD iflag=direct
\"$OURS\" status damaged | grep \"$((BAD * 4096))\"
bash -c 'exec 3<> /dev/tcp/127.0.0.1/9533; printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3' > metrics
grep 'mismatches_total{volume=\"damaged\"} [1-9]' metrics
status=0
\"$OURS\" check damaged > found || status=$?
[ $status = 1 ]
[ $(wc -l < found) = 1 ]
grep \"bytes $((BAD * 4096)) to\" found
dd if=/dev/zero of=/dev/ublkb0 bs=4k seek=$BAD count=1 oflag=direct
cmp -n 4k -i $((BAD * 4096)):0 /dev/ublkb0 /dev/zero
\"$OURS\" check damaged | grep 'as it was written'
stop
";

/// Both processors have requests in flight, through a queue of each, also where workers encrypt
/// them.
const ON_BOTH: &str = "
for policy in inline workers; do
    serve /run/image load --policy $policy
    verify /dev/ublkb0 --numjobs=2 --size=2M --offset_increment=8M --iodepth=64
    stop
done
";

const LOAD: &str = "
serve /run/image load
verify /dev/ublkb0
verify /dev/ublkb0 --fsync=32 --sync=dsync --size=1M
# What is larger than one request, and through the page cache.
verify /dev/ublkb0 --bsrange=1M-4M --iodepth=4 --size=8M
verify /dev/ublkb0 --direct=0 --ioengine=psync --end_fsync=1
\"$OURS\" status load | grep -q 'served at  /dev/ublkb0 /dev/underseal/load'
stop
";

const FILESYSTEM: &str = "
serve /run/image files
mkfs.ext4 -q /dev/underseal/files
mount /dev/underseal/files /mnt
cp -r /usr/share/doc/util-linux /usr/bin/bash /mnt/
sync -f /mnt
umount /mnt
stop
serve /run/image files --ublk-id 7
[ -b /dev/ublkb7 ]
e2fsck -fn /dev/ublkb7
mount -o ro /dev/ublkb7 /mnt
diff -r /usr/share/doc/util-linux /mnt/util-linux
cmp /usr/bin/bash /mnt/bash
umount /mnt
stop
";

/// Discards and zeroes.
const FREED: &str = "
serve /run/image freed --allow-discards
head -c 8M /dev/urandom > /run/noise
dd if=/run/noise of=/dev/ublkb0 bs=1M oflag=direct status=none
before=$(stat -c %b /run/image)
blkdiscard -o 1M -l 4M /dev/ublkb0
after=$(stat -c %b /run/image)
[ $((before - after)) = 8192 ]
blkdiscard -z -o 5M -l 2M /dev/ublkb0
cmp -n 2M -i 5M:0 /dev/ublkb0 /dev/zero
cmp -n 1M -i 7M:7M /dev/ublkb0 /run/noise
cmp -n 1M /dev/ublkb0 /run/noise
stop
rm /run/noise
";

/// The operator's commands.
const OPERATOR: &str = "
serve /run/image op --metrics localhost:9533
ip link set lo up 2> /dev/null || true
\"$OURS\" policy op same-cpu
\"$OURS\" suspend op
dd if=/dev/zero of=/dev/ublkb0 bs=4k count=1 oflag=direct &
writer=$!
sleep 1
kill -0 $writer
\"$OURS\" resume op
wait $writer
\"$OURS\" status op | grep 'policy     same-cpu'
\"$OURS\" close op
ends 0
";

/// A user other than root, where the machine's rules (udev's, elsewhere) allow it.
const USER: &str = "
chmod 666 /dev/ublk-control
mkdir /run/user
cp $PASS /run/user/pass
cp $OURS /run/user/ours
mv /run/image /run/user/image
chown -R 1000 /run/user
setpriv --reuid 1000 --regid 1000 --clear-groups env UNDERSEAL_RUNTIME_DIR=/run/user/run \\
    /run/user/ours open /run/user/image --ublk --ublk-queues 1 --passphrase-file /run/user/pass -vv > user.out 2> user.err &
server=$!
name=user
until chown 1000 /dev/ublkc0; do kill -0 $server; sleep 0.1; done 2> /dev/null
until grep 'is open: /dev/ublkb0$' user.out; do kill -0 $server || { cat user.err; exit 1; }; sleep 0.1; done
verify /dev/ublkb0
stop
mv /run/user/image /run/image
chmod 600 /dev/ublk-control
refused 'this user may not use' setpriv --reuid 1000 --regid 1000 --clear-groups \\
    /run/user/ours open /run/user/image --ublk --passphrase-file /run/user/pass
rm -r /run/user
";

/// The size changes at once from Linux 6.16 on. On older kernels `resize` tells the operator, and
/// the next server's disk has the new size.
const RESIZE: &str = "
serve /run/image disk
size() { blockdev --getsize64 /dev/underseal/disk; }
before=$(size)
truncate -s +16M /run/image
$OURS resize disk > said 2>&1
after=$(size)
if grep 'when the volume is opened again' said; then
    [ $after = $before ]
else
    [ $after = $((before + (16 << 20))) ]
    dd if=/dev/zero of=/dev/underseal/disk bs=4k count=1 seek=$((before / 4096)) oflag=direct status=none
    $OURS resize disk --size $before
    [ $(size) = $before ]
fi
stop
serve /run/image disk
[ $(size) = $((before + (16 << 20))) ]
stop
";

pub(crate) fn the_machines_own_dm_crypt_reads_what_we_wrote_and_we_what_it_wrote(boot: &mut Boot) {
    let scratch = boot.scratch;
    let plain = bytes(7, 6 << 20);
    scratch.file("plain", &plain);
    boot.task("both", &script(boot.volume, BOTH));
    let image = Volume { image: scratch.path("back"), ..boot.volume.clone() };
    boot.check(move || {
        assert_same(&image.read(0, 6 << 20), &[&plain[..1 << 20], &plain[..5 << 20]].concat(), "in the end");
    });
}

const BOTH: &str = "
serve /run/image both
dd if=plain of=/dev/ublkb0 bs=64k oflag=direct status=none
stop
loop=$(losetup --find --show /run/image)
cryptsetup open --key-file $PASS $loop crypt
cmp -n 6M plain /dev/mapper/crypt
dd if=plain of=/dev/mapper/crypt bs=64k seek=1M count=5M iflag=count_bytes oflag=direct,seek_bytes status=none
mkfs.ext4 -q -E offset=$((8 << 20)) /dev/mapper/crypt 7M
cryptsetup close crypt
losetup --detach $loop
serve /run/image both
cmp -n 5M -i 1M:0 /dev/ublkb0 plain
cmp -n 1M /dev/ublkb0 plain
loop=$(losetup --find --show --offset $((8 << 20)) --read-only /dev/ublkb0)
e2fsck -fn $loop
losetup --detach $loop
stop
cp /run/image back
";
