//! How a mount ends.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::fuse::mounted::{Mounted, client, is_mounted, unmount_stale};
use crate::support::mounts::{apart_with, cannot_fuse, cannot_mount, holders, skip};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::Volume;
use crate::support::{Scratch, output, run};

fn volume(scratch: &Scratch) -> Volume {
    Volume::luks2(scratch, "32M")
}

#[test]
fn a_signal_unmounts_and_what_was_written_is_there() {
    if let Some(reason) = cannot_fuse() {
        return skip("signal", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mounted = Mounted::start(&scratch, &volume, &[]);
    let path = mounted.path().to_owned();
    std::fs::write(&path, b"not lost").unwrap();
    let log = mounted.stop();
    assert!(log.contains("stopped"), "{log}");
    assert_eq!(std::fs::read(&path).unwrap(), b"", "the file below is as it was");
    assert_eq!(volume.read(0, 8), b"not lost");
}

#[test]
fn a_mount_that_another_namespace_has_too_is_told_of() {
    if let Some(reason) = cannot_mount() {
        return skip("another namespace", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mut mounted = Mounted::start(&scratch, &volume, &[]);
    let path = mounted.path().to_owned();
    // A container that starts meanwhile begins with copies of all mounts.
    let mut container = apart_with(&path).args(["sleep", "600"]).spawn().unwrap();
    let has_it = || holders(&path).contains("sleep: it is mounted in its mount namespace");
    wait_until("it runs", PATIENCE, has_it);
    mounted.signal(Signal::TERM);
    let status = mounted.wait();
    assert!(has_it());
    kill_process(Pid::from_child(&container), Signal::TERM).unwrap();
    container.wait().unwrap();
    let log = mounted.log();
    assert!(
        status.code() == Some(1) && log.contains("was still mounted in another mount namespace"),
        "{log}"
    );
    assert!(!is_mounted(&path));
}

#[test]
fn unmounting_ends_the_server() {
    if let Some(reason) = cannot_fuse() {
        return skip("unmounting", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mut mounted = Mounted::start(&scratch, &volume, &[]);
    std::fs::write(mounted.path(), b"not lost").unwrap();
    run(client("fusermount3").arg("-u").arg(mounted.path()));
    mounted.end_well();
    assert_eq!(volume.read(0, 8), b"not lost");
}

#[test]
fn a_connection_that_is_aborted_is_an_error_and_leaves_no_mount() {
    if let Some(reason) = cannot_mount() {
        return skip("an aborted connection", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mut mounted = Mounted::start(&scratch, &volume, &[]);
    let path = mounted.path().to_owned();
    let file = File::open(&path).unwrap();
    // `umount --force` aborts the connection, and leaves a mount that is in use.
    let refused = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::FORCE).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::BUSY);
    let status = mounted.wait();
    let log = mounted.log();
    assert!(status.code() == Some(1) && log.contains("was aborted, and it is unmounted now"), "{log}");
    assert!(!is_mounted(&path));
    drop(file);
}

#[test]
fn who_has_it_open_when_it_stops_may_finish() {
    if let Some(reason) = cannot_fuse() {
        return skip("in use", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mut mounted = Mounted::start(&scratch, &volume, &[]);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    mounted.signal(Signal::TERM);
    wait_until("it is out of sight", PATIENCE, || !mounted.is_mounted());
    file.write_all_at(b"not lost", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let log = mounted.end_well();
    assert!(log.contains("is in use"), "{log}");
    assert_eq!(volume.read(0, 8), b"not lost");
}

#[test]
fn a_second_signal_waits_for_nobody() {
    if let Some(reason) = cannot_fuse() {
        return skip("second signal", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let mut mounted = Mounted::start(&scratch, &volume, &[]);
    let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
    mounted.signal(Signal::TERM);
    wait_until("it is out of sight", PATIENCE, || !mounted.is_mounted());
    mounted.signal(Signal::TERM);
    assert_eq!(mounted.wait().code(), Some(1), "{}", mounted.log());
    let refused = file.write_at(&[0; 4096], 0).unwrap_err();
    assert!(matches!(refused.raw_os_error(), Some(103 | 107)), "aborted or not connected: {refused}");
    drop(file);
    // The image is free again.
    Mounted::start(&scratch, &volume, &[]).stop();
}

#[test]
fn what_was_acknowledged_survives_a_killed_server() {
    if let Some(reason) = cannot_fuse() {
        return skip("killed", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    for round in 0..3_u8 {
        let mounted = Mounted::start(&scratch, &volume, &[]);
        let path = mounted.path().to_owned();
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (path, acknowledged) = (&path, &acknowledged);
            let writer = scope.spawn(move || {
                let file = File::options().write(true).open(path).unwrap();
                for number in 0.. {
                    let at = number % 4000 * 4096;
                    if file.write_all_at(&record(round, number), at).is_err() {
                        return;
                    }
                    acknowledged.store(number + 1, Ordering::SeqCst);
                }
            });
            let enough = 500 * (u64::from(round) + 1);
            wait_until("something is written", PATIENCE, || acknowledged.load(Ordering::SeqCst) > enough);
            mounted.kill();
            writer.join().unwrap();
        });
        // A request that arrives while the kernel ends the connection fails with ECONNABORTED,
        // later ones with ENOTCONN.
        wait_until("the mount is not connected", PATIENCE, || {
            let stale = File::open(&path).unwrap_err().raw_os_error();
            assert!(matches!(stale, Some(103 | 107)), "aborted or not connected: {stale:?}");
            stale == Some(107)
        });
        assert!(is_mounted(&path));
        let written = acknowledged.into_inner();
        let seen = volume.read_all();
        // The oldest may have been written over by one that was under way.
        for number in (written + 1).saturating_sub(4000)..written {
            let at = usize::try_from(number % 4000 * 4096).unwrap();
            let kept = seen[at..at + 4096] == record(round, number)[..];
            assert!(kept, "round {round}: write {number} of {written} is lost");
        }
        // The next server clears what this one left.
        let next = Mounted::start_again(&scratch, &volume, &path);
        assert!(next.log().contains("it was unmounted"), "{}", next.log());
        next.stop();
    }
}

fn record(round: u8, number: u64) -> Vec<u8> {
    [&[round][..], &number.to_le_bytes(), &[7; 4087]].concat()
}

#[test]
fn another_programs_dead_mount_is_left_alone() {
    if let Some(reason) = cannot_fuse() {
        return skip("another's", reason);
    }
    let scratch = Scratch::new();
    let volume = volume(&scratch);
    let folder = scratch.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let mut other = crate::support::tool("nbdfuse");
    let other =
        other.arg(folder.join("nbd")).args(["[", "nbdkit", "--exit-with-parent", "memory", "1M", "]"]);
    let mut other = other.spawn().unwrap();
    wait_until("nbdfuse has mounted", PATIENCE, || is_mounted(&folder));
    other.kill().unwrap();
    assert_eq!(other.wait().unwrap().signal(), Some(9));
    let ran = output(volume.command("open").arg("--fuse").arg(&folder));
    let text = String::from_utf8_lossy(&ran.stderr).into_owned();
    let still_there = is_mounted(&folder);
    unmount_stale(&folder);
    assert!(still_there, "{text}");
    assert_eq!(ran.status.code(), Some(4), "{text}");
    assert!(text.contains("the server of what is mounted there is gone"), "{text}");
    assert!(text.contains("try: `fusermount3 -u"), "{text}");
}
