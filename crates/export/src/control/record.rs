//! The record of an open volume: the image that its server opened, and how.
//!
//! A server writes the record beside its control socket before it enters its sandbox, where it can
//! no longer write it. Clients take the image from the record, not from the server's answers: a
//! server that was taken over through its clients' requests could name another volume's image in
//! its answers, and would be sent that volume's keys.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};
use underseal_sandbox::RemovedKind;

use super::status::Opened;
use super::{Directory, Name};
use crate::{Error, ErrorKind, Result};

/// The longest record in bytes. A path has up to 4096, and JSON needs up to six for one.
const LONGEST: u64 = 1 << 20;

/// The identity of an open image, which its path need not lead to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageIdentity {
    /// A regular file: the number of its file system, and its inode number.
    File(u64, u64),
    /// A block device's number.
    BlockDevice(u64),
}

impl ImageIdentity {
    /// Returns the identity of a file or block device; `None` for files of other kinds.
    pub fn of(about: &fs::Metadata) -> Option<Self> {
        match about.file_type() {
            kind if kind.is_block_device() => Some(Self::BlockDevice(about.rdev())),
            kind if kind.is_file() => Some(Self::File(about.dev(), about.ino())),
            _ => None,
        }
    }
}

/// The image of an open volume, and how it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The path or URI of the image.
    pub image: String,
    /// The identity of the open image; `None` for one on a server or a cluster.
    pub identity: Option<ImageIdentity>,
    /// How the volume was opened.
    pub opened: Opened,
}

impl VolumeRecord {
    /// Reads the record of a volume; `None` where there is none, as with servers of older versions
    /// and of other users.
    ///
    /// # Errors
    /// `Directory` when the directory of control sockets or the record cannot be used.
    pub fn read(directory: &Directory, name: &Name) -> Result<Option<Self>> {
        let path = directory.record(name);
        let read = || -> io::Result<Option<Self>> {
            let folder = match directory.open() {
                // Another user's directory: a record there is worth no more than the server's word.
                Err(e) if e.kind() == io::ErrorKind::Other => return Ok(None),
                opened => opened?,
            };
            let Some(file) = path.file_name() else { return Ok(None) };
            // A pipe of this name is not waited for.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let mut text = Vec::new();
            File::from(openat(&folder, file, flags, Mode::empty())?).take(LONGEST).read_to_end(&mut text)?;
            Ok(Some(serde_json::from_slice(&text)?))
        };
        match read() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map_err(|e| unusable(&path, e)),
        }
    }

    /// Writes the record of a volume whose control socket this process has. A record that a killed
    /// server left is replaced.
    ///
    /// # Errors
    /// `Directory` when the record cannot be written.
    pub fn write(&self, directory: &Directory, name: &Name) -> Result<RecordFile> {
        let path = directory.record(name);
        let write = || -> io::Result<fs::Metadata> {
            let folder = path.parent().unwrap_or(Path::new("."));
            let mut new = tempfile::Builder::new().prefix(".record-").tempfile_in(folder)?;
            new.write_all(&serde_json::to_vec(self)?)?;
            new.persist(&path).map_err(|e| e.error)?.metadata()
        };
        let about = write().map_err(|e| unusable(&path, e))?;
        Ok(RecordFile::listed(path, &about, true))
    }

    /// Leaves the record of an old server as it is: that server's own word for the image counts
    /// less. Writes one where there is none. The file stays until [`RecordFile::remove`].
    ///
    /// # Errors
    /// `Directory` when the record cannot be read or written.
    pub fn keep_or_write(&self, directory: &Directory, name: &Name) -> Result<RecordFile> {
        if Self::read(directory, name)?.is_none() {
            let mut file = self.write(directory, name)?;
            file.is_temporary = false;
            return Ok(file);
        }
        let path = directory.record(name);
        let about = fs::symlink_metadata(&path).map_err(|e| unusable(&path, e))?;
        Ok(RecordFile::listed(path, &about, false))
    }
}

/// The file of a record, which the server removes at its end.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    /// Whether dropping the value removes the file.
    is_temporary: bool,
}

impl RecordFile {
    /// Lists the file with the sandbox's helper, for its removal.
    fn listed(path: PathBuf, about: &fs::Metadata, is_temporary: bool) -> Self {
        let file = (about.dev(), about.ino());
        underseal_sandbox::will_remove(&path, RemovedKind::RegularFile, file);
        Self { path, is_temporary }
    }

    /// Removes the file. The volume's control socket must still be this server's: a later server of
    /// the same name has a record under the same path.
    pub fn remove(mut self) {
        self.is_temporary = true;
    }
}

impl Drop for RecordFile {
    fn drop(&mut self) {
        if self.is_temporary
            && let Err(e) = underseal_sandbox::remove(&self.path)
            && !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
        {
            log::warn!("{}: cannot remove: {e}", self.path.display());
        }
    }
}

fn unusable(path: &Path, e: io::Error) -> Error {
    let context = format!("{}: the record of an open volume cannot be used", path.display());
    Error::new(ErrorKind::Directory, context).with_source(e)
}

#[cfg(test)]
mod tests {
    use super::super::status::Format;
    use super::*;

    fn record(image: &str) -> VolumeRecord {
        let opened = Opened {
            format: Format::Luks2,
            header: None,
            header_offset: 0,
            key_size: Some(64),
            hash: None,
            plain: None,
            discards: false,
        };
        VolumeRecord { image: image.into(), identity: Some(ImageIdentity::File(1, 2)), opened }
    }

    #[test]
    fn a_record_is_replaced_by_a_new_server_and_kept_by_one_that_takes_over() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path());
        let name = "x".repeat(127).parse().unwrap();
        let read = || VolumeRecord::read(&directory, &name).unwrap();
        assert_eq!(read(), None);
        std::mem::forget(record("/killed").write(&directory, &name).unwrap());
        let file = record("/new").write(&directory, &name).unwrap();
        assert_eq!(read(), Some(record("/new")));
        // A handover that fails leaves the record to the old server.
        drop(record("/lie").keep_or_write(&directory, &name).unwrap());
        assert_eq!(read(), Some(record("/new")));
        record("/lie").keep_or_write(&directory, &name).unwrap().remove();
        assert_eq!(read(), None);
        drop(file);
        drop(record("/late").keep_or_write(&directory, &name).unwrap());
        assert_eq!(read(), Some(record("/late")));
    }

    #[test]
    fn a_record_that_is_no_file_of_this_directory_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::at(scratch.path());
        let name: Name = "disk".parse().unwrap();
        let path = directory.record(&name);
        let other = scratch.path().join("other");
        fs::write(&other, serde_json::to_vec(&record("/image")).unwrap()).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert_eq!(VolumeRecord::read(&directory, &name).unwrap_err().kind(), ErrorKind::Directory);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "{").unwrap();
        assert_eq!(VolumeRecord::read(&directory, &name).unwrap_err().kind(), ErrorKind::Directory);
    }
}
