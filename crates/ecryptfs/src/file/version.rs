//! The versions of a lower file: which changes are this mount's own.
//!
//! Another program may change a lower file at any time, and nothing tells of it but the file's
//! attributes. So every change is made between two looks at them: before it, they must be those of
//! the last own change.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Stat, fstat};

use super::OpenFile;

/// The attributes that change with a lower file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileVersion {
    ctime: (i64, i64),
    mtime: (i64, i64),
    size: i64,
}

impl FileVersion {
    #[expect(clippy::cast_possible_wrap, reason = "nanoseconds are below a billion")]
    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            ctime: (stat.st_ctime, stat.st_ctime_nsec as i64),
            mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
            size: stat.st_size,
        }
    }

    /// Returns true when no write lies between the two versions, as far as a file's times show.
    pub(crate) fn has_bytes_of(&self, other: &Self) -> bool {
        (self.mtime, self.size) == (other.mtime, other.size)
    }
}

/// The version that an open file has from this mount; `None` after a change of another program.
#[derive(Debug, Default)]
pub(super) struct OwnVersion(Mutex<Option<FileVersion>>);

impl OwnVersion {
    fn lock(&self) -> MutexGuard<'_, Option<FileVersion>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change of an open file, through this mount, until it is dropped.
pub(crate) struct OwnChange<'a> {
    file: &'a OpenFile,
    is_foreign: bool,
}

impl OpenFile {
    /// Begins a change of the file or its attributes.
    pub(crate) fn change(&self) -> OwnChange<'_> {
        OwnChange { file: self, is_foreign: !self.has_own_version() }
    }

    /// Notes the version of which the file's pages and size are known.
    pub(crate) fn starts_from(&self, version: FileVersion) {
        *self.own_version().lock() = Some(version);
    }

    /// Returns true when nobody else has changed the file.
    pub(crate) fn has_own_version(&self) -> bool {
        let last = *self.own_version().lock();
        last.is_some_and(|last| fstat(self).is_ok_and(|look| FileVersion::of(&look) == last))
    }
}

impl Drop for OwnChange<'_> {
    fn drop(&mut self) {
        let look = if self.is_foreign { None } else { fstat(self.file).ok() };
        *self.file.own_version().lock() = look.as_ref().map(FileVersion::of);
    }
}
