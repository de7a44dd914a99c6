//! The processes that have a block device open.
//!
//! The kernel counts openers, and tells nobody. An exclusive open says whether somebody has claimed
//! the device (a file system, swap, another device); /proc says which programs have it open.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::DeviceNumber;

/// The processes that answer for devices: what they have open does not count.
#[derive(Clone, Default)]
pub struct Family(Arc<Mutex<BTreeSet<u32>>>);

impl Family {
    /// A family of this process.
    pub fn of_this_process() -> Self {
        let this = Self::default();
        this.add(std::process::id());
        this
    }

    /// A process comes to it.
    pub fn add(&self, pid: u32) {
        self.lock().insert(pid);
    }

    /// A process has ended.
    pub fn remove(&self, pid: u32) {
        self.lock().remove(&pid);
    }

    fn has(&self, pid: u32) -> bool {
        self.lock().contains(&pid)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many have a device open, at least. `node` leads to it. `is_below`: the family itself has
/// claimed it.
pub(crate) fn opens(number: DeviceNumber, node: &Path, family: &Family, is_below: bool) -> u32 {
    let programs = programs(number, family);
    if programs > 0 || is_below { programs } else { is_claimed(node).into() }
}

/// Whether somebody has a device for himself.
fn is_claimed(node: &Path) -> bool {
    let flags = libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(node);
    opened.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
}

/// The open files of all programs on a device. One that cannot be looked at (another user's, for
/// who is not root) is not counted.
fn programs(number: DeviceNumber, family: &Family) -> u32 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let files = pids.filter(|pid| !family.has(*pid)).map(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
        let is_on = |path: &Path| {
            // Only nodes are looked at: a file of a suspended device would keep who looks at it
            // waiting.
            let link = fs::read_link(path).ok().filter(|link| link.starts_with("/dev"));
            let of = link.and_then(|_| fs::metadata(path).ok());
            of.is_some_and(|of| {
                of.file_type().is_block_device() && DeviceNumber::of_node(of.rdev()) == number
            })
        };
        files.filter_map(Result::ok).filter(|file| is_on(&file.path())).count()
    });
    u32::try_from(files.sum::<usize>()).unwrap_or(u32::MAX)
}
