//! A machine's root folder, as of an image: its links are followed as the machine itself follows
//! them, where `/` is this folder.
//!
//! A path is looked up by openat2(2), which leads nowhere else whatever the links say, and its last
//! name by the folder's descriptor, without a link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, fsync, linkat, mkdirat, openat, openat2, readlinkat, renameat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use underseal_sandbox::pin;

const PIN: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// An open root folder. Paths are those of the machine, without the first slash.
#[derive(Debug)]
pub(crate) struct RootFolder {
    fd: OwnedFd,
    path: PathBuf,
}

/// A regular file of the machine.
pub(super) struct FoundFile {
    file: File,
    /// The user who owns it.
    pub(super) user: u32,
}

impl RootFolder {
    /// Opens the folder. A link of another user is not followed.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: pin(path)?, path: path.to_owned() })
    }

    /// The path on this machine, for messages.
    pub(crate) fn shown(&self, path: &Path) -> PathBuf {
        self.path.join(path)
    }

    /// Returns true when the path leads to a file or folder.
    pub(crate) fn leads_somewhere(&self, path: &Path) -> bool {
        self.look_up(path, PIN).is_ok()
    }

    /// Returns true when the last name is there, if only as a link that leads nowhere.
    pub(super) fn has_name(&self, path: &Path) -> io::Result<bool> {
        let found =
            self.above(path).and_then(|(folder, name)| Ok(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?));
        match found {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map(|_| true),
        }
    }

    /// Opens a regular file to read it; `None` for another one.
    pub(super) fn file(&self, path: &Path) -> io::Result<Option<FoundFile>> {
        use std::os::unix::fs::MetadataExt;

        let (folder, name) = self.above(path)?;
        // Inspected before it is opened: a pipe would wait, a tape be rewound.
        let found = File::from(openat(folder, name, PIN | OFlags::NOFOLLOW, Mode::empty())?);
        let about = found.metadata()?;
        if !about.is_file() {
            return Ok(None);
        }
        let file =
            File::open(format!("/proc/self/fd/{}", found.as_raw_fd())).map_err(|e| match e.kind() {
                // The file is there, whatever its second path says.
                io::ErrorKind::NotFound => io::Error::other("/proc is not mounted"),
                _ => e,
            })?;
        Ok(Some(FoundFile { file, user: about.uid() }))
    }

    /// Returns the target of a link.
    pub(super) fn link(&self, path: &Path) -> io::Result<PathBuf> {
        let (folder, name) = self.above(path)?;
        Ok(OsString::from_vec(readlinkat(folder, name, Vec::new())?.into_bytes()).into())
    }

    /// Makes a file that is not there yet, and missing folders above it. The file is there with all
    /// of its text, also after a power cut, or is not there.
    pub(super) fn make_file(&self, path: &Path, text: &str) -> io::Result<()> {
        let (folder, name) = self.made_above(path)?;
        let new = Self::write_new(&folder, name, text)?;
        // A name that was made in the meantime is neither followed nor replaced.
        linkat(&folder, &new, &folder, name, AtFlags::empty())?;
        unlinkat(&folder, &new, AtFlags::empty())?;
        sync(&folder)
    }

    /// Replaces a file, if it is there, and makes missing folders above it: it has the old text or
    /// the new one.
    pub(super) fn replace_file(&self, path: &Path, text: &str) -> io::Result<()> {
        let (folder, name) = self.made_above(path)?;
        let new = Self::write_new(&folder, name, text)?;
        renameat(&folder, &new, &folder, name)?;
        sync(&folder)
    }

    /// Removes the new file that a killed process has left beside this one.
    pub(super) fn remove_unfinished(&self, path: &Path) -> io::Result<()> {
        match self.above(path).and_then(|(folder, name)| remove_name(&folder, &new_name(name))) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Writes a file beside the one that it will become, and returns its name.
    fn write_new(folder: &OwnedFd, name: &OsStr, text: &str) -> io::Result<OsString> {
        let new = new_name(name);
        remove_name(folder, &new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mut file = File::from(openat(folder, &new, flags, Mode::from_raw_mode(0o644))?);
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).inspect_err(|_| {
            let _ = unlinkat(folder, &new, AtFlags::empty());
        })?;
        Ok(new)
    }

    /// Makes a link, and missing folders above it.
    pub(super) fn make_link(&self, path: &Path, target: &Path) -> io::Result<()> {
        let (folder, name) = self.made_above(path)?;
        Ok(symlinkat(target, folder, name)?)
    }

    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.above(path)?;
        Ok(unlinkat(folder, name, AtFlags::empty())?)
    }

    pub(super) fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = self.above(path)?;
        Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
    }

    /// Opens the folder of the last name.
    fn above<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL.into());
        };
        Ok((self.look_up(above, PIN | OFlags::DIRECTORY)?, name))
    }

    fn made_above<'p>(&self, path: &'p Path) -> io::Result<(OwnedFd, &'p OsStr)> {
        let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
        folders.pop();
        for folder in folders.into_iter().rev() {
            let (above, name) = self.above(folder)?;
            match mkdirat(above, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.above(path)
    }

    fn look_up(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        loop {
            match openat2(&self.fd, path, flags, Mode::empty(), how) {
                // A name was moved in the meantime.
                Err(Errno::AGAIN | Errno::INTR) => {}
                fd => return Ok(fd?),
            }
        }
    }
}

/// The name of a file until all of its text is written.
fn new_name(name: &OsStr) -> OsString {
    let mut new = OsString::from(".");
    new.push(name);
    new.push(".new");
    new
}

/// Removes a name, if it is there.
fn remove_name(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Writes a folder's names to the disk.
fn sync(folder: &OwnedFd) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fsync(openat(folder, ".", flags, Mode::empty())?)?)
}

impl FoundFile {
    /// Returns the contents, of `most` bytes at most.
    pub(super) fn read(self, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let most = u64::try_from(most).unwrap_or(u64::MAX);
        self.file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if len > most { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
    }
}
