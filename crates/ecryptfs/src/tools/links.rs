//! Files with several names: source files and the paths of their copies; files that have names
//! outside of a tree.
//!
//! A file is known by its device and inode number. The number is another file's as soon as the file
//! is gone, so each remembered file is kept open until all of its names were met. Files beyond the
//! limit of open files are copied once for each name.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::tree::PinnedEntry;
use super::walk::{EntryKind, Root, Visit, WalkEntry, walk};
use super::{ProgressWatch, TreeKeys};
use crate::{Error, Result};

/// The files of a tree that have several names, and how many of their names are in the tree.
#[derive(Debug, Default)]
pub(super) struct MetNames {
    met: HashMap<(u64, u64), u64>,
}

impl MetNames {
    /// Walks a tree. Failures are not reported: the walk that does the work reports them.
    pub(super) fn of(root: &Root, keys: &mut TreeKeys) -> Self {
        let mut met = Self::default();
        walk(root, keys, &mut Silent, &mut met);
        met
    }

    /// Returns the number of a file's names that were not met, of as many as it has by now.
    pub(super) fn missing(&self, entry: &PinnedEntry, names: u64) -> u64 {
        names.saturating_sub(self.met.get(&entry.inode()).copied().unwrap_or(1))
    }
}

impl Visit for MetNames {
    fn visit(
        &mut self,
        found: &WalkEntry<'_>,
        _keys: &mut TreeKeys,
        _watch: &mut dyn ProgressWatch,
    ) -> Result<()> {
        if found.kind == EntryKind::File && found.about.nlink() > 1 {
            *self.met.entry(found.entry.inode()).or_default() += 1;
        }
        Ok(())
    }

    fn needs_names(&self) -> bool {
        false
    }

    fn failed(&mut self) {}
}

struct Silent;

impl ProgressWatch for Silent {
    fn advance(&mut self, _bytes: u64) {}

    fn failed(&mut self, _lower: &Path, _error: Error) {}
}

/// The copied files of a run that have further names.
pub(super) struct CopiedLinks {
    copied: HashMap<(u64, u64), CopiedFile>,
    /// The number of files that may be kept open.
    most: usize,
    is_full: bool,
}

struct CopiedFile {
    copy: PathBuf,
    /// The number of names that were met.
    names: u64,
    _source: OwnedFd,
}

impl CopiedLinks {
    /// Returns no file, and the limit of this process: half of its open files are for folders.
    pub(super) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 2;
        Self::with_room_for(usize::try_from(limit).unwrap_or(usize::MAX))
    }

    fn with_room_for(most: usize) -> Self {
        Self { copied: HashMap::new(), most, is_full: false }
    }

    /// Returns the copy of a file that was met under another name.
    pub(super) fn copy_of(&mut self, source: &PinnedEntry) -> Option<PathBuf> {
        let found = self.copied.get_mut(&source.inode())?;
        found.names += 1;
        if found.names < source.about().nlink() {
            return Some(found.copy.clone());
        }
        self.copied.remove(&source.inode()).map(|last| last.copy)
    }

    /// Remembers the copy of a file, if the file has other names.
    pub(super) fn remember(&mut self, source: &PinnedEntry, copy: &Path) {
        if source.about().nlink() < 2 {
            return;
        }
        let held = if self.copied.len() < self.most { source.keep_open().ok() } else { None };
        match held {
            Some(held) => {
                let copied = CopiedFile { copy: copy.into(), names: 1, _source: held };
                self.copied.insert(source.inode(), copied);
            }
            None if !self.is_full => {
                self.is_full = true;
                log::warn!(
                    "{}: more files with several names than can be kept open: some become one file for each \
                     name; try: a higher limit of open files (ulimit -Hn)",
                    source.path().display()
                );
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::tree::TreeFolder;
    use super::*;

    #[test]
    fn a_file_is_kept_open_until_all_of_its_names_were_met() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), b"").unwrap();
        for name in ["b", "c"] {
            fs::hard_link(folder.path().join("a"), folder.path().join(name)).unwrap();
        }
        let tree = TreeFolder::open(folder.path()).unwrap();
        let pin = |name: &str| tree.pin(name.as_bytes()).unwrap();
        let mut links = CopiedLinks::with_room_for(1);
        assert_eq!(links.copy_of(&pin("a")), None);
        links.remember(&pin("a"), Path::new("copy"));
        assert_eq!(links.copy_of(&pin("b")).as_deref(), Some(Path::new("copy")));
        assert_eq!(links.copied.len(), 1);
        assert_eq!(links.copy_of(&pin("c")).as_deref(), Some(Path::new("copy")));
        assert_eq!(links.copied.len(), 0);
    }

    #[test]
    fn a_file_beyond_the_limit_is_copied_for_each_name() {
        let folder = tempfile::tempdir().unwrap();
        for (name, other) in [("a", "b"), ("c", "d")] {
            fs::write(folder.path().join(name), b"").unwrap();
            fs::hard_link(folder.path().join(name), folder.path().join(other)).unwrap();
        }
        let tree = TreeFolder::open(folder.path()).unwrap();
        let pin = |name: &str| tree.pin(name.as_bytes()).unwrap();
        let mut links = CopiedLinks::with_room_for(1);
        links.remember(&pin("a"), Path::new("first"));
        links.remember(&pin("c"), Path::new("second"));
        assert_eq!(links.copy_of(&pin("d")), None);
        assert_eq!(links.copy_of(&pin("b")).as_deref(), Some(Path::new("first")));
    }
}
