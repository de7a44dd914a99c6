//! A file that must keep its name, with a header or another record of progress. Its syncs fail once
//! it was removed or replaced.

use std::io;
use std::ops::Range;
use std::time::Duration;

use underseal_named_file::NamedFile;

use super::{ReadAt, Target};
use crate::Result;
use crate::lock::{HeaderLock, LockTo};

impl ReadAt for NamedFile {
    fn size(&self) -> io::Result<u64> {
        self.file().size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        ReadAt::read_exact_at(self.file(), buf, offset)
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.file().forget_cached(range);
    }

    fn lock_within(&self, to: LockTo, patience: Duration) -> Result<Option<HeaderLock<'_>>> {
        self.file().lock_within(to, patience)
    }
}

impl Target for NamedFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        Target::write_all_at(self.file(), bytes, offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file().sync_all()?;
        self.keeps_name()
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        self.file().set_len(size)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_sync_fails_once_the_file_is_removed_or_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["file", "other"].map(|name| folder.path().join(name));
        NamedFile::opened(tempfile::tempfile().unwrap()).sync_all().unwrap();
        for (is_replaced, links) in [(false, false), (true, false), (true, true)] {
            let file = NamedFile::opened(File::create(&path).unwrap());
            file.sync_all().unwrap();
            if links {
                std::fs::hard_link(&path, &other).unwrap();
            }
            if is_replaced {
                let new = folder.path().join("new");
                File::create(&new).unwrap();
                std::fs::rename(&new, &path).unwrap();
            } else {
                std::fs::rename(&path, &other).unwrap();
                file.sync_all().unwrap();
                std::fs::remove_file(&other).unwrap();
            }
            file.sync_all().unwrap_err();
            let again = file.file().try_clone().unwrap();
            file.opened_again(again).sync_all().unwrap_err();
        }
    }
}
