//! The destination of a header: an existing file, a new one that is removed again unless it is
//! kept, or a remote image.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_device::{Device, FileDevice, OpenOptions};
use underseal_volume::{
    Header, ImageContents, NamedFile, NewHeader, Target, create_private, remove_new_file,
};

use crate::error::{Error, Result};
use crate::loop_file;
use crate::lower::{DeviceBytes, FileBytes, Lower, is_remote};
use crate::reencryption::marker;
use crate::size;

/// A locked file or block device, an NBD export, or an image on Ceph. Until [`Destination::settle`]
/// it is unchanged.
pub(super) struct Destination {
    place: Medium,
    path: PathBuf,
    /// The size that it will have.
    size: u64,
    /// True when this command made the file.
    new: bool,
}

enum Medium {
    /// The file does not exist yet.
    Absent,
    File(Arc<FileDevice>),
    Remote(Arc<dyn Device>, Box<DeviceBytes>),
}

impl Destination {
    /// Opens the image with the given size. Fails with `Usage` when a new image has no size, or an
    /// existing one another size; with `InUse`; with `Failed`.
    pub(super) fn open(path: &Path, size: Option<u64>, force: bool) -> Result<Self> {
        if size == Some(0) {
            return Err(Error::usage("an image of no bytes holds nothing").with_remedy("--size 10G"));
        }
        let mut this = Self::at(path)?;
        if size.is_none() && matches!(this.place, Medium::Absent) {
            return Err(Error::usage(format!("{}: does not exist", path.display()))
                .with_remedy("--size 10G to make one of that size"));
        }
        match size {
            Some(size) if size != this.size && !this.can_be_cut() => {
                let context =
                    format!("{}: has {}, which is settled there", path.display(), size::show(this.size));
                return Err(Error::usage(context).with_remedy("without --size"));
            }
            Some(size) if this.size == 0 || force => this.size = size,
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

    /// Opens the file of a detached header, which grows as it is written.
    pub(super) fn open_header(path: &Path) -> Result<Self> {
        Self::at(path)
    }

    fn at(path: &Path) -> Result<Self> {
        let (place, size) = if is_remote(path) {
            let device = Lower::open(path, OpenOptions::default())?.into_device();
            let (bytes, size) = (DeviceBytes::new(&*device)?, device.geometry().size);
            (Medium::Remote(device, Box::new(bytes)), size)
        } else if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            // The folder is checked before a passphrase is typed twice.
            fs::metadata(folder.unwrap_or(Path::new(".")))
                .map_err(|e| Error::io(path, "cannot create", e))?;
            (Medium::Absent, 0)
        } else {
            marker::refuse_unfinished(path)?;
            let device = FileDevice::open(path, OpenOptions::default())?;
            loop_file::lock_below(&device, true)?;
            let size = device.geometry().size;
            (Medium::File(Arc::new(device)), size)
        };
        Ok(Self { place, path: path.into(), size, new: false })
    }

    /// Makes a missing file, and sets its size. This is the first change, after all decisions.
    pub(super) fn settle(&mut self) -> Result<()> {
        if let Medium::Absent = self.place {
            // The mode permits access for the owner only: the file is about to hold secrets.
            let file = create_private(&self.path).map_err(|e| Error::io(&self.path, "cannot create", e))?;
            // Its name is not opened again: another user of the folder may put a link there.
            let device =
                file.try_clone().map_err(|e| Error::io(&self.path, "cannot open", e)).and_then(|file| {
                    Ok(FileDevice::over(file, &self.path.display().to_string(), OpenOptions::default())?)
                });
            let device = device.inspect_err(|_| remove_new_file(&self.path, &file))?;
            // A device over a file without a name would not miss it.
            let named = NamedFile::made(file).keeps_name();
            named.map_err(|e| Error::io(&self.path, "cannot create", e))?;
            self.new = true;
            self.place = Medium::File(Arc::new(device));
        }
        match &self.place {
            Medium::File(device) if device.geometry().size != self.size => {
                // The file is sparse: blocks are allocated as they are written.
                let cut = device.file().set_len(self.size);
                device.need(self.size);
                cut.map_err(|e| Error::io(&self.path, "cannot set the size", e))
            }
            _ => Ok(()),
        }
    }

    /// Writes a header.
    pub(super) fn write(&self, new: &NewHeader) -> Result<Header> {
        let written = match &self.place {
            Medium::Absent => return Err(Error::io(&self.path, "cannot write", io::ErrorKind::NotFound)),
            Medium::File(device) => new.write(&FileBytes::new(device)?),
            Medium::Remote(_, remote) => new.write(&**remote),
        };
        Ok(written.map_err(|e| e.in_file(&self.path))?)
    }

    /// Calls `act` with the bytes. Fails with `Failed` where the file does not exist yet.
    pub(super) fn on_bytes<T>(&self, act: impl FnOnce(&dyn Target) -> Result<T>) -> Result<T> {
        match &self.place {
            Medium::Absent => Err(Error::io(&self.path, "cannot write", io::ErrorKind::NotFound)),
            Medium::File(device) => act(&FileBytes::new(device)?),
            Medium::Remote(_, remote) => act(&**remote),
        }
    }

    /// Returns true when the size can be set: the destination is a file.
    fn can_be_cut(&self) -> bool {
        match &self.place {
            Medium::Absent => true,
            Medium::File(device) => device.file().metadata().is_ok_and(|about| about.is_file()),
            Medium::Remote(..) => false,
        }
    }

    /// Returns the device, with its present size.
    pub(super) fn device(&self) -> Result<Arc<dyn Device>> {
        let device: Arc<dyn Device> = match &self.place {
            Medium::Absent => return Err(Error::io(&self.path, "cannot open", io::ErrorKind::NotFound)),
            Medium::File(device) => device.clone(),
            Medium::Remote(device, _) => device.clone(),
        };
        device.refresh()?;
        Ok(device)
    }

    /// Describes the contents; `None` where the image begins with zeros.
    pub(super) fn contents(&self) -> Result<Option<&'static str>> {
        let contents = match &self.place {
            Medium::Absent => Ok(ImageContents::Zeros),
            Medium::File(device) => ImageContents::of(device.file()),
            Medium::Remote(_, remote) => ImageContents::of(&**remote),
        };
        Ok(contents.map_err(|e| e.in_file(&self.path))?.name())
    }

    /// Returns the device that existed before.
    pub(super) fn found(&self) -> Option<&dyn Device> {
        match &self.place {
            Medium::Absent => None,
            Medium::File(device) => Some(&**device),
            Medium::Remote(device, _) => Some(&**device),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Keeps the file, after success.
    pub(super) fn keep(mut self) {
        self.new = false;
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let (true, Medium::File(device)) = (self.new, &self.place) {
            // If the removal fails, an empty file stays, which a later --size reuses.
            remove_new_file(&self.path, device.file());
        }
    }
}
