//! A file that must keep its name: the bytes of one that was removed or replaced are lost with the
//! last program that has it open.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::{ReadAt, Target};
use crate::Result;
use crate::lock::{HeaderLock, LockTo};

/// A file with a header, or another record of progress, whose syncs fail once it has no name any
/// more. A file that had none as it was opened is a temporary one; a block device keeps its own.
#[derive(Debug)]
pub struct NamedFile {
    file: File,
    must_have_name: bool,
}

impl NamedFile {
    /// Takes over a file that was opened.
    pub fn opened(file: File) -> Self {
        Self { must_have_name: file.metadata().is_ok_and(|of| of.is_file() && of.nlink() > 0), file }
    }

    /// Takes over a file that this program has made under a name. Another program may have removed
    /// it by now.
    pub fn made(file: File) -> Self {
        Self { file, must_have_name: true }
    }

    /// Takes over another open file of the same file.
    #[must_use]
    pub fn opened_again(&self, file: File) -> Self {
        Self { file, must_have_name: self.must_have_name }
    }

    /// The open file, to read it and to lock it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the open file.
    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Checks that the file has its name still.
    ///
    /// # Errors
    /// `Other` once the file has no name; the system's errors.
    pub fn keeps_name(&self) -> io::Result<()> {
        if !self.must_have_name || self.file.metadata()?.nlink() > 0 {
            return Ok(());
        }
        Err(io::Error::other(
            "the header's file, or the one that records the progress, was removed or replaced",
        ))
    }
}

impl ReadAt for NamedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        ReadAt::read_exact_at(&self.file, buf, offset)
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.file.forget_cached(range);
    }

    fn lock_within(&self, to: LockTo, patience: Duration) -> Result<Option<HeaderLock<'_>>> {
        self.file.lock_within(to, patience)
    }
}

impl Target for NamedFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        Target::write_all_at(&self.file, bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()?;
        self.keeps_name()
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.file.set_len(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_fails_once_the_file_is_removed_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| folder.path().join(name));
        NamedFile::opened(tempfile::tempfile().unwrap()).sync_all().unwrap();
        for is_replaced in [false, true] {
            let file = NamedFile::opened(File::create(&path).unwrap());
            file.sync_all().unwrap();
            std::fs::rename(&path, &other).unwrap();
            file.sync_all().unwrap();
            if is_replaced {
                File::create(&path).unwrap();
                std::fs::rename(&path, &other).unwrap();
            } else {
                std::fs::remove_file(&other).unwrap();
            }
            file.sync_all().unwrap_err();
            let again = file.file().try_clone().unwrap();
            file.opened_again(again).sync_all().unwrap_err();
            // A file that was made, and removed before it came here.
            NamedFile::made(file.file().try_clone().unwrap()).sync_all().unwrap_err();
        }
    }
}
