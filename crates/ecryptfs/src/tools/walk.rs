//! A lower tree, one entry at a time, with its plain names.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use super::sync::sync_all_of;
use super::tree::{PinnedEntry, TreeFolder};
use super::{ProgressWatch, TreeKeys, unfinished};
use crate::lock::{LockMode, RootLock};
use crate::name::long;
use crate::{Error, ErrorKind, Result};

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A regular file.
    File,
    /// A symlink.
    Symlink,
    /// A pipe, a socket or a device.
    Special,
}

impl EntryKind {
    pub(super) fn of(about: &Metadata) -> Self {
        let kind = about.file_type();
        if kind.is_dir() {
            Self::Folder
        } else if kind.is_file() {
            Self::File
        } else if kind.is_symlink() {
            Self::Symlink
        } else {
            debug_assert!(
                kind.is_fifo() || kind.is_socket() || kind.is_block_device() || kind.is_char_device()
            );
            Self::Special
        }
    }
}

/// An entry of a lower tree.
pub(super) struct WalkEntry<'a> {
    /// The lower path, for messages.
    pub(super) lower: &'a Path,
    /// The plain path, from the tree's root.
    pub(super) plain: &'a Path,
    pub(super) about: &'a Metadata,
    pub(super) kind: EntryKind,
    pub(super) entry: &'a PinnedEntry,
    /// The folder of the entry, and its name there; for a root that is a folder, the folder itself
    /// and `.`.
    pub(super) folder: &'a TreeFolder,
    pub(super) name: &'a [u8],
    /// The folder where the walk began, and the entry's lower path from there.
    pub(super) root: &'a TreeFolder,
    pub(super) inside: &'a Path,
}

impl WalkEntry<'_> {
    /// Fails with `Busy` when the entry's name leads to another file than this one by now.
    pub(super) fn leads_to(&self, file: (u64, u64)) -> Result<()> {
        if self.folder.pin(self.name)?.inode() == file {
            return Ok(());
        }
        let context = "another file was put in its place meanwhile";
        Err(Error::new(ErrorKind::Busy, context).in_file(self.lower))
    }
}

/// The work on each entry.
pub(super) trait Visit {
    /// Visits an entry; a folder before its contents.
    fn visit(
        &mut self,
        found: &WalkEntry<'_>,
        keys: &mut TreeKeys,
        watch: &mut dyn ProgressWatch,
    ) -> Result<()>;

    /// Leaves a folder after its contents. A folder whose visit failed is not entered.
    fn leave(&mut self, _found: &WalkEntry<'_>, _keys: &mut TreeKeys) -> Result<()> {
        Ok(())
    }

    /// Visits a name file whose name does not exist.
    fn left_over(&mut self, _lower: &Path) {}

    /// Returns true when names are decoded. Otherwise the keys of names are not needed.
    fn needs_names(&self) -> bool {
        true
    }

    /// Counts an entry that failed.
    fn failed(&mut self);
}

/// The lower path of a tool's start, opened once: the locked folder is the folder that is walked.
pub(super) struct Root {
    folder: TreeFolder,
    /// The name in the folder; `.` for a folder.
    name: Vec<u8>,
    path: PathBuf,
    /// The file, where that alone is changed.
    file: Option<File>,
    _claim: Option<RootLock>,
}

impl Root {
    /// Opens a folder, or the folder of a file. For a tool that writes, the folder is locked
    /// against mounts and other tools.
    ///
    /// Fails with `Busy`, and with `Io` when nothing exists at that path.
    pub(super) fn open(path: &Path, access: Option<LockMode>) -> Result<Self> {
        // Every level of a tree keeps descriptors open.
        crate::fs::raise_descriptor_limit();
        let last = path.file_name().map(|name| name.to_owned().into_vec());
        let (folder, name) = match last {
            // A symlink with a slash at the end is followed.
            Some(name) if !path.as_os_str().as_encoded_bytes().ends_with(b"/") => {
                (TreeFolder::above(path)?, name)
            }
            _ => (TreeFolder::open(path)?, b".".to_vec()),
        };
        let entry = folder.pin(&name)?;
        if entry.kind() != EntryKind::Folder {
            // The folder is open for lookups only, and may not be readable.
            let is_changed = access.is_some() && entry.kind() == EntryKind::File;
            let file = is_changed.then(|| entry.open(false)).transpose()?;
            return Ok(Self { folder, name, path: path.into(), file, _claim: None });
        }
        let folder = entry.folder()?.called(path);
        let claim = access.map(|access| RootLock::on(&folder, path, access)).transpose()?;
        Ok(Self { folder, name: b".".to_vec(), path: path.into(), file: None, _claim: claim })
    }

    /// Makes all writes durable.
    pub(super) fn sync(&self) -> Result<()> {
        match &self.file {
            Some(file) => sync_all_of(file, &self.path).and_then(|()| self.folder.sync_entries()),
            None if self.name == b"." => self.folder.sync(),
            // No other entry is changed.
            None => Ok(()),
        }
    }
}

/// Visits a lower path and all entries below it. Failures are reported to the watch.
pub(super) fn walk(root: &Root, keys: &mut TreeKeys, watch: &mut dyn ProgressWatch, visit: &mut dyn Visit) {
    let mut walk = Walk { root, keys, watch, visit };
    let inside = match &*root.name {
        b"." => PathBuf::new(),
        name => join(Path::new(""), name.to_vec()),
    };
    let visited = walk.entry(&root.folder, &root.name, &inside, Path::new(""));
    walk.note(&root.path, visited);
}

struct Walk<'w> {
    root: &'w Root,
    keys: &'w mut TreeKeys,
    watch: &'w mut dyn ProgressWatch,
    visit: &'w mut dyn Visit,
}

impl Walk<'_> {
    /// Reports a failure.
    fn note(&mut self, lower: &Path, done: Result<()>) {
        if let Err(error) = done {
            self.visit.failed();
            self.watch.failed(lower, error);
        }
    }

    fn entry(&mut self, folder: &TreeFolder, name: &[u8], inside: &Path, plain: &Path) -> Result<()> {
        let Some(entry) = folder.find(name)? else { return Ok(()) };
        let lower = if name == b"." { self.root.path.as_path() } else { entry.path() };
        let found = WalkEntry {
            lower,
            plain,
            about: entry.about(),
            kind: entry.kind(),
            entry: &entry,
            folder,
            name,
            root: &self.root.folder,
            inside,
        };
        self.visit.visit(&found, self.keys, self.watch)?;
        if found.kind != EntryKind::Folder {
            return Ok(());
        }
        let listed = entry.folder().and_then(|opened| self.list(&opened.called(lower), inside, plain));
        self.note(lower, listed);
        self.visit.leave(&found, self.keys)
    }

    fn list(&mut self, folder: &TreeFolder, inside: &Path, plain: &Path) -> Result<()> {
        let mut names = folder.names()?;
        // An interrupted run's files are known by the file that they belong to.
        names.sort_by_key(|name| unfinished::is_temporary(name));
        for name in names {
            let path = folder.path_of(&name);
            let name_file =
                if self.keys.has_plain_names() { None } else { long::name_file_of(folder, &name) };
            if let Some(of) = name_file {
                if !folder.has(of) {
                    self.visit.left_over(&path);
                }
                continue;
            }
            let decoded = match self.visit.needs_names() {
                true => self.keys.decode_entry(folder, &name),
                false => Ok(name.clone()),
            };
            let visited = match decoded {
                Ok(decoded) => self.entry(folder, &name, &join(inside, name.clone()), &join(plain, decoded)),
                Err(e) => Err(e.in_file(&path)),
            };
            self.note(&path, visited);
        }
        Ok(())
    }
}

/// Returns a path's last name.
pub(super) fn last(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_encoded_bytes()
}

pub(super) fn join(folder: &Path, name: Vec<u8>) -> PathBuf {
    folder.join(OsString::from_vec(name))
}
