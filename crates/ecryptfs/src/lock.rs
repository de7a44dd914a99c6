//! Locks on a lower tree: flock(2), so that independent processes do not undo each other's changes.
//!
//! ```text
//!   the root    a mount, and a tool that writes, from start to end: alone, or readers together
//!   one file    a mount, while the file is open; a tool, while it changes the file
//! ```
//! The root's lock reports a conflict before any change. The files' locks cover different roots: a
//! tool on a folder or a file in a mounted tree, a mount of a parent, another path to the same
//! files. A lower filesystem without locks has no such protection, and the kernel's eCryptfs and
//! other programs ignore these locks.

use std::fmt::Write;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, major, minor, openat};
use rustix::io::Errno;

use crate::{Error, ErrorKind, Result};

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockMode {
    /// Other processes may read.
    Shared,
    /// No other process may use it.
    Alone,
}

/// A lower root in use, until this value is dropped.
#[derive(Debug)]
pub(crate) struct RootLock {
    _folder: OwnedFd,
}

impl RootLock {
    /// Locks the folder behind a descriptor. The path is for messages.
    ///
    /// Fails with `Busy`, with the process that has the lock, and with `Io`.
    pub(crate) fn on(folder: impl AsFd, path: &Path, access: LockMode) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(folder, ".", flags, Mode::empty());
        let folder = folder.map_err(|e| Error::io(path, "cannot be opened", e))?;
        lock_for_tool(&folder, access).map_err(|e| e.in_file(path))?;
        Ok(Self { _folder: folder })
    }
}

/// Locks an open file or folder, and waits for a moment: after an unmount, or after a file is
/// closed, the lock is free only when the mount's process has noticed it.
///
/// Fails with `Busy`, with the process that has the lock, and with `Io`.
pub(crate) fn lock_for_tool(fd: impl AsFd, access: LockMode) -> Result<()> {
    let asked = Instant::now();
    loop {
        match lock(&fd, access) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if asked.elapsed() < PATIENCE => thread::sleep(PATIENCE / 100),
            Err(Errno::WOULDBLOCK) => return Err(busy(fd)),
            Err(e) => return Err(Error::new(ErrorKind::Io, "cannot be locked").with_source(e)),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(1);

/// Locks an open file or folder, or does nothing on a filesystem without locks.
///
/// Fails with `EWOULDBLOCK` when another process has the lock.
pub(crate) fn lock(fd: impl AsFd, access: LockMode) -> std::result::Result<(), Errno> {
    let operation = match access {
        LockMode::Shared => FlockOperation::NonBlockingLockShared,
        LockMode::Alone => FlockOperation::NonBlockingLockExclusive,
    };
    loop {
        match flock(&fd, operation) {
            Err(Errno::INTR) => {}
            // EBADF: on NFS only a writer may lock others out.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::BADF) => return Ok(()),
            done => return done,
        }
    }
}

/// Releases a lock before its file is closed.
pub(crate) fn unlock(fd: impl AsFd) {
    // An error would leave the lock in place, without a remedy.
    let _ = flock(fd, FlockOperation::Unlock);
}

/// Returns an error with the process that has locked a file or folder.
pub(crate) fn busy(fd: impl AsFd) -> Error {
    let mut context = String::from("it is in use");
    // While locks change, the kernel's list, read in parts, may miss one.
    if let Some(process) = (0..8).find_map(|_| holder(&fd)) {
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        let name = if name.is_empty() { "a program" } else { name.trim_end() };
        // Writing to a string does not fail.
        let _ = write!(context, " by {name} (process {process})");
    }
    Error::new(ErrorKind::Busy, context)
}

/// Returns the process that has locked it, if the kernel lists it.
fn holder(fd: impl AsFd) -> Option<u32> {
    let stat = fstat(fd).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, process, of) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && of == file).then(|| process.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(root: &Path, access: LockMode) -> Result<RootLock> {
        RootLock::on(fs::File::open(root).unwrap(), root, access)
    }

    #[test]
    fn a_root_has_one_writer_or_many_readers_and_says_who() {
        let folder = tempfile::tempdir().unwrap();
        let claim = |access| claim(folder.path(), access);
        let readers = [claim(LockMode::Shared).unwrap(), claim(LockMode::Shared).unwrap()];
        let refused = claim(LockMode::Alone).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(refused.to_string().contains(&format!("(process {})", std::process::id())), "{refused}");
        drop(readers);
        let writer = claim(LockMode::Alone).unwrap();
        assert_eq!(claim(LockMode::Shared).unwrap_err().kind(), ErrorKind::Busy);
        drop(writer);
        claim(LockMode::Shared).unwrap();
    }

    #[test]
    fn a_root_is_one_whatever_leads_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let _claim = claim(&link, LockMode::Alone).unwrap();
        assert_eq!(claim(folder.path(), LockMode::Alone).unwrap_err().kind(), ErrorKind::Busy);
    }
}
