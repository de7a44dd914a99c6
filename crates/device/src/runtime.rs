//! This user's directory of runtime files: control sockets and locks.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat};

/// The path of a directory that no other user may write to.
#[derive(Debug, Clone)]
pub struct RuntimeDirectory(PathBuf);

impl RuntimeDirectory {
    /// Returns the user's directory: `$UNDERSEAL_RUNTIME_DIR`; else `/run/underseal` for root; else
    /// `$XDG_RUNTIME_DIR/underseal`; else `/tmp/underseal-UID`.
    pub fn of_user() -> Self {
        let uid = rustix::process::geteuid();
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Self(match (set("UNDERSEAL_RUNTIME_DIR"), set("XDG_RUNTIME_DIR")) {
            (Some(path), _) => path,
            (None, Some(path)) if !uid.is_root() => path.join("underseal"),
            (None, _) => return Self::of_number(),
        })
    }

    /// Returns the directory that depends on the user's number alone: `/run/underseal` for root,
    /// else `/tmp/underseal-UID`.
    pub(crate) fn of_number() -> Self {
        let uid = rustix::process::geteuid();
        Self(if uid.is_root() {
            "/run/underseal".into()
        } else {
            format!("/tmp/underseal-{}", uid.as_raw()).into()
        })
    }

    /// A directory at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes the directory, if it is missing.
    ///
    /// # Errors
    /// The errors of [`RuntimeDirectory::open`].
    pub fn make(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => self.open().map(drop),
        }
    }

    /// Opens the directory. It must be a directory rather than a link, belong to this user, and be
    /// writable for this user only: another user may have made it first in /tmp.
    ///
    /// # Errors
    /// The system's errors, and one of another kind that says what is wrong with the directory.
    pub fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let directory = rustix::fs::open(&self.0, flags, Mode::empty())?;
        let about = fstat(&directory)?;
        if about.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        if about.st_mode & 0o022 != 0 {
            return Err(io::Error::other("others may write to it (chmod 700 mends that)"));
        }
        Ok(directory)
    }
}
