//! The loop devices over a file: their users change it past every lock of the file.

use std::ffi::CString;
use std::fmt;
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags, statx};
use underseal_named_file::{backing_file, backing_file_in};

use super::ask::{BoundLoop, LoopSurvey, id_at};
use super::{FileId, loop_file_id};

/// How long a device may be silent before the next one is asked.
const BRIEFLY: Duration = Duration::from_secs(1);
/// How much longer all silent devices have, together.
const PATIENCE: Duration = Duration::from_secs(4);

/// A loop device that keeps a file from being changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoopOver {
    /// This device lies on the file.
    Lies(PathBuf),
    /// This device does not say what it lies on.
    Silent(PathBuf),
}

impl fmt::Display for LoopOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lies(device) => write!(f, "is in use by the loop device {}", device.display()),
            Self::Silent(device) => {
                write!(f, "may be in use by the loop device {}, which does not answer", device.display())
            }
        }
    }
}

impl LoopOver {
    /// The device.
    pub fn device(&self) -> &Path {
        match self {
            Self::Lies(device) | Self::Silent(device) => device,
        }
    }
}

/// Returns a loop device over a regular file, or another loop device over the file of a loop
/// device, if there is one. A device that this user may not open is known by the path that it was
/// made with, which leads elsewhere once its file is renamed, and in another mount namespace.
///
/// Each device is asked: its path says nothing about its file once that has been mounted over. The
/// kernel asks the device's file in turn. Where that does not answer and this file does, they are
/// two files.
pub fn loop_over(file: &File) -> Option<LoopOver> {
    let of = file.metadata().ok()?;
    let id = id_of(file)?;
    let itself = of.file_type().is_block_device().then(|| of.rdev());
    let (nodes, devices): (Vec<_>, Vec<_>) =
        bound_devices().filter(|(node, _)| !is_itself(node, itself)).unzip();
    let lies = |number: usize, found: Option<FileId>| {
        (found == Some(id)).then(|| LoopOver::Lies(nodes.get(number).cloned().unwrap_or_default()))
    };
    let mut silent = Vec::new();
    let mut next = 0;
    while next < nodes.len() {
        let Ok(mut asking) = LoopSurvey::start(&devices[next..]) else {
            return Some(LoopOver::Silent(nodes[next].clone()));
        };
        while next < nodes.len()
            && let Some(found) = asking.answer(Instant::now() + BRIEFLY)
        {
            if let Some(over) = lies(next, found) {
                return Some(over);
            }
            next += 1;
        }
        // A device that has answered and is being closed is left to that child, and the next ones
        // are asked by another.
        if next < nodes.len() && !asking.closes {
            silent.push((next, asking));
            next += 1;
        }
    }
    // Answered after the devices were asked.
    let answers = silent.is_empty() || id_of(file) == Some(id);
    let until = Instant::now() + PATIENCE;
    let mut over = silent.into_iter().filter_map(|(number, mut asking)| match asking.answer(until) {
        Some(found) => lies(number, found),
        None if answers && asking.asks_file => None,
        None => Some(LoopOver::Silent(nodes[number].clone())),
    });
    over.next()
}

/// The numbers of a regular file, or of the file below a loop device: by its file system, not from
/// memory.
fn id_of(file: &File) -> Option<FileId> {
    let of = file.metadata().ok()?;
    if of.file_type().is_block_device() {
        let path = || c_path(backing_file(of.rdev())?);
        return loop_file_id(file).or_else(|| id_at(&path()?));
    }
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let of = statx(file, c"", flags, StatxFlags::INO).ok().filter(|_| of.is_file())?;
    Some((libc::makedev(of.stx_dev_major, of.stx_dev_minor), of.stx_ino))
}

/// All loop devices that have a file.
fn bound_devices() -> impl Iterator<Item = (PathBuf, BoundLoop)> {
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let loops = disks.filter(|disk| disk.file_name().as_bytes().starts_with(b"loop"));
    loops.filter_map(|disk| {
        let node = Path::new("/dev").join(disk.file_name());
        let path = backing_file_in(&disk.path())?;
        Some((node.clone(), BoundLoop { node: c_path(node)?, path: c_path(path)? }))
    })
}

fn c_path(path: PathBuf) -> Option<CString> {
    CString::new(path.into_os_string().into_vec()).ok()
}

/// Whether a node is the device itself, or the disk that it is a partition of.
fn is_itself(node: &Path, itself: Option<u64>) -> bool {
    let Some(itself) = itself else { return false };
    let disk = fs::metadata(node).map(|of| of.rdev());
    let whole = fs::canonicalize(format!("/sys/dev/block/{}:{}", libc::major(itself), libc::minor(itself)));
    let is_part = whole.is_ok_and(|whole| whole.parent().and_then(Path::file_name) == node.file_name());
    disk.is_ok_and(|disk| disk == itself) || is_part
}
