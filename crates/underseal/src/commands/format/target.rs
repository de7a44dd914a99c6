//! What a header goes to: an existing file, a new one that goes again unless it is kept, or a server's export.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use underseal_device::{Device, FileDevice, OpenOptions};

use super::contents;
use crate::error::{Error, Result};
use crate::lower::{Lower, On, Remote, is_remote};
use crate::size;

/// A file or block device, locked, or an export, of the right size.
pub(super) struct Target {
    place: Place,
    path: PathBuf,
    size: u64,
    /// It was not there before.
    new: bool,
}

enum Place {
    File(FileDevice),
    Remote(Box<Remote>),
}

impl Target {
    /// The image: made if it does not exist, as large as asked for.
    ///
    /// # Errors
    /// `Usage` when no size is given for a new one, or another than an existing one has; `InUse`; `Failed`.
    pub(super) fn open(path: &Path, size: Option<u64>, force: bool) -> Result<Self> {
        if size == Some(0) {
            return Err(Error::usage("an image of no bytes holds nothing").with_remedy("--size 10G"));
        }
        if size.is_none() && !is_remote(path) && !path.exists() {
            return Err(Error::usage(format!("{}: does not exist", path.display()))
                .with_remedy("--size 10G to make one of that size"));
        }
        let mut this = Self::at(path)?;
        match size {
            Some(size) if size != this.size && is_remote(path) => {
                let context =
                    format!("{}: has {}, which its server settles", path.display(), size::show(this.size));
                return Err(Error::usage(context).with_remedy("without --size"));
            }
            Some(size) if this.size == 0 || (force && size != this.size) => {
                // Sparse: blocks are taken as they are written.
                this.set_len(size).map_err(|e| Error::io(path, "cannot set the size", e))?;
                this.size = size;
            }
            Some(size) if size != this.size => {
                let context = format!("{}: is there already, of {}", path.display(), size::show(this.size));
                return Err(Error::usage(context).with_remedy("without --size, or another image"));
            }
            None if this.size == 0 => {
                return Err(Error::usage(format!("{}: is empty", path.display())).with_remedy("--size 10G"));
            }
            _ => {}
        }
        Ok(this)
    }

    /// The file of a detached header: made if it does not exist; it grows as it is written.
    ///
    /// # Errors
    /// `InUse`, `Failed`.
    pub(super) fn open_header(path: &Path) -> Result<Self> {
        Self::at(path)
    }

    fn at(path: &Path) -> Result<Self> {
        if is_remote(path) {
            let device = Lower::open(path, OpenOptions::default())?.into_device();
            let (place, size) = (Place::Remote(Box::new(Remote::new(&*device)?)), device.geometry().size);
            return Ok(Self { place, path: path.into(), size, new: false });
        }
        // Read and write for its owner only: it is about to hold secrets.
        let new = match File::options().write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            Err(e) => return Err(Error::io(path, "cannot create", e)),
        };
        let device = FileDevice::open(path, OpenOptions::default())?;
        let size = device.geometry().size;
        Ok(Self { place: Place::File(device), path: path.into(), size, new })
    }

    fn set_len(&self, size: u64) -> io::Result<()> {
        match &self.place {
            Place::File(device) => device.file().set_len(size),
            Place::Remote(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    pub(super) fn place(&self) -> On<'_> {
        match &self.place {
            Place::File(device) => On::File(device.file()),
            Place::Remote(remote) => On::Remote(remote),
        }
    }

    /// What it holds; none where it begins with zeros.
    pub(super) fn contents(&self) -> io::Result<Option<&'static str>> {
        match &self.place {
            Place::File(device) => contents::of(device.file()),
            Place::Remote(remote) => contents::of(&**remote),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// All went well: it stays.
    pub(super) fn keep(mut self) {
        self.new = false;
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.new {
            // It stays as an empty file then, and --size makes something of it.
            let _ = fs::remove_file(&self.path);
        }
    }
}
