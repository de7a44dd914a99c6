//! Files that grow long, which takes long: an encrypted file has no holes.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::fs::{StatVfs, statvfs};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::{run, tool};

/// A lower folder on an ext4 of its own, of which only what is written takes room.
struct Ext4 {
    folder: Folder,
    below: Mount,
    _device: Loop,
}

impl Ext4 {
    fn new(size: u64) -> Self {
        let mut folder = Folder::new();
        let device = Loop::attach(&folder.scratch.sparse("disk", size), &[]);
        let lazy = "lazy_itable_init=1,lazy_journal_init=1";
        run(tool("mkfs.ext4").args(["-q", "-m", "0", "-E", lazy]).arg(device.device()));
        let below = Mount::new(device.device(), &folder.scratch.path("below"), &["-o", "noinit_itable"]);
        folder.lower = below.directory().join("lower");
        fs::create_dir(&folder.lower).unwrap();
        Self { folder, below, _device: device }
    }

    /// How much is left, when all that was written has its place.
    fn room(&self) -> StatVfs {
        run(tool("sync").arg("-f").arg(self.below.directory()));
        statvfs(self.below.directory()).unwrap()
    }
}

/// Asserts that the free room is the same, except for a few blocks of the lower filesystem's
/// metadata.
#[track_caller]
fn assert_same_room(now: &StatVfs, before: &StatVfs) {
    assert!(now.f_bfree + 8 >= before.f_bfree, "{} blocks are free, {} were", now.f_bfree, before.f_bfree);
}

#[test]
fn growth_that_does_not_fit_gives_the_room_back() {
    let test = "growth_that_does_not_fit_gives_the_room_back";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    let disk = Ext4::new(64 << 20);
    let folder = &disk.folder;
    for options in ["", "ecryptfs_xattr_metadata"] {
        let mount = folder.mount(options);
        fs::write(folder.at("file"), b"ab").unwrap();
        File::open(folder.at("file")).unwrap().sync_all().unwrap();
        let before = disk.room();
        let file = File::options().write(true).open(folder.at("file")).unwrap();
        let refused = file.set_len(2 << 30).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(fs::read(folder.at("file")).unwrap(), b"ab");
        assert_same_room(&disk.room(), &before);
        // Blocks that were reserved by fallocate(2) are freed by a truncate.
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 8 << 20).unwrap();
        assert!(disk.room().f_bfree + 1000 < before.f_bfree);
        file.set_len(2).unwrap();
        assert_same_room(&disk.room(), &before);
        fs::write(folder.at("next"), vec![1; 100_000]).unwrap();
        drop(file);
        mount.unmount_after_errors();
    }
}

/// Lets a file grow in another process, to far more than is written when a test looks at it.
struct Growing(Child);

impl Growing {
    fn start(folder: &Folder, command: &str) -> Self {
        let mut shell = Command::new("sh");
        // The shell becomes the program.
        let command = format!("exec {command} {}", folder.at("file").display());
        let child = shell.args(["-c", &command]).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    #[track_caller]
    fn ends(&mut self) {
        wait_until("whoever let it grow has ended", PATIENCE, || self.0.try_wait().unwrap().is_some());
    }
}

#[test]
fn a_program_that_is_killed_stops_what_it_let_grow() {
    let test = "a_program_that_is_killed_stops_what_it_let_grow";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    if unable(test) {
        return;
    }
    let disk = Ext4::new(8 << 30);
    let folder = &disk.folder;
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"ab").unwrap();
    let before = disk.room();
    let below: PathBuf = folder.below("file");
    let has_begun = || fs::metadata(&below).unwrap().len() > 64 << 20;
    for (command, signal) in [
        ("truncate -s 6G", Signal::KILL),
        ("truncate -s 6G", Signal::TERM),
        ("fallocate -l 6G", Signal::INT),
        ("dd if=/dev/zero bs=1 count=1 conv=notrunc seek=6000000000 of=/dev/stdout 1<>", Signal::KILL),
    ] {
        let mut growing = Growing::start(folder, command);
        wait_until("it grows", PATIENCE, has_begun);
        // stat(2) does not wait for the growth.
        assert_eq!(fs::metadata(folder.at("file")).unwrap().len(), 2, "{command}");
        // The growth has a thread of its own.
        fs::write(folder.at("other"), b"x").unwrap();
        growing.signal(signal);
        growing.ends();
        // The length is checked first, since a file that kept growing would have gigabytes to read.
        assert_eq!(fs::metadata(&below).unwrap().len(), 8192 + 4096, "{command}");
        assert_eq!(fs::read(folder.at("file")).unwrap(), b"ab", "{command}");
    }
    fs::remove_file(folder.at("other")).unwrap();
    assert_same_room(&disk.room(), &before);
    mount.unmount();
}

#[test]
fn a_signal_that_ends_nothing_does_not_stop_growth() {
    if unable("a_signal_that_ends_nothing_does_not_stop_growth") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"ab").unwrap();
    // A program with a timer, as a profiler's.
    let script = "import os, signal, sys\n\
        signal.signal(signal.SIGALRM, lambda *_: None)\n\
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n\
        os.truncate(sys.argv[1], 200 << 20)\n\
        signal.setitimer(signal.ITIMER_REAL, 0)\n";
    run(tool("/usr/bin/python3").args(["-c", script]).arg(folder.at("file")));
    assert_eq!(fs::metadata(folder.at("file")).unwrap().len(), 200 << 20);
    mount.unmount();
}

#[test]
fn a_single_thread_serves_others_while_files_grow_and_are_synced() {
    let test = "a_single_thread_serves_others_while_files_grow_and_are_synced";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    if unable(test) {
        return;
    }
    let disk = Ext4::new(8 << 30);
    let folder = &disk.folder;
    let mount = folder.mount_on_threads("", 1);
    fs::write(folder.at("file"), b"ab").unwrap();
    let below: PathBuf = folder.below("file");
    let mut growing = Growing::start(folder, "truncate -s 6G");
    wait_until("it grows", PATIENCE, || fs::metadata(&below).unwrap().len() > 64 << 20);
    // Requests to other files do not wait, and reads of the file have turns between those of the
    // growth.
    let mut reading = Growing::start(folder, "grep -q zzz");
    let mut served = 0;
    while served < 100 {
        let other = folder.at(&format!("other{served}"));
        fs::write(&other, b"x").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"x");
        File::open(&other).unwrap().sync_all().unwrap();
        // A busy disk takes its time for each.
        if growing.0.try_wait().unwrap().is_some() {
            break;
        }
        served += 1;
    }
    assert!(served > 2, "all but {served} came after the growth");
    reading.ends();
    assert!(growing.0.try_wait().unwrap().is_none(), "a read waited for all of the growth");
    growing.signal(Signal::KILL);
    growing.ends();
    mount.unmount();
}
