//! Back ends that are killed while something is half done.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

use crate::dm::mapper::Mapper;
use crate::support::tool;
use crate::support::tools::{PATIENCE, wait_until};

/// Kills a process at once.
fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

/// The mapper's table servers, in the order of their beginning.
pub(super) fn servers(mapper: &Mapper) -> Vec<Pid> {
    started(mapper, "table-server")
}

/// The processes that a back end has started for this, in the order of their beginning.
pub(super) fn started(mapper: &Mapper, what: &str) -> Vec<Pid> {
    let begins = format!("@underseal\0dm\0{what}\0");
    let log = mapper.folder().join("log");
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let process = entry.ok()?.path();
        let pid: i32 = process.file_name()?.to_str()?.parse().ok()?;
        let words = fs::read(process.join("cmdline")).ok()?;
        let is_server = words.starts_with(begins.as_bytes());
        let is_ours = is_server && fs::read_link(process.join("fd/2")).is_ok_and(|to| to == log);
        let stat = fs::read_to_string(process.join("stat")).ok()?;
        let began: u64 = stat.rsplit(')').next()?.split_ascii_whitespace().nth(19)?.parse().ok()?;
        is_ours.then_some((began, pid))
    });
    let mut pids: Vec<_> = pids.collect();
    pids.sort_unstable();
    pids.into_iter().map(|(_, pid)| Pid::from_raw(pid).unwrap()).collect()
}

/// A process whose system calls strace disturbs.
pub(super) struct Disturbed {
    strace: Child,
    /// The calls, as strace prints them: each as it begins, before a delay, and as it ends.
    calls: NamedTempFile,
}

impl Disturbed {
    /// `how` as in strace's `inject`; of all threads, or of the first one.
    pub(super) fn new(pid: Pid, call: &str, how: &str, all: bool) -> Self {
        let calls = NamedTempFile::new().unwrap();
        let mut traced = tool("strace");
        traced.args(all.then_some("-f")).arg("-o").arg(calls.path()).args(["-e", &format!("trace={call}")]);
        traced.args(["-e", &format!("inject={call}:{how}"), "-p", &pid.as_raw_nonzero().to_string()]);
        let mut traced = traced.stderr(Stdio::piped()).spawn().unwrap();
        // strace writes a line when it is attached.
        let mut attached = [0; 16];
        traced.stderr.as_mut().unwrap().read_exact(&mut attached).unwrap();
        Self { strace: traced, calls }
    }

    /// Waits until the process is in the call that is delayed.
    fn wait_for_the_call(&self, call: &str) {
        let begins = format!("{call}(");
        wait_until(call, PATIENCE, || self.calls().contains(&begins));
    }

    /// Waits until the delay is over, or the process.
    fn wait_for_its_end(&mut self) {
        let ended = || self.calls().contains("DELAYED") || self.strace.try_wait().unwrap().is_some();
        wait_until("the delayed call ends", PATIENCE, ended);
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.calls.path()).unwrap()
    }
}

impl Drop for Disturbed {
    fn drop(&mut self) {
        // At SIGTERM strace waits for processes that it traces, and may do so for ever.
        let _ = self.strace.kill();
        let _ = self.strace.wait();
    }
}

/// Kills the back end while a table server answers this command late.
fn kill_before_the_answer(mapper: &Mapper, command: &[&str]) {
    let back_end = mapper.back_end().expect("a back end");
    let server = servers(mapper)[0];
    let mut late = Disturbed::new(server, "sendmsg", "delay_enter=2000000:when=1", false);
    let mut asks = mapper.command(command).stderr(Stdio::null()).spawn().unwrap();
    late.wait_for_the_call("sendmsg");
    kill(back_end);
    assert!(!asks.wait().unwrap().success(), "the back end had answered");
    late.wait_for_its_end();
}

#[test]
fn a_server_whose_answer_nobody_hears_serves_on_and_the_order_counts() {
    let Some(mapper) = Mapper::new() else { return };
    let [old, new] = [format!("{:064}", 7), format!("{:064}", 8)];
    mapper.script(&format!(
        "
truncate --size 20M disk.img
dmsetup create $N-a --table \"0 4096 crypt aes-xts-plain64 {old} 0 $(losetup --find --show disk.img) 0\"
dmsetup suspend $N-a"
    ));
    let name = mapper.name("a");
    kill_before_the_answer(&mapper, &["dmsetup", "message", &name, "0", &format!("key set {new}")]);
    let out = mapper.script("dmsetup table --showkeys $N-a | cut --delimiter ' ' --fields 5");
    assert_eq!(out.trim(), new, "{}", mapper.log());
    kill_before_the_answer(&mapper, &["dmsetup", "resume", &name]);
    let out = mapper.script(
        "
echo here | timeout 20 dd of=/dev/mapper/$N-a bs=4096 conv=sync,fsync status=none
dmsetup info --columns --noheadings -o attr $N-a
low=$(dmsetup deps -o blkdevname $N-a | sed 's/.*(//; s/)//')
dmsetup remove $N-a
losetup --detach /dev/$low",
    );
    assert_eq!(out, "L--w\n", "{}", mapper.log());
}

/// Kills the back end while the server that is to take a mount does so late: when it asks for its
/// turn, or when it has it.
fn kill_before_the_mount_is_taken(mapper: &Mapper, call: &str, next: bool) {
    let back_end = mapper.back_end().expect("a back end");
    let taker = *servers(mapper).last().unwrap();
    let mut late = Disturbed::new(taker, call, "delay_enter=5000000:when=1", true);
    let name = mapper.name("v");
    let mut asks = mapper.command(&["dmsetup", "resume", &name]).stderr(Stdio::null()).spawn().unwrap();
    late.wait_for_the_call(call);
    kill(back_end);
    assert!(!asks.wait().unwrap().success(), "the back end had answered");
    if next {
        // The device is listed once its server answers, which is late.
        mapper.script(
            "tries=100
until dmsetup info $N-v > info 2>&1; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done",
        );
    }
    late.wait_for_its_end();
}

#[test]
fn a_device_has_one_server_however_slow_the_next_one_is() {
    let Some(mapper) = Mapper::new() else { return };
    for (call, next) in [("clone3", false), ("flock", false), ("clone3", true), ("flock", true)] {
        mapper.script(
            "
truncate --size 20M A.img B.img
dmsetup create $N-v --table \"0 40000 linear $(losetup --find --show A.img) 0\"
dmsetup load $N-v --table \"0 40000 linear $(losetup --find --show B.img) 0\"",
        );
        kill_before_the_mount_is_taken(&mapper, call, next);
        wait_until("one of two servers is left", PATIENCE, || servers(&mapper).len() == 1);
        let out = mapper.script(
            "
for i in $(seq 100 140); do
    echo W$i | timeout 10 dd of=/dev/mapper/$N-v bs=512 seek=$i conv=sync oflag=direct status=none
done
low=$(dmsetup deps -o blkdevname $N-v | sed 's/.*(//; s/)//')
dmsetup remove --retry $N-v
blockdev --flushbufs /dev/$low
count() { grep --text --only-matching 'W1[0-9]*' $1 | wc -l; }
echo $(count A.img) $(count B.img)
for l in $(losetup --list --noheadings --output NAME,BACK-FILE | grep \"$PWD/[AB].img\" | cut -d' ' -f1); do
    losetup --detach $l
done
rm A.img B.img",
        );
        let whose = if call == "flock" { "41 0\n" } else { "0 41\n" };
        assert_eq!(out, whose, "{call} {next}: {}", mapper.log());
    }
}

/// A table that was loaded and is lost: its resume must not succeed.
#[test]
fn a_resume_after_the_loaded_table_was_lost_is_refused() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
truncate --size 20M A.img B.img
losetup --find --show A.img > A; losetup --find --show B.img > B
dmsetup create $N-v --table \"0 40000 linear $(cat A) 0\"
dmsetup suspend $N-v
dmsetup load $N-v --table \"0 40000 linear $(cat B) 0\"",
    );
    kill(mapper.back_end().expect("a back end"));
    let out = mapper.script(
        "
fails dmsetup resume $N-v 2> said
grep -o 'No such device or address' said
dmsetup info --columns --noheadings -o attr $N-v
dmsetup load $N-v --table \"0 40000 linear $(cat B) 0\"
dmsetup resume $N-v
echo here | dd of=/dev/mapper/$N-v bs=512 conv=sync oflag=direct status=none
head -c 4 B.img; echo
dmsetup load $N-v --table \"0 40000 linear $(cat A) 0\"",
    );
    assert_eq!(out, "No such device or address\nL-sw\nhere\n", "{}", mapper.log());
    kill(mapper.back_end().expect("a back end"));
    let out = mapper.script(
        "
fails dmsetup resume $N-v 2> said
dmsetup clear $N-v
dmsetup resume $N-v
dmsetup remove $N-v
losetup --detach $(cat A); losetup --detach $(cat B)",
    );
    assert_eq!(out, "", "{}", mapper.log());
}

/// A slow disk keeps a server from its back ends, too.
#[test]
fn a_device_whose_server_is_busy_is_waited_for() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script("dmsetup create $N-a --table '0 4096 zero'");
    let [server] = servers(&mapper)[..] else { panic!("{}", mapper.log()) };
    let late = Disturbed::new(server, "recvmsg", "delay_enter=9000000:when=1", false);
    kill(mapper.back_end().expect("a back end"));
    let out = mapper.script(
        "
dmsetup ls
test -b /dev/mapper/$N-a
fails dmsetup create $N-a --table '0 8 zero' 2> /dev/null
tries=150; until dmsetup info $N-a > info 2> /dev/null; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
test $(timeout 10 blockdev --getsz /dev/mapper/$N-a) = 4096
timeout 10 dd if=/dev/mapper/$N-a bs=4096 count=1 iflag=direct status=none | wc -c
dmsetup remove $N-a",
    );
    assert_eq!(out, "No devices found\n4096\n", "{}", mapper.log());
    drop(late);
}

/// Kills the back end at its first system call of this kind while it does what a command asks for.
fn kill_at(mapper: &Mapper, call: &str, command: &str) {
    let back_end = mapper.back_end().expect("a back end");
    let _killed = Disturbed::new(back_end, call, "signal=KILL:when=1", true);
    mapper.script(&format!("fails {command} 2> /dev/null"));
    // Callers see the back end's end a moment before its socket is gone.
    let what = format!("{call}: {command}: it is killed");
    wait_until(&what, PATIENCE, || mapper.back_end() != Some(back_end));
}

#[test]
fn a_device_that_was_being_made_or_removed_leaves_no_server_that_has_the_disk() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script("truncate --size 20M disk.img; losetup --find --show disk.img > loop");
    let table = "--table \"0 40000 linear $(cat loop) 0\"";
    let cases = [
        ("create", "/^rename"),
        ("create", "mknodat,/^link"),
        ("create", "/^symlink"),
        ("remove", "/^unlink"),
    ];
    for (act, call) in cases {
        if act == "create" {
            mapper.script("dmsetup ls > devices");
            kill_at(&mapper, call, &format!("dmsetup create $N-a {table}"));
        } else {
            mapper.script(&format!("dmsetup create $N-a {table}"));
            kill_at(&mapper, call, "dmsetup remove $N-a");
        }
        let out = mapper.script(&format!(
            "
if dmsetup info $N-a > info 2> /dev/null; then test -b /dev/mapper/$N-a; dmsetup remove $N-a; fi
dmsetup create $N-b {table}
ls /dev/mapper | grep $N | sed s/$N//
dmsetup remove $N-b
ls /dev/disk/by-id 2> /dev/null | grep $N || true"
        ));
        assert_eq!(out, "-b\n", "{act} {call}: {}", mapper.log());
        assert_eq!(servers(&mapper).len(), 0, "{act} {call}: {}", mapper.log());
    }
    mapper.script("losetup --detach $(cat loop)");
}

#[test]
fn a_device_that_was_getting_another_name_has_one() {
    let Some(mapper) = Mapper::new() else { return };
    for call in ["/^rename", "mknodat,/^link", "/^symlink", "/^unlink"] {
        mapper.script("dmsetup create $N-old --table '0 8 zero'");
        kill_at(&mapper, call, "dmsetup rename $N-old $N-new");
        let out = mapper.script(
            "
name=$(dmsetup ls | cut --fields 1 | grep $N)
ls /dev/mapper | grep $N | grep --invert-match --line-regexp $name || true
ls /dev/disk/by-id | grep $N | grep --invert-match --line-regexp dm-name-$name || true
test $(blockdev --getsz /dev/mapper/$name) = 8
dmsetup remove $name",
        );
        assert_eq!(out, "", "{call}: {}", mapper.log());
    }
}

#[test]
fn a_loop_device_whose_table_was_given_up_goes_when_it_is_unmounted() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script(
        "
truncate --size 20M disk.img
losetup --find --show disk.img > loop
dmsetup create $N-a --table \"0 40000 linear $(cat loop) 0\"
mkfs.ext4 -q /dev/mapper/$N-a
mkdir mounted; mount /dev/mapper/$N-a mounted
stat --dereference --format %Lr /dev/mapper/$N-a > number",
    );
    let back_end = mapper.back_end().expect("a back end");
    servers(&mapper).into_iter().chain([back_end]).for_each(kill);
    mapper.script(
        "
test \"$(dmsetup ls)\" = 'No devices found'
bound=/sys/block/loop$(cat number)/loop
test -e $bound
umount mounted
tries=50; while test -e $bound; do sleep 0.1; tries=$((tries - 1)); test $tries -gt 0; done
losetup --detach $(cat loop)",
    );
}

/// A device in use is removed after its last close, whichever back end there is by then.
#[test]
fn a_deferred_removal_is_done_by_the_next_back_end_unless_it_was_cancelled() {
    let Some(mapper) = Mapper::new() else { return };
    mapper.script("for name in x y; do dmsetup create $N-$name --table '0 2048 zero'; done");
    let open = |name| File::open(format!("/dev/mapper/{}", mapper.name(name))).unwrap();
    let users = [open("x"), open("y")];
    mapper.script("for name in x y; do dmsetup remove --deferred $N-$name; done");
    mapper.script("dmsetup message $N-y 0 @cancel_deferred_remove");
    kill(mapper.back_end().unwrap());
    mapper.script("dmsetup info $N-x | grep 'ACTIVE (DEFERRED REMOVE)'; dmsetup info $N-y | grep 'ACTIVE$'");
    drop(users);
    wait_until("the removal", PATIENCE, || !mapper.try_script("dmsetup info $N-x").status.success());
    assert!(!fs::exists(format!("/dev/mapper/{}", mapper.name("x"))).unwrap());
    mapper.script("dmsetup remove $N-y");
}
