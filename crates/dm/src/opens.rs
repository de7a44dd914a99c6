//! The processes that have a block device open.
//!
//! The kernel counts openers, but does not publish the count. An exclusive open tells whether the
//! device is claimed (by a file system, swap, another device); /proc tells which programs have it
//! open.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::DeviceNumber;
use crate::loops::FIRST;

/// The processes that serve devices: their opens do not count.
#[derive(Clone, Default)]
pub struct Family(Arc<Mutex<BTreeSet<u32>>>);

impl Family {
    /// Returns a family of this process.
    pub fn of_this_process() -> Self {
        let this = Self::default();
        this.add(std::process::id());
        this
    }

    /// Adds a process.
    pub fn add(&self, pid: u32) {
        self.lock().insert(pid);
    }

    /// Removes a process that has ended.
    pub fn remove(&self, pid: u32) {
        self.lock().remove(&pid);
    }

    /// The processes of another one.
    pub(crate) fn of(pids: &[u32]) -> Self {
        Self(Arc::new(Mutex::new(pids.iter().copied().collect())))
    }

    /// The processes of the family.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.lock().iter().copied().collect()
    }

    fn has(&self, pid: u32) -> bool {
        self.lock().contains(&pid)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how many programs and other users have a block device open, at least: those that /proc
/// shows, loop devices over it, or else one that has claimed it. 0 for anything that is no block
/// device.
pub fn openers(node: &Path) -> u32 {
    number_of(node).map_or(0, |number| opens(number, node, &Family::default()))
}

/// How many have a device open, at least. `node` leads to it.
pub(crate) fn opens(number: DeviceNumber, node: &Path, family: &Family) -> u32 {
    match programs(number, family).saturating_add(loops_over(number)) {
        0 => is_claimed(node).into(),
        opens => opens,
    }
}

/// The loop devices that lie on a device, which /proc does not have and exclusive opens do not
/// show. They are found by the path that they were made with. Those from 1000 up lie on tables'
/// files, and looking at all of them takes long.
pub(crate) fn loops_over(number: DeviceNumber) -> u32 {
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let loops = disks.filter_map(|disk| disk.file_name().to_str()?.strip_prefix("loop")?.parse().ok());
    let is_over = |of: &u32| {
        let path = fs::read(format!("/sys/block/loop{of}/loop/backing_file")).unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(path.trim_ascii_end()));
        path.starts_with("/dev") && number_of(path) == Some(number)
    };
    u32::try_from(loops.filter(|of| *of < FIRST).filter(is_over).count()).unwrap_or(u32::MAX)
}

/// The number of the block device that a path leads to. No server of a file system is asked.
fn number_of(path: &Path) -> Option<DeviceNumber> {
    let of = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let is_device = FileType::from_raw_mode(of.stx_mode.into()).is_block_device();
    is_device.then(|| DeviceNumber::new(of.stx_rdev_major, of.stx_rdev_minor))
}

/// Whether somebody has a device for himself.
pub(crate) fn is_claimed(node: &Path) -> bool {
    let flags = libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(node);
    opened.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
}

/// The open files of all programs on a device. One that cannot be looked at (another user's, for
/// who is not root) is not counted.
pub(crate) fn programs(number: DeviceNumber, family: &Family) -> u32 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let files = pids.filter(|pid| !family.has(*pid)).map(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
        let is_on = |path: &Path| {
            // Only nodes are looked at, and no server of a file system is asked: a file of a
            // suspended device would make this thread wait.
            let link = fs::read_link(path).ok().filter(|link| link.starts_with("/dev"));
            link.and_then(|_| number_of(path)) == Some(number)
        };
        files.filter_map(Result::ok).filter(|file| is_on(&file.path())).count()
    });
    u32::try_from(files.sum::<usize>()).unwrap_or(u32::MAX)
}
