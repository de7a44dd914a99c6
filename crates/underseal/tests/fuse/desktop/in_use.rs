//! The end of a server whose file system is in use, whose session ends, whose disk is full, or
//! whose loop device another file has by then.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Desktop, HONEST, end, is_there, unable};
use crate::fuse::mounted::{client, is_mounted};
use crate::support::mounts::Mount;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::{bytes, run};

/// How long the server and its helper run after udisks was asked to force an unmount, at most.
const FORCED: Duration = Duration::from_secs(6);

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The processes that a process has started, with their command lines.
fn children(parent: u32) -> Vec<(Pid, String)> {
    let read = |path: &Path, what: &str| fs::read(path.join(what)).unwrap_or_default();
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let of_parent = processes.filter_map(|path| {
        let stat = String::from_utf8_lossy(&read(&path, "stat")).into_owned();
        let of = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()?;
        let pid = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
        (of == parent).then(|| (pid, String::from_utf8_lossy(&read(&path, "cmdline")).replace('\0', " ")))
    });
    of_parent.collect()
}

#[test]
fn the_end_of_a_session_takes_the_file_system_down_first() {
    if unable("in_use::the_end_of_a_session_takes_the_file_system_down_first") {
        return;
    }
    let desktop = Desktop::new(HONEST);
    let copied = bytes(1, 3_000_000);
    for ending in [Signal::TERM, Signal::HUP, Signal::INT] {
        let child = desktop.open(&[]);
        fs::write(desktop.media().join(format!("{ending:?}")), &copied).unwrap();
        // As systemd does, which signals all processes of a unit.
        let all = children(child.id());
        assert!(all.iter().any(|(_, line)| line.contains("desktop-helper")), "{all:?}");
        all.iter().for_each(|(pid, _)| kill_process(*pid, ending).unwrap());
        thread::sleep(Duration::from_millis(300));
        let status = end(child, ending);
        let log = desktop.log();
        assert!(status.success() && !log.contains("ERROR"), "{ending:?}: {status}\n{log}");
        desktop.assert_nothing_left(&format!("{ending:?}"));
    }
    let child = desktop.open(&[]);
    for ending in [Signal::TERM, Signal::HUP, Signal::INT] {
        let found = fs::read(desktop.media().join(format!("{ending:?}"))).unwrap();
        assert_same(&found, &copied, &format!("{ending:?}"));
    }
    assert!(end(child, Signal::INT).success());
}

#[test]
fn a_file_system_in_use_is_served_until_it_is_closed() {
    if unable("in_use::a_file_system_in_use_is_served_until_it_is_closed") {
        return;
    }
    let desktop = Desktop::new(HONEST);
    let mut child = desktop.open(&[]);
    let mut held = File::create(desktop.media().join("held")).unwrap();
    signal(&child, Signal::INT);
    let word = format!("{} is in use", desktop.media().display());
    wait_until("that is said", PATIENCE, || desktop.log().contains(&word));
    assert!(!desktop.calls().contains("--force"), "the user has waited for long");
    wait_until("udisks is asked to force it", PATIENCE, || desktop.calls().contains("--force"));
    thread::sleep(FORCED);
    let log = desktop.log();
    assert!(is_mounted(&desktop.file()) && child.try_wait().unwrap().is_none(), "{log}");
    let late = bytes(2, 3_000_000);
    held.write_all(&late).unwrap();
    drop(held);
    let status = end(child, Signal::CONT);
    let log = desktop.log();
    assert!(status.success() && !log.contains("ERROR"), "{status}\n{log}");
    desktop.assert_nothing_left("closed");

    let child = desktop.open(&[]);
    assert_same(&fs::read(desktop.media().join("held")).unwrap(), &late, "written after the signal");
    assert!(end(child, Signal::INT).success());
}

#[test]
fn files_that_were_copied_survive_the_second_signal() {
    if unable("in_use::files_that_were_copied_survive_the_second_signal") {
        return;
    }
    let desktop = Desktop::new(HONEST);
    let child = desktop.open(&[]);
    let attached = desktop.attached();
    let held = File::create(desktop.media().join("held")).unwrap();
    signal(&child, Signal::INT);
    let copied = bytes(3, 3_000_000);
    wait_until("unmounting was tried", PATIENCE, || desktop.calls().contains("unmount"));
    fs::write(desktop.media().join("copied"), &copied).unwrap();
    wait_until("udisks is asked to force it", PATIENCE, || desktop.calls().contains("--force"));
    wait_until("it is unmounted lazily", PATIENCE, || !is_there(&desktop.media()));
    thread::sleep(Duration::from_secs(1));
    let status = end(child, Signal::INT);
    assert_eq!(status.code(), Some(1), "{}", desktop.log());
    drop(held);
    wait_until("the loop device is gone", PATIENCE, || !attached.exists());
    // The last step of the process that cleans up: no call of its udisksctl can come after it, and
    // meet the next server's loop device of the same name.
    wait_until("the file is removed", PATIENCE, || !desktop.file().exists());
    desktop.assert_nothing_left("ended at once");

    let child = desktop.open(&[]);
    assert_same(&fs::read(desktop.media().join("copied")).unwrap(), &copied, "copied before the end");
    assert!(end(child, Signal::INT).success());
}

#[test]
fn two_signals_at_once_leave_no_device_behind() {
    if unable("in_use::two_signals_at_once_leave_no_device_behind") {
        return;
    }
    let desktop = Desktop::new(HONEST);
    let child = desktop.open(&[]);
    let attached = desktop.attached();
    let held = File::create(desktop.media().join("held")).unwrap();
    signal(&child, Signal::INT);
    wait_until("unmounting was tried", PATIENCE, || desktop.calls().contains("unmount"));
    assert_eq!(end(child, Signal::INT).code(), Some(1), "{}", desktop.log());
    drop(held);
    wait_until("it is unmounted", PATIENCE, || !is_there(&desktop.media()));
    wait_until("the loop device is gone", PATIENCE, || !attached.exists());
    wait_until("the file is removed", PATIENCE, || !desktop.file().exists());
    desktop.assert_nothing_left("two signals");
}

#[test]
fn a_loop_device_that_another_file_has_by_then_is_left_alone() {
    if unable("in_use::a_loop_device_that_another_file_has_by_then_is_left_alone") {
        return;
    }
    // The user ejects the volume at this moment, and another file gets the loop device: once it is
    // free again, where another test's file is faster.
    let ejected = "unmount) if [ ! -e \"$STAND_IN/once\" ]; then : > \"$STAND_IN/once\"
umount \"$4\" && losetup --detach \"$4\"
tries=100; until losetup \"$4\" \"$STAND_IN/other.img\" || [ $((tries -= 1)) = 0 ]; do sleep 0.1; done
mount \"$4\" \"$STAND_IN/other\"; exit 1; fi; umount ${5:+--lazy} \"$4\" ;;
never) ";
    let desktop = Desktop::new(&HONEST.replace("unmount) ", ejected));
    let image = desktop.scratch.sparse("other.img", 16 << 20);
    run(client("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let other = desktop.scratch.path("other");
    fs::create_dir(&other).unwrap();
    let child = desktop.open(&[]);
    let status = end(child, Signal::INT);
    let (log, calls) = (desktop.log(), desktop.calls());
    let is_left = is_there(&other);
    let device =
        run(client("losetup").args(["--noheadings", "--output", "NAME", "--associated"]).arg(&image));
    if is_left {
        run(client("umount").arg(&other));
    }
    if !device.trim().is_empty() {
        run(client("losetup").args(["--detach", device.trim()]));
    }
    assert!(is_left && !device.trim().is_empty(), "the other file's device was taken down\n{calls}{log}");
    assert!(calls.trim_end().lines().last().unwrap().starts_with("unmount"), "{calls}");
    assert!(status.success() && !log.contains("ERROR"), "{status}\n{log}");
    desktop.assert_nothing_left("ejected");
}

#[test]
fn a_server_whose_disk_was_full_says_so_at_its_end() {
    if unable("in_use::a_server_whose_disk_was_full_says_so_at_its_end") {
        return;
    }
    let mut desktop = Desktop::new(HONEST);
    let small = Mount::tmpfs(&desktop.scratch.path("small"), 24 << 20);
    let image = small.directory().join("image");
    run(client("cp").arg("--sparse=always").arg(&desktop.volume.image).arg(&image));
    desktop.volume.image = image;
    let child = desktop.open(&[]);
    // The kernel has room for these bytes, and the disk below has none.
    fs::write(desktop.media().join("copied"), bytes(4, 20 << 20)).unwrap();
    let status = end(child, Signal::INT);
    let log = desktop.log();
    assert_eq!(status.code(), Some(8), "{log}");
    assert!(log.contains("underseal: writes have failed"), "{log}");
    desktop.assert_nothing_left("full");
}

#[test]
fn a_system_that_is_shut_down_without_udisks_does_not_wait_for_a_file_system() {
    if unable("in_use::a_system_that_is_shut_down_without_udisks_does_not_wait_for_a_file_system") {
        return;
    }
    // As when systemd has ended udisks before the user's session.
    let gone = "[ $1 != is-system-running ] || exec cat \"$STAND_IN/state\"
[ ! -e \"$STAND_IN/gone\" ] || exit 1
case $1 in";
    let desktop = Desktop::new(&HONEST.replace("case $1 in", gone));
    desktop.scratch.file("state", b"running\n");
    let mut child = desktop.open(&[]);
    let device = desktop.loops().remove(0);
    let mut held = File::create(desktop.media().join("held")).unwrap();
    let late = bytes(5, 3_000_000);
    desktop.scratch.file("gone", b"");
    signal(&child, Signal::TERM);
    // While the system runs, it may be unmounted by hand.
    thread::sleep(3 * FORCED / 2);
    assert!(child.try_wait().unwrap().is_none(), "{}", desktop.log());
    held.write_all(&late).unwrap();
    desktop.scratch.file("state", b"stopping\n");
    let status = end(child, Signal::CONT);
    let log = desktop.log();
    assert!(status.code() == Some(1) && log.contains("the file system is synced"), "{status}\n{log}");
    drop(held);
    run(client("umount").arg(desktop.media()));
    run(client("losetup").args(["--detach", &device]));
    fs::remove_file(desktop.scratch.path("gone")).unwrap();
    let child = desktop.open(&[]);
    assert_same(&fs::read(desktop.media().join("held")).unwrap(), &late, "written before the end");
    assert!(end(child, Signal::INT).success());
}
