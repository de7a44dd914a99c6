//! A device's file, opened once more: for a header, or for a reencryption.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::{FileAccess, FileDevice, Shared, write_back};
use crate::Result;

/// A device's file that is read through the page cache, and written with the device's checks: both
/// fail once another program has made the file shorter, removed or replaced it.
///
/// The file's position, flock and record of write-back errors are separate from the device's.
pub struct ReopenedFile {
    shared: Arc<Shared>,
    file: File,
}

impl FileDevice {
    /// Opens the file once more, through the page cache.
    ///
    /// # Errors
    /// `Open` when the file cannot be opened any more.
    pub fn reopen(&self) -> Result<ReopenedFile> {
        Ok(ReopenedFile { shared: self.shared.clone(), file: self.open_again(FileAccess::Cached)? })
    }
}

impl ReopenedFile {
    /// The open file, to read it and to lock it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// `Other` where nothing may be changed any more; otherwise the error of the system.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.shared.allow_change_to(end).map_err(io::Error::other)?;
        self.file.write_all_at(bytes, offset)
    }

    /// Returns when all writes are on disk, of the device's users too. After a failure every flush
    /// of the device fails: the lost data may be a client's.
    ///
    /// # Errors
    /// The error of the system; `Other` where acknowledged writes may be lost.
    pub fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all().inspect_err(|e| self.shared.losses.fail(write_back::errno(e)))?;
        self.shared.allow_change_to(u64::MAX).and_then(|()| self.shared.check()).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Blocking, Device, FileDevice, OpenOptions};

    const SIZE: u64 = 1 << 20;

    #[test]
    fn a_file_that_is_cut_removed_or_replaced_is_not_written_and_not_synced() {
        for change in ["cut", "removed", "replaced", "replaced, and has another name"] {
            let folder = tempfile::tempdir().unwrap();
            let [path, other] = ["image", "other"].map(|name| folder.path().join(name));
            std::fs::write(&path, vec![0; 1 << 20]).unwrap();
            let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
            let reopened = device.reopen().unwrap();
            reopened.write_all_at(&[1; 512], SIZE - 512).unwrap();
            reopened.sync_all().unwrap();
            match change {
                "cut" => std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZE / 2).unwrap(),
                "removed" => std::fs::remove_file(&path).unwrap(),
                _ => {
                    if change != "replaced" {
                        std::fs::hard_link(&path, folder.path().join("link")).unwrap();
                    }
                    std::fs::copy(&path, &other).unwrap();
                    std::fs::rename(&other, &path).unwrap();
                }
            }
            // The write that would give the file its size back.
            reopened.write_all_at(&[2; 512], SIZE - 512).unwrap_err();
            let error = reopened.sync_all().unwrap_err();
            assert!(error.to_string().contains("another program has made"), "{change}: {error}");
            reopened.write_all_at(&[2; 512], 0).unwrap_err();
            assert!(change != "cut" || reopened.file().metadata().unwrap().len() == SIZE / 2);
            Blocking::new(&device).unwrap().flush().unwrap_err();
            assert!(device.check().is_err());
            assert_eq!(device.geometry().size, SIZE);
        }
    }
}
