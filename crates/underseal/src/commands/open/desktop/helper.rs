//! The process that asks udisks, for a server in its sandbox.

use std::io::{BufRead, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use super::udisks::{BUSY, LAST, LoopDevice, is_gone_for_good};
use crate::error::Result;
use crate::signals;

/// The pause between two attempts to take a file down.
const AGAIN: Duration = Duration::from_millis(300);

/// Takes a server's orders, and puts everything in order when it is gone. It runs in the folder of
/// the server's file. The signals that end a session reach all of its processes: the helper ends
/// with its server.
pub(crate) fn run() -> Result<()> {
    signals::ignore(signals::ENDING);
    let mut shown: Option<ShownFile> = None;
    for order in stdin().lock().lines() {
        let Ok(order) = order else { break };
        let answer = match order.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["show", size, access, path] => {
                let path = PathBuf::from(path);
                let answer = show(&path, size.parse().unwrap_or(0), access == "read-only");
                shown =
                    Some(ShownFile { devices: LoopDevice::over(&path), path, since: None, is_left: false });
                answer
            }
            ["end"] => match shown.as_mut().map_or(Ok(()), ShownFile::take_down) {
                Ok(()) => "ended".into(),
                Err(why) => shown.as_mut().and_then(ShownFile::leave).unwrap_or(why),
            },
            _ => "failed: no such order".into(),
        };
        if writeln!(stdout(), "{}", answer.replace(char::is_control, " ")).is_err() {
            break;
        }
    }
    let Some(mut shown) = shown else { return Ok(()) };
    // After "end" there is nothing left to do here. Unmounting is forced at last.
    while !shown.is_left
        && shown.take_down().is_err()
        && shown.since.is_some_and(|since| since.elapsed() < BUSY)
    {
        let _ = shown.leave();
        thread::sleep(AGAIN);
    }
    remove(&shown.path);
    Ok(())
}

/// A file that was shown, with the loop devices over it: they cannot be found by its path when the
/// server has detached its mount.
struct ShownFile {
    path: PathBuf,
    devices: Vec<LoopDevice>,
    /// The time of the first attempt to take it down.
    since: Option<Instant>,
    /// True when it is not taken down.
    is_left: bool,
}

impl ShownFile {
    /// Tries for a moment.
    fn take_down(&mut self) -> std::result::Result<(), String> {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.devices.iter().try_for_each(|device| device.give_back(&self.path, since))?;
        take_down(&self.path, since)
    }

    /// Leaves it as it is, synced, where a system that is shut down has ended udisks, a while after
    /// the first attempt. Returns what is said then.
    fn leave(&mut self) -> Option<String> {
        let is_late = self.since.is_some_and(|since| since.elapsed() >= LAST);
        if !is_late || !is_gone_for_good() {
            return None;
        }
        let synced = self.devices.iter().try_for_each(|device| device.sync(&self.path));
        self.is_left = true;
        let how = synced.map_or_else(|why| format!("cannot be synced: {why}"), |()| "is synced".into());
        Some(format!("left: the system is shut down, and has ended udisks: the file system {how}"))
    }
}

fn show(path: &Path, size: u64, read_only: bool) -> String {
    let made = LoopDevice::make(path, size, read_only);
    match made.and_then(|device| device.mount(path, size)) {
        Ok(at) => format!("mounted {at}"),
        Err(why) => match take_down(path, Instant::now()) {
            Ok(()) => format!("failed {why}"),
            Err(left) => format!("failed {why}; and it cannot be given back: {left}"),
        },
    }
}

/// Gives back all devices over the file: also one that udisks has made and not named.
fn take_down(path: &Path, since: Instant) -> std::result::Result<(), String> {
    LoopDevice::over(path).iter().try_for_each(|device| device.give_back(path, since))
}

/// Removes the file from this process's folder, unless another server has it by now.
fn remove(path: &Path) {
    let Some(name) = path.file_name() else { return };
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // The server's own helper may have the file for a moment.
    for _ in 0..20 {
        // A file that stays is used again.
        let Ok(file) = open(name, flags, Mode::empty()) else { return };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = rustix::fs::unlink(name);
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
}
