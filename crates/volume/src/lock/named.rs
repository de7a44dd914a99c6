//! A lock on a named file in a folder, as cryptsetup takes it: the last holder removes the name.
//!
//! A process that waits for this kind of lock may get that of a file whose name is gone, while
//! another process has locked a new file of that name. So a lock counts only while its file still
//! has the name.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::LockTo;

/// A lock that is held until the process that took it drops this.
#[derive(Debug)]
pub(super) struct NamedLock {
    path: PathBuf,
    file: File,
    process: u32,
}

impl NamedLock {
    /// Takes the lock; `None` when another process has it. Fails with the errors of the file and
    /// its folder.
    pub(super) fn attempt(path: &Path, to: LockTo) -> io::Result<Option<Self>> {
        loop {
            match Self::lock(path, open(path)?, to)? {
                Attempt::Locked(lock) => return Ok(Some(lock)),
                Attempt::Held => return Ok(None),
                Attempt::Stale => {}
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn lock(path: &Path, file: File, to: LockTo) -> io::Result<Attempt> {
        loop {
            match rustix::fs::flock(&file, to.operation()) {
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Ok(Attempt::Held),
                Err(e) => return Err(e.into()),
            }
        }
        match is_named(path, &file)? {
            true => Ok(Attempt::Locked(Self { path: path.to_owned(), file, process: process::id() })),
            false => Ok(Attempt::Stale),
        }
    }
}

impl Drop for NamedLock {
    fn drop(&mut self) {
        // A child of a fork shares the open file: the attempt below would succeed, and take the
        // name from the parent's lock.
        if self.process != process::id() {
            return;
        }
        // Other readers rely on the name: only the last holder removes it, and only that of its own
        // file.
        let alone = rustix::fs::flock(&self.file, LockTo::Change.operation()).is_ok();
        if alone && matches!(is_named(&self.path, &self.file), Ok(true)) {
            // The lock ends with the file, whether or not its name is removed.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The result of an attempt.
#[derive(Debug)]
enum Attempt {
    Locked(NamedLock),
    Held,
    /// The file is locked, and has lost the name.
    Stale,
}

fn is_named(path: &Path, file: &File) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(there) => {
            let here = file.metadata()?;
            Ok((there.dev(), there.ino()) == (here.dev(), here.ino()))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Opens the file, made for its owner only in a folder for its owner only: any user with access to
/// it could lock it.
fn open(path: &Path) -> io::Result<File> {
    // A sandboxed server cannot make folders any more.
    if let Some(folder) = path.parent().filter(|folder| !folder.is_dir()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn attempt(path: &Path, to: LockTo) -> Option<NamedLock> {
        NamedLock::attempt(path, to).unwrap()
    }

    #[test]
    fn the_lock_of_a_file_that_has_lost_its_name_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("L_7:0");
        let first = attempt(&path, LockTo::Change).unwrap();
        // A waiting process has the file open. The holder ends, and another process locks the
        // name's new file.
        let waiting = open(&path).unwrap();
        drop(first);
        let second = attempt(&path, LockTo::Change).unwrap();
        assert!(matches!(NamedLock::lock(&path, waiting, LockTo::Change).unwrap(), Attempt::Stale));
        assert!(attempt(&path, LockTo::Change).is_none());
        drop(second);
        assert!(!path.exists());
        assert!(attempt(&path, LockTo::Change).is_some());
    }

    #[test]
    fn a_holder_whose_file_was_removed_leaves_the_new_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("L_7:0");
        let first = attempt(&path, LockTo::Change).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = attempt(&path, LockTo::Change).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
    }

    #[test]
    fn folder_and_file_are_for_their_owner_only_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cryptsetup/L_7:0");
        let lock = attempt(&path, LockTo::Read).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(path.parent().unwrap()), mode(&path)), (0o700, 0o600));
        drop(lock);
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &path).unwrap();
        assert!(NamedLock::attempt(&path, LockTo::Read).is_err());
        assert!(!folder.path().join("elsewhere").exists());
    }
}
