//! The file below a loop device.
//!
//! A loop device has no memory of errors: a flush syncs the file through the open file of the
//! kernel's driver, and an error of the file goes to whichever program flushed the device first. So
//! does an end of the file before the device's. This program's own open file misses neither.

use std::fs::File;

use rustix::io::Errno;

use super::cut::{FileFault, KnownSize};
use super::write_back;
use crate::LoopFile;

/// A loop device's file, open in this program, too.
pub(super) struct FileBelow {
    file: File,
    is_stacked: bool,
    pub(super) name: String,
    /// The place of the device's first byte.
    start: u64,
    size: KnownSize,
}

impl FileBelow {
    /// Opens the file that a loop device of this size, or a partition of one, lies on. `None` for
    /// other devices, and where the file cannot be opened.
    pub(super) fn of(device: &File, size: u64) -> Option<Self> {
        let below = LoopFile::of(device)?;
        let (file, start) = below.open_to_read(0)?;
        let len = start.saturating_add(size).min(file.metadata().ok()?.len());
        let (is_stacked, name) = (write_back::is_stacked(&file), below.path().display().to_string());
        Some(Self { size: KnownSize::new(len, &file), file, is_stacked, name, start })
    }

    /// The write-back error that this open file has not reported yet.
    pub(super) fn ask(&self) -> Result<(), Errno> {
        write_back::ask(&self.file, self.is_stacked)
    }

    /// Relies on the device's bytes before `end` from now on.
    pub(super) fn need(&self, end: u64) {
        self.size.need(self.start.saturating_add(end));
    }

    /// As [`KnownSize::look`].
    pub(super) fn look(&self) -> Option<FileFault> {
        self.size.look(&self.file)
    }
}
