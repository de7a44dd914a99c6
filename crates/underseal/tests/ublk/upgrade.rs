//! A block device whose server is replaced while programs use it.

use std::fs;
use std::time::Duration;

use crate::ublk::boots::Boot;
use crate::ublk::tasks::script;

pub(crate) fn a_device_stays_while_new_processes_take_over(boot: &mut Boot) {
    let scratch = boot.scratch;
    scratch.file("writer.py", include_bytes!("writer.py"));
    boot.task("verified", &script(boot.volume, VERIFIED));
    boot.check(|| {
        let pause = fs::read_to_string(scratch.path("pause")).unwrap();
        eprintln!("in the guest, through 4 processes: {}", pause.trim());
    });
}

pub(crate) fn a_device_of_the_next_process_is_what_it_was(boot: &mut Boot) {
    let volume = boot.volume;
    boot.task("mounted", &script(volume, MOUNTED));
    boot.task("afterwards", &script(volume, AFTERWARDS));
    boot.task("refused", &script(volume, REFUSED));
}

pub(crate) fn a_device_goes_on_when_nobody_takes_it(boot: &mut Boot) {
    let volume = boot.volume;
    boot.task("failing", &script(volume, FAILING));
    boot.task_within("killed", Duration::from_secs(600), &script(volume, KILLED));
    boot.task("told", &script(volume, TOLD));
}

/// Deep queues that are verified, and one writer that looks at the clock: it never waits for a
/// second.
const VERIFIED: &str = "
serve /run/image disk --hand-over --pid-file /run/pid
rm -f ends
python3 ./writer.py /dev/ublkb0 ends > writer.out &
writer=$!
load /dev/ublkb0 --offset=1M
for round in 1 2 3; do
    sleep 1
    upgrade
    [ $(cat /run/pid) = $server ]
    \"$OURS\" status disk | grep -q 'served at  /dev/ublkb0 /dev/underseal/disk'
done
touch ends
loaded
wait $writer
cat writer.out
mv writer.out pause
# The longest wait of a write, in milliseconds, on a machine in software.
[ $(sed 's/.*longest \\([0-9]*\\) ms.*/\\1/' pause) -lt 8000 ]
close
no_errors
";

/// A filesystem is written to through two of them.
const MOUNTED: &str = "
serve /run/image disk --hand-over
mkfs.ext4 -q /dev/ublkb0
mount /dev/ublkb0 /mnt
cp -r /usr/share/doc/util-linux /mnt/ &
copy=$!
upgrade
cp /usr/bin/bash /mnt/
sync -f /mnt
echo 3 > /proc/sys/vm/drop_caches
upgrade
wait $copy
diff -r /usr/share/doc/util-linux /mnt/util-linux
cmp /usr/bin/bash /mnt/bash
umount /mnt
e2fsck -fn /dev/ublkb0
close
no_errors
";

/// A device of the new server works as one of the first: its size changes, and its server may be
/// killed or signalled, also while the device is in use.
const AFTERWARDS: &str = "
serve /run/image disk --hand-over
upgrade
kill -9 $server
serve /run/image disk --hand-over
upgrade
truncate -s +16M /run/image
before=$(blockdev --getsize64 /dev/ublkb0)
$OURS resize disk > said 2>&1
upgrade
if grep 'when the volume is opened again' said; then
    [ $(blockdev --getsize64 /dev/ublkb0) = $before ]
else
    [ $(blockdev --getsize64 /dev/ublkb0) = $((before + (16 << 20))) ]
fi
verify /dev/ublkb0
kill $server
gone
serve /run/image disk --hand-over --ublk-id 5 --read-only
name=disk upgrade
[ $(blockdev --getro /dev/ublkb5) = 1 ]
[ $(readlink /dev/underseal/disk) = ../ublkb5 ]
exec 3< /dev/underseal/disk
\"$OURS\" close disk
exec 3<&-
gone
serve /run/image disk --hand-over
upgrade
mkfs.ext4 -q /dev/ublkb0
mount /dev/ublkb0 /mnt
kill $server
sleep 0.5
echo still here > /mnt/file
umount /mnt
gone
";

/// A server that cannot be replaced refuses before it pauses anything.
const REFUSED: &str = "
serve /run/image disk
refused 'without --hand-over' $OURS upgrade disk
stop
serve /run/image disk --hand-over
\"$OURS\" suspend disk
refused 'it is suspended' $OURS upgrade disk
\"$OURS\" resume disk
upgrade
close
chmod 666 /dev/ublk-control
mkdir /run/user
cp $PASS /run/user/pass
cp $OURS /run/user/ours
mv /run/image /run/user/image
chown -R 1000 /run/user
user='setpriv --reuid 1000 --regid 1000 --clear-groups env UNDERSEAL_RUNTIME_DIR=/run/user/run /run/user/ours'
$user open /run/user/image --ublk --ublk-queues 1 --hand-over --passphrase-file /run/user/pass \\
    > user.out 2> user.err &
server=$! name=image
until chown 1000 /dev/ublkc0; do kill -0 $server; sleep 0.1; done 2> /dev/null
until grep 'is open: /dev/ublkb0$' user.out; do kill -0 $server || { cat user.err; exit 1; }; sleep 0.1; done
refused 'ends with its server' $user upgrade image
verify /dev/ublkb0
stop
mv /run/user/image /run/image
chmod 600 /dev/ublk-control
rm -r /run/user
";

/// New servers that fail at each step: the old one resumes, and finishes the requests in flight.
const FAILING: &str = "
serve /run/image disk --hand-over --ublk-queues 3
load /dev/ublkb0
first=$server
serves() {
    [ $(pid) = $first ]
    dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none
}
fails() {
    if unshare --mount sh -euxc \"$1; exec $OURS upgrade disk\" > fails.out 2>&1; then return 1; fi
    cat fails.out
    serves
}
fails 'mount --bind /dev/null /dev/ublk-control'
grep ublk fails.out
# It has recovered the device by then, and cannot open it; twice, since that leaves the driver in a state of its own.
for again in 1 2; do
    fails 'mount --bind /dev/null /dev/ublkc0'
    grep -i 'ublk' fails.out
done
# It can open it, and cannot go on.
fails 'mount --bind /dev/zero /dev/ublkc0'
# It hangs there, and is stopped, by whoever does that: it ends, and the old one has the device back.
unshare --mount sh -euxc \"
    mkdir -p /run/dev
    mount -t tmpfs dev /run/dev
    cp -a /dev/ublk-control /dev/null /run/dev/
    mount --move /run/dev /dev
    exec $OURS upgrade disk -vv\" > fails.out 2>&1 &
upgrading=$!
{ set +x; } 2> /dev/null
until grep '/dev/ublkc0: No such file' fails.out; do kill -0 $upgrading || { cat fails.out; exit 1; }; sleep 0.1; done
set -x
child=$(cat /proc/$upgrading/task/$upgrading/children)
kill -STOP $child
serves
status=0
wait $upgrading || status=$?
[ $status = 137 ]
serves
loaded
upgrade
close
no_errors
";

/// Kills the new process twice and the old one once, in each of two thirds of an upgrade's time, at
/// random moments. The task `failing` and half.py of `recovery` meet the known states one by one;
/// this task looks for unknown ones.
const KILLED: &str = "
left() { ls -l /proc/[0-9]*/exe 2> /dev/null | grep -qF \"$OURS\"; }
serve /run/image disk --hand-over --ublk-queues 3
load /dev/ublkb0
seed=$(date +%N)
for round in $(seq 1 6); do
    { set +x; } 2> /dev/null
    \"$OURS\" upgrade disk > upgrade.out 2>&1 &
    upgrading=$!
    sleep $(awk -v seed=$seed$round -v part=$(((round - 1) / 3)) 'BEGIN { srand(seed); print 0.2 + (part + rand()) * 0.7 }')
    victim=$(cat /proc/$upgrading/task/$upgrading/children 2> /dev/null || true)
    [ $((round % 3)) != 0 ] || victim=$server
    kill -9 $victim 2> /dev/null || true
    wait $upgrading || true
    set -x
    # The process that serves it, as soon as one does. A new one, if none is left.
    now=
    { set +x; } 2> /dev/null
    until now=$(pid 2> /dev/null) || ! left; do sleep 0.1; done
    set -x
    if [ \"$now\" ]; then
        server=$now
    else
        serve /run/image disk --hand-over --ublk-queues 3
    fi
    dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none
done
loaded
verify /dev/ublkb0
close
no_errors
";

/// The old process is signalled during the upgrade: one of the two processes ends.
const TOLD: &str = "
for wait in 0.4 0.6 0.8; do
    serve /run/image disk --hand-over --ublk-queues 3
    \"$OURS\" upgrade disk > upgrade.out 2>&1 &
    upgrading=$!
    sleep $wait
    kill $server || true
    if wait $upgrading; then
        server=$(pid)
        verify /dev/ublkb0 --size=1M
        close
    else
        cat upgrade.out
        gone
    fi
done
";
