//! Folders and entries by descriptors: the only way in which tools access a tree, which its owner
//! may change meanwhile.
//!
//! A path is looked up once, for the root, through links of this user and of root only. All other
//! lookups are relative to an open folder, one name at a time, and no symlink is followed. An entry
//! is pinned (O_PATH) before its attributes are read, so the inspected file is the file that is
//! opened, and the file that gets an owner or a mode. Paths are for messages.
//!
//! Tools go down a tree by recursion, and each level keeps descriptors open, so the number of
//! levels has a limit.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fstat, linkat, mkdirat, mknodat,
    openat, openat2, readlinkat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use underseal_sandbox::pin;

use super::inherited::close_to_others;
use super::sync::{sync_all_of, sync_entries};
use super::walk::EntryKind;
use crate::{Error, ErrorKind, Result, durable};

/// An open folder.
#[derive(Debug)]
pub(super) struct TreeFolder {
    fd: OwnedFd,
    path: PathBuf,
    /// The number of folders above it that this tool has opened.
    depth: usize,
}

/// An entry that stays the same file, whatever happens to its name.
#[derive(Debug)]
pub(super) struct PinnedEntry {
    fd: File,
    path: PathBuf,
    about: Metadata,
    /// The depth of its folder.
    depth: usize,
}

/// The number of levels that a tool enters. A path of one-letter names has twice as many, and real
/// trees have less than a hundred.
const DEEPEST: usize = 1000;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const PIN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Refuses a destination, which need not exist yet, that is the folder that is read, or in it.
///
/// # Errors
/// `BadOption`; `Io` when the folder cannot be opened.
pub fn check_outside(destination: &Path, source: &Path) -> Result<()> {
    if TreeFolder::open(source)?.contains(destination)? { Err(within_itself(destination)) } else { Ok(()) }
}

/// Returns the error of a destination that a tool would read.
pub(super) fn within_itself(path: &Path) -> Error {
    Error::new(ErrorKind::BadOption, "it is in the folder that is read, or that folder").in_file(path)
}

impl TreeFolder {
    /// Opens a tree's root, the only path that is followed, but for links of other users.
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::of(pin(path).map_err(|e| Error::io(path, "cannot be listed", e))?, path)
    }

    /// Opens a tree's root by a descriptor. The path is for messages.
    pub(super) fn of(root: impl AsFd, path: &Path) -> Result<Self> {
        let fd = openat(root, ".", FOLDER, Mode::empty());
        let fd = fd.map_err(|e| Error::io(path, "cannot be listed", e))?;
        Ok(Self { fd, path: path.into(), depth: 0 })
    }

    /// Opens the folder of a path's last name.
    pub(super) fn above(path: &Path) -> Result<Self> {
        let above = match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        let fd = pin(above).and_then(|fd| Ok(openat(fd, ".", PIN | OFlags::DIRECTORY, Mode::empty())?));
        let fd = fd.map_err(|e| Error::io(path, "cannot be inspected", e))?;
        Ok(Self { fd, path: path.parent().unwrap_or(Path::new("")).into(), depth: 0 })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder with another path for messages.
    pub(super) fn called(self, path: &Path) -> Self {
        Self { path: path.into(), ..self }
    }

    /// Returns an entry's path, for messages.
    pub(super) fn path_of(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    /// Returns all names in it. The folder may be changed during a loop over the names.
    pub(super) fn names(&self) -> Result<Vec<Vec<u8>>> {
        let failed = |e: Errno| Error::io(&self.path, "cannot be listed", e);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    /// Returns the folder itself, pinned.
    pub(super) fn itself(&self) -> Result<PinnedEntry> {
        let fd = openat(&self.fd, ".", PIN | OFlags::DIRECTORY, Mode::empty());
        PinnedEntry::new(fd, self.path.clone(), self.depth)
    }

    pub(super) fn pin(&self, name: &[u8]) -> Result<PinnedEntry> {
        PinnedEntry::new(openat(&self.fd, name, PIN, Mode::empty()), self.path_of(name), self.depth)
    }

    /// Pins an entry that may have been removed since it was listed.
    pub(super) fn find(&self, name: &[u8]) -> Result<Option<PinnedEntry>> {
        match openat(&self.fd, name, PIN, Mode::empty()) {
            Err(Errno::NOENT) => Ok(None),
            fd => PinnedEntry::new(fd, self.path_of(name), self.depth).map(Some),
        }
    }

    /// Pins an entry whose path leads through folders below this folder, and nothing else.
    pub(super) fn beneath(&self, path: &Path) -> Result<PinnedEntry> {
        if path.as_os_str().is_empty() {
            return self.itself();
        }
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let fd = loop {
            match openat2(&self.fd, path, PIN, Mode::empty(), how) {
                // A name was moved in the meantime.
                Err(Errno::AGAIN | Errno::INTR) => {}
                fd => break fd,
            }
        };
        PinnedEntry::new(fd, self.path.join(path), self.depth)
    }

    /// Returns true when a path, which need not exist yet, leads to this folder or into it.
    ///
    /// Mounts and renames may hide that, so a tool also refuses to enter its destination.
    pub(super) fn contains(&self, path: &Path) -> Result<bool> {
        let inode = self.itself()?.inode();
        let existing = openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        // A folder that is missing is an error when the destination is made.
        let Ok(mut fd) = existing.or_else(|_| Self::above(path).map(|above| above.fd)) else {
            return Ok(false);
        };
        loop {
            let about = fstat(&fd).map_err(|e| Error::io(path, "cannot be inspected", e))?;
            if (about.st_dev, about.st_ino) == inode {
                return Ok(true);
            }
            // A folder above that may not be searched.
            let Ok(above) = openat(&fd, "..", PIN | OFlags::DIRECTORY, Mode::empty()) else {
                return Ok(false);
            };
            let next = fstat(&above).map_err(|e| Error::io(path, "cannot be inspected", e))?;
            if (next.st_dev, next.st_ino) == (about.st_dev, about.st_ino) {
                return Ok(false);
            }
            fd = above;
        }
    }

    pub(super) fn has(&self, name: &[u8]) -> bool {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Creates a file that did not exist, for its owner only: without the folder's lists.
    pub(super) fn make_file(&self, name: &[u8]) -> Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::from_raw_mode(0o600));
        let fd = fd.map_err(|e| self.unmade(name, e))?;
        close_to_others(&fd, &self.path_of(name))?;
        Ok(fd.into())
    }

    pub(super) fn make_folder(&self, name: &[u8]) -> Result<TreeFolder> {
        mkdirat(&self.fd, name, Mode::from_raw_mode(0o700)).map_err(|e| self.unmade(name, e))?;
        let fd = openat(&self.fd, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        let fd = fd.map_err(|e| self.unmade(name, e))?;
        close_to_others(&fd, &self.path_of(name))?;
        Ok(TreeFolder { fd, path: self.path_of(name), depth: self.depth + 1 })
    }

    pub(super) fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<PinnedEntry> {
        symlinkat(target, &self.fd, name).map_err(|e| self.unmade(name, e))?;
        self.made(name, FileType::Symlink, 0)
    }

    pub(super) fn make_special(&self, name: &[u8], kind: FileType, device: u64) -> Result<PinnedEntry> {
        mknodat(&self.fd, name, kind, Mode::from_raw_mode(0o600), device)
            .map_err(|e| self.unmade(name, e))?;
        let made = self.made(name, kind, device)?;
        close_to_others(&made, &made.path)?;
        Ok(made)
    }

    /// Returns an entry that was just created without a descriptor, and refuses a file that
    /// replaced it.
    fn made(&self, name: &[u8], kind: FileType, device: u64) -> Result<PinnedEntry> {
        let made = self.pin(name)?;
        let about = &made.about;
        let device = if kind.is_char_device() || kind.is_block_device() { device } else { about.rdev() };
        if FileType::from_raw_mode(about.mode()) != kind || about.rdev() != device || about.nlink() != 1 {
            return Err(made.swapped());
        }
        Ok(made)
    }

    fn unmade(&self, name: &[u8], e: Errno) -> Error {
        Error::io(&self.path_of(name), "cannot be made", e)
    }

    /// Creates another name of a file.
    pub(super) fn link(&self, to: &PinnedEntry, name: &[u8]) -> Result<()> {
        linkat(CWD, crate::proc_path(to), &self.fd, name, AtFlags::SYMLINK_FOLLOW)
            .map_err(|e| Error::io(&self.path_of(name), "cannot be linked", e))
    }

    pub(super) fn rename(
        &self,
        from: &[u8],
        to: &[u8],
        flags: RenameFlags,
    ) -> std::result::Result<(), Errno> {
        renameat_with(&self.fd, from, &self.fd, to, flags)
    }

    pub(super) fn remove(&self, name: &[u8]) -> std::result::Result<(), Errno> {
        unlinkat(&self.fd, name, AtFlags::empty())
    }

    /// Makes all writes to its filesystem durable that came after this folder was opened.
    ///
    /// Fails with `Io` when a part could not be written, also where another program got that error.
    pub(super) fn sync(&self) -> Result<()> {
        sync_all_of(&self.fd, &self.path)
    }

    /// Makes its entries and attributes durable, where [`TreeFolder::sync`] is not enough.
    ///
    /// Fails with `Io`.
    pub(super) fn sync_entries(&self) -> Result<()> {
        sync_entries(&self.fd, &self.path)
    }
}

impl AsFd for TreeFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PinnedEntry {
    fn new(fd: std::result::Result<OwnedFd, Errno>, path: PathBuf, depth: usize) -> Result<Self> {
        let failed = |e: std::io::Error| Error::io(&path, "cannot be inspected", e);
        let fd = File::from(fd.map_err(|e| failed(e.into()))?);
        let about = fd.metadata().map_err(failed)?;
        Ok(Self { fd, path, about, depth })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the metadata at the time of pinning.
    pub(super) fn about(&self) -> &Metadata {
        &self.about
    }

    pub(super) fn kind(&self) -> EntryKind {
        EntryKind::of(&self.about)
    }

    /// Returns a descriptor that keeps the file, and so its inode number, from going.
    pub(super) fn keep_open(&self) -> std::io::Result<OwnedFd> {
        Ok(self.fd.try_clone()?.into())
    }

    pub(super) fn inode(&self) -> (u64, u64) {
        (self.about.dev(), self.about.ino())
    }

    /// Opens exactly this file. Pipes and devices are not opened.
    pub(super) fn open(&self, writable: bool) -> Result<File> {
        if self.kind() != EntryKind::File {
            return Err(self.swapped());
        }
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = openat(CWD, crate::proc_path(self), flags, Mode::empty());
        Ok(fd.map_err(|e| Error::io(&self.path, "cannot open", e))?.into())
    }

    /// Opens a folder. Fails with `Unsupported` when too many folders above it are open.
    pub(super) fn folder(&self) -> Result<TreeFolder> {
        if self.depth >= DEEPEST {
            let context = format!(
                "more than {DEEPEST} folders are nested, and the inner ones are left out; try: move them up, or \
                 begin further down"
            );
            return Err(Error::new(ErrorKind::Unsupported, context).in_file(&self.path));
        }
        let fd = openat(&self.fd, ".", FOLDER, Mode::empty());
        let fd = fd.map_err(|e| Error::io(&self.path, "cannot be listed", e))?;
        Ok(TreeFolder { fd, path: self.path.clone(), depth: self.depth + 1 })
    }

    /// Returns the target of a symlink.
    pub(super) fn target(&self) -> Result<Vec<u8>> {
        let target = readlinkat(&self.fd, "", Vec::new());
        Ok(target.map_err(|e| Error::io(&self.path, "cannot be read", e))?.into_bytes())
    }

    /// Whether another entry is the same file. overlayfs copies a file that is renamed, and the
    /// copy may have another number: there all of the attributes count.
    pub(super) fn is_same(&self, other: &PinnedEntry) -> bool {
        self.is(other.inode(), &other.about)
    }

    /// Whether it is the file with this device and inode number, and on overlayfs these attributes.
    pub(super) fn is(&self, inode: (u64, u64), about: &Metadata) -> bool {
        let of = |about: &Metadata| {
            let contents = (about.len(), about.mtime(), about.mtime_nsec());
            (about.mode(), about.uid(), about.gid(), about.rdev(), (!about.is_dir()).then_some(contents))
        };
        self.inode() == inode || (durable::is_overlay(self) && of(&self.about) == of(about))
    }

    pub(super) fn swapped(&self) -> Error {
        Error::new(ErrorKind::Busy, "another file was put in its place meanwhile").in_file(&self.path)
    }
}

impl AsFd for PinnedEntry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
