//! The sizes of files that the kernel has forgotten: it may ask again.

use std::collections::HashMap;

use super::nodes::FileIdentity;
use crate::file::FileVersion;

/// This many sizes are certain to be remembered, and at most twice as many: 10 MiB.
const GENERATION: usize = 64 << 10;

/// Sizes, each valid as long as its lower file has the same version.
#[derive(Default)]
pub(super) struct SizeCache {
    young: HashMap<FileIdentity, (FileVersion, u64)>,
    /// The sizes that are dropped when there are too many young ones.
    old: HashMap<FileIdentity, (FileVersion, u64)>,
}

impl SizeCache {
    pub(super) fn remember(&mut self, key: FileIdentity, look: FileVersion, size: u64) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, (look, size));
    }

    /// Removes and returns the known size of a file of this version.
    pub(super) fn recall(&mut self, key: FileIdentity, look: FileVersion) -> Option<u64> {
        let (young, old) = (self.young.remove(&key), self.old.remove(&key));
        let (then, size) = young.or(old)?;
        (then == look).then_some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(ino: u64, ctime: i64) -> (FileIdentity, FileVersion) {
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_dev, stat.st_ino, stat.st_ctime, stat.st_ctime_nsec) = (7, ino, ctime, 0);
        (FileIdentity::of(&stat), FileVersion::of(&stat))
    }

    #[test]
    fn a_size_is_known_until_the_file_looks_otherwise() {
        let mut sizes = SizeCache::default();
        let (key, look) = stat(1, 100);
        sizes.remember(key, look, 42);
        assert_eq!(sizes.recall(stat(2, 100).0, look), None, "another file");
        assert_eq!(sizes.recall(key, look), Some(42));
        assert_eq!(sizes.recall(key, look), None, "whoever asked keeps it");
        sizes.remember(key, look, 42);
        assert_eq!(sizes.recall(key, stat(1, 101).1), None, "changed");
    }

    #[test]
    fn the_oldest_are_forgotten_when_there_are_too_many() {
        let mut sizes = SizeCache::default();
        let look = stat(0, 1).1;
        let count = 3 * GENERATION as u64;
        for ino in 0..count {
            sizes.remember(stat(ino, 1).0, look, ino);
        }
        assert!(sizes.young.len() + sizes.old.len() <= 2 * GENERATION);
        let last = count - GENERATION as u64;
        assert!((last..count).all(|ino| sizes.recall(stat(ino, 1).0, look) == Some(ino)));
        assert_eq!(sizes.recall(stat(0, 1).0, look), None);
    }
}
