//! Lower devices and servers that do not answer, and processes apart that are killed.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::dm::killed::{Disturbed, servers, started};
use crate::dm::mapper::Mapper;
use crate::support::tools::within;
use crate::support::volume::Volume;

#[test]
fn a_lower_device_that_hangs_holds_up_no_other() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.scratch.file("hangs.py", include_bytes!("hangs.py"));
    let out = mapper.script(
        "
mkdir mnt; truncate --size 1M disk.img
python3 hangs.py mnt & server=$!
tries=100; until test -e mnt/file; do sleep 0.05; tries=$((tries - 1)); test $tries -gt 0; done
hung=$(losetup --find --show mnt/file); well=$(losetup --find --show disk.img)
dmsetup create $N-c --table '0 8 zero'
kill -STOP $server
create() { timeout 60 dmsetup create $N-$1 --table \"0 8 linear $2 0\"; }
(if create a $hung 2> a.err; then echo made; else echo no; fi) > a &
(if create p $PWD/mnt/absent 2> p.err; then echo made; else echo no; fi) > p &
first=$!
sleep 1
# Others go on meanwhile.
begun=$(date +%s)
create b $well
dmsetup info $N-b > info; dmsetup ls > devices; dmsetup info > infos
dmsetup remove $N-b; dmsetup remove $N-c
test $(($(date +%s) - begun)) -lt 8
wait $first
tries=300; until test -s a; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
cat a p; grep -o 'timed out' a.err p.err
# It hangs still: the next one need not wait for that.
begun=$(date +%s)
fails create a $hung 2> again.err
test $(($(date +%s) - begun)) -lt 5
kill -CONT $server
tries=100; until create a $hung 2> a.err; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
dmsetup remove $N-a
losetup --detach $hung $well; tries=50; until umount mnt; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done",
    );
    assert_eq!(out, "no\nno\na.err:timed out\np.err:timed out\n", "{}", mapper.log());
    let log = mapper.log();
    for said in ["hangs, for 20 s", "hangs, for 10 s", "an earlier step has not ended", "no longer hangs"] {
        assert!(log.contains(said), "{said}: {log}");
    }
}

/// Each close of a descriptor of a file asks the file's server to flush. A new back end gets one
/// descriptor of each table on the file, and needs one of them.
#[test]
fn a_file_that_hangs_holds_up_no_other_device_of_a_new_back_end() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.scratch.file("hangs.py", include_bytes!("hangs.py"));
    mapper.script(
        "
mkdir mnt; truncate --size 1M disk.img
python3 hangs.py mnt > /dev/null 2>&1 & echo $! > server
tries=100; until test -e mnt/file; do sleep 0.05; tries=$((tries - 1)); test $tries -gt 0; done
losetup --find --show mnt/file > hung; losetup --find --show disk.img > well
dmsetup create $N-a --table \"0 8 linear $(cat hung) 0\"
dmsetup create $N-b --table \"0 8 linear $(cat hung) 8\"",
    );
    let back_end = mapper.back_end().unwrap();
    kill_process(back_end, Signal::KILL).unwrap();
    let is_gone = || test_kill_process(back_end).is_err();
    assert!(within(Duration::from_secs(30), is_gone), "the back end stays");
    kill_process(server(&mapper), Signal::STOP).unwrap();
    let out = mapper.try_script(
        "
create() { timeout 90 dmsetup create $N-c --table \"0 8 linear $(cat well) 0\"; }
if create && dmsetup remove $N-c; then echo made; fi
kill -CONT $(cat server)
tries=100; until dmsetup remove $N-a; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
tries=100; until dmsetup remove $N-b; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
losetup --detach $(cat hung) $(cat well)
tries=50; until umount mnt; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done",
    );
    let _ = kill_process(server(&mapper), Signal::CONT);
    let said = String::from_utf8_lossy(&out.stdout);
    assert_eq!(said, "made\n", "{}{}", String::from_utf8_lossy(&out.stderr), mapper.log());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// The server of the file that hangs.
fn server(mapper: &Mapper) -> Pid {
    let pid = std::fs::read_to_string(mapper.scratch.path("server")).unwrap();
    Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
}

#[test]
fn a_table_server_that_hangs_holds_up_its_own_device() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
truncate --size 4M disk.img
dmsetup create $N-a --table \"0 8192 linear $(losetup --find --show disk.img) 0\"",
    );
    let server = servers(&mapper)[0].as_raw_nonzero();
    let out = mapper.script(&format!(
        "
kill -STOP {server}
# What the kernel has of the device cannot be written now.
dd if=/dev/zero of=/dev/mapper/$N-a bs=64k count=16 conv=notrunc status=none & writes=$!
sleep 1
begun=$(date +%s)
dmsetup create $N-b --table '0 8 zero'
dmsetup ls | wc --lines
dmsetup info --columns --noheadings -o name > names; wc --lines < names
dmsetup remove $N-b
test $(($(date +%s) - begun)) -lt 10
(dmsetup remove $N-a || true) 2> err & removes=$!
dmsetup create $N-c --table '0 8 zero'; dmsetup remove $N-c
kill -CONT {server}
wait $writes
wait $removes
dmsetup info $N-a > info 2> err && dmsetup remove $N-a
losetup --detach $(losetup --list --noheadings --output NAME,BACK-FILE | grep $PWD/disk.img | cut -d' ' -f1)
cmp --bytes 1048576 disk.img /dev/zero"
    ));
    assert_eq!(out, "2\n2\n", "{}", mapper.log());
}

/// The process apart is killed once at each of its system calls of a kind.
#[test]
fn a_device_is_made_and_removed_once_though_processes_apart_are_killed() {
    let Some(mapper) = Mapper::new() else { return };
    mapper
        .script("truncate --size 20M disk.img; losetup --find --show disk.img > loop; dmsetup ls > devices");
    let table = "--table \"0 40000 linear $(cat loop) 0\"";
    let mut kills = 0;
    for (call, most) in [("ioctl", 6), ("flock", 3), ("/^open", 12), ("/^unlink", 3), ("sendmsg", 5)] {
        for when in 1..=most {
            mapper.script(&format!("dmsetup create $N-w {table}; dmsetup remove $N-w"));
            let [apart] = started(&mapper, "syscall-helpers")[..] else { panic!("{}", mapper.log()) };
            let disturbed = Disturbed::new(apart, call, &format!("signal=KILL:when={when}"), true);
            let out = mapper.script(&format!(
                "
dmsetup create $N-a {table}
dmsetup ls | cut --fields 1 | sed s/$N//
echo here | dd of=/dev/mapper/$N-a bs=4096 conv=sync,fsync status=none
dmsetup remove $N-a
ls /dev/mapper | grep $N || true
grep --no-messages \"$PWD\" /sys/block/loop*/loop/backing_file | grep --invert-match disk.img || true
ls {} | grep '^[0-9]' || true",
                mapper.folder().display()
            ));
            assert_eq!(out, "-a\n", "{call} {when}: {}", mapper.log());
            assert_eq!(servers(&mapper).len(), 0, "{call} {when}: {}", mapper.log());
            drop(disturbed);
            kills += usize::from(!started(&mapper, "syscall-helpers").contains(&apart));
        }
    }
    assert!(kills > 10, "{kills} were killed");
    mapper.script("losetup --detach $(cat loop)");
}

/// A program asks all loop devices for their files before it changes an image in place. Those that
/// answered are removed while it waits for those that hang.
#[test]
fn a_question_to_devices_that_hang_keeps_no_other_open() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.scratch.file("hangs.py", include_bytes!("hangs.py"));
    let volume = Volume::luks2(&mapper.scratch, "17M");
    let reencrypt = format!(
        "{} reencrypt -q --init-only {} --passphrase-file {}",
        env!("CARGO_BIN_EXE_underseal"),
        volume.image.display(),
        volume.passphrase.display()
    );
    let out = mapper.script(&format!(
        "
mkdir mnt
python3 hangs.py mnt > /dev/null 2>&1 & server=$!
tries=100; until test -e mnt/file; do sleep 0.05; tries=$((tries - 1)); test $tries -gt 0; done
one=$(losetup --find --show mnt/file); two=$(losetup --find --show mnt/file)
for n in 1 2 3 4 5 6 7 8; do dmsetup create $N-$n --table '0 8 zero'; done
kill -STOP $server
timeout 60 {reencrypt} > reencrypt.log 2>&1 & asking=$!
waits() {{ ls -l /proc/[0-9]*/fd 2> /dev/null | grep -q \" $1$\"; }}
tries=300; until waits $one && waits $two; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
again() {{ sleep 0.1; dmsetup remove $1; }}
remove() {{ dmsetup remove $1 || again $1 || again $1; }}
for n in 1 2 3 4 5 6 7 8; do remove $N-$n 2> err || {{ echo $n; cat err; break; }}; done
kill -CONT $server
wait $asking || cat reencrypt.log
for device in $one $two; do losetup --detach $device; done
tries=50; until umount mnt; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done"
    ));
    assert_eq!(out, "", "{}", mapper.log());
}

/// The kernel asks a loop device's file for its attributes for each question about the device.
#[test]
fn a_suspended_device_keeps_no_question_to_loop_devices_waiting() {
    let Some(mapper) = Mapper::new() else { return };
    let out = mapper.script(
        "
truncate --size 20M disk.img
low=$(losetup --find --show disk.img)
dmsetup create $N-q --table \"0 4096 linear $low 0\"
node=/dev/loop$((0x$(stat -L -c %T /dev/mapper/$N-q)))
losetup --noheadings $node > before
dmsetup suspend $N-q
dd if=/dev/zero of=/dev/mapper/$N-q bs=4096 count=1 oflag=direct status=none &
writer=$!
# The kernel remembers attributes for a second at least.
sleep 1.5
timeout 10 losetup --noheadings $node > while; echo $?
dmsetup resume $N-q
wait $writer
cmp before while
dmsetup remove $N-q
losetup --detach $low",
    );
    assert_eq!(out, "0\n", "{}", mapper.log());
}
