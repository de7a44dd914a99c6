//! A server that is killed, and the next one.

use crate::ublk::boots::Boot;
use crate::ublk::tasks::script;

pub(crate) fn a_device_goes_on_with_the_next_server_and_its_users_see_no_error(boot: &mut Boot) {
    let volume = boot.volume;
    boot.scratch.file("half.py", include_bytes!("half.py"));
    boot.task("killed", &script(volume, KILLED));
    boot.task("mounted", &script(volume, MOUNTED));
    boot.task("others", &script(volume, OTHERS));
    boot.task("swap", &script(volume, SWAP));
    boot.task("stopped", &script(volume, STOPPED));
    boot.task("unfinished", &script(volume, &format!("steps='begun mapped 0'{UNFINISHED}")));
}

/// A device has no more queues than processors.
pub(crate) fn a_recovery_that_another_process_finished_for_one_queue_or_all_is_finished(boot: &mut Boot) {
    boot.scratch.file("half.py", include_bytes!("half.py"));
    boot.task("unfinished", &script(boot.volume, &format!("steps='1 2'{UNFINISHED}")));
}

pub(crate) fn users_of_a_device_that_does_not_go_on_get_errors(boot: &mut Boot) {
    boot.task("held", &script(boot.volume, HELD));
}

/// A process that recovers the device dies at each of these steps: begun, mapped, or with some of
/// the queues. With all queues it ends before the device is live again.
const UNFINISHED: &str = "
for where in $steps; do
    serve /run/image disk --ublk-queues 2
    kill -9 $server
    python3 ./half.py 0 $where
    dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none &
    reader=$!
    serve /run/image disk
    wait $reader
    verify /dev/ublkb0 --size=1M
    stop
done
no_errors
if dmesg | grep -E 'WARNING:|BUG:|Oops:'; then exit 1; fi
";

/// A process has the driver's node open, so that neither the next server nor the old one can
/// resume.
const HELD: &str = "
serve /run/image disk --hand-over
python3 -c '
import os, time
while True:
    try: held = os.open(\"/dev/ublkc0\", os.O_RDWR); break
    except OSError: pass
open(\"held\", \"w\").close()
time.sleep(600)
' &
holder=$!
if unshare --mount sh -euxc \"mount --bind /dev/null /dev/ublkc0; exec $OURS upgrade disk\"; then exit 1; fi
[ -e held ]
if dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct 2> dd.err; then exit 1; fi
grep 'Input/output error' dd.err
ends 1
grep '/dev/ublkb0 does not go on for 60 s .*: it is stopped, and its users get errors' disk.err
kill $holder
";

/// Again and again, under a load that is verified.
const KILLED: &str = "
serve /run/image disk
load /dev/ublkb0
for round in 1 2 3 4; do
    sleep 0.$((round * 2))
    kill -9 $server
    serve /run/image disk
done
loaded
verify /dev/ublkb0
stop
no_errors
";

/// The device has a filesystem, which stays mounted.
const MOUNTED: &str = "
serve /run/image disk
mkfs.ext4 -q /dev/ublkb0
mount /dev/ublkb0 /mnt
cp -r /usr/share/doc/util-linux /mnt/ &
copy=$!
sleep 0.3
kill -9 $server
sleep 0.5
serve /run/image disk --ublk-id 0
wait $copy
diff -r /usr/share/doc/util-linux /mnt/util-linux
umount /mnt
e2fsck -fn /dev/ublkb0
stop
no_errors
";

/// A device belongs to the volume that it was made for.
const OTHERS: &str = "
serve /run/image disk
cp --sparse=always /run/image /run/other
refused 'is in use: process' $OURS open /run/other --ublk --ublk-id 0 --passphrase-file $PASS
kill -9 $server
refused 'was made for another volume' $OURS open /run/other --ublk --ublk-id 0 --passphrase-file $PASS
refused 'it could be written to' $OURS open /run/image --ublk --name disk --read-only --passphrase-file $PASS
# Under the same name, but another volume: another device.
serve /run/other disk
[ -e /dev/ublkb1 ]
kill $server
wait $server
# The link led to the other; the number leads back.
serve /run/image disk --ublk-id 0
stop
rm /run/other
";

/// Pages go out to it and come back, also when its server is killed meanwhile.
const SWAP: &str = "
serve /run/image disk
mkswap /dev/ublkb0
swapon /dev/ublkb0
mkdir -p /run/group
mount -t cgroup2 none /run/group
echo +memory > /run/group/cgroup.subtree_control
mkdir -p /run/group/small
# As a limit that is waited for: beyond a hard one, pages that are still on their way out are no excuse.
echo 14M > /run/group/small/memory.high
(
    sh -c 'echo $$ > /run/group/small/cgroup.procs; exec python3 -c \"
import os, time
pages = bytearray(os.urandom(4096)) * 5000
for at in range(0, len(pages), 4096): pages[at:at+8] = at.to_bytes(8)
open(\\\"written\\\", \\\"w\\\").close()
for at in range(0, len(pages), 4096): assert pages[at:at+8] == at.to_bytes(8)
\"'
) &
user=$!
until [ -e written ]; do kill -0 $user; sleep 0.1; done
[ $(awk '/ublkb0/ { print $4 }' /proc/swaps) -gt 1000 ]
kill -9 $server
serve /run/image disk
wait $user
swapoff /dev/ublkb0
stop
umount /run/group
";

/// A server that is stopped while its device is in use says so, and waits.
const STOPPED: &str = "
serve /run/image disk
mkfs.ext4 -q /dev/ublkb0
mount /dev/ublkb0 /mnt
kill $server
until grep 'is in use (mounted' disk.err; do sleep 0.1; done
echo still here > /mnt/file
umount /mnt
ends 0
grep 'is gone' disk.err
# Told twice, it goes at once. The device waits for the next server, and so does its user.
serve /run/image disk
mount /dev/ublkb0 /mnt
kill $server
sleep 0.5
kill $server
wait $server || true
cat /mnt/file > read &
reader=$!
serve /run/image disk
wait $reader
[ \"$(cat read)\" = 'still here' ]
umount /mnt
stop
";
