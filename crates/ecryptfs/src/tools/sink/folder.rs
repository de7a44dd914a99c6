//! A folder that is made, or is empty.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{Sink, why};
use crate::tools::attributes::Attributes;
use crate::{Error, ErrorKind, Result};

/// A tree in a folder. Nothing that is there is ever replaced or followed.
#[derive(Debug)]
pub struct FolderSink {
    root: PathBuf,
}

impl FolderSink {
    /// Takes a folder that does not exist, or is empty.
    ///
    /// # Errors
    /// `BadOption` when something is in it; `Io`.
    pub fn new(root: &Path) -> Result<Self> {
        make_empty(root)?;
        Ok(Self { root: root.into() })
    }

    fn path(&self, plain: &Path) -> PathBuf {
        if plain.as_os_str().is_empty() { self.root.clone() } else { self.root.join(plain) }
    }
}

/// Makes a folder for its owner only, unless it is there and empty.
pub(in crate::tools) fn make_empty(root: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(root) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let mut entries = fs::read_dir(root).map_err(|e| Error::io(root, "cannot be listed", e))?;
            match entries.next() {
                None => Ok(()),
                Some(_) => Err(Error::new(ErrorKind::BadOption, "there is something in it").in_file(root)),
            }
        }
        made => made.map_err(|e| Error::io(root, "cannot be made", e)),
    }
}

impl Sink for FolderSink {
    fn folder(&mut self, plain: &Path, _attributes: &Attributes) -> Result<()> {
        if plain.as_os_str().is_empty() {
            return Ok(());
        }
        let path = self.path(plain);
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| Error::io(&path, "cannot be made", e))
    }

    fn leave(&mut self, plain: &Path, attributes: &Attributes) -> Result<()> {
        attributes.apply(&self.path(plain))
    }

    fn file(&mut self, plain: &Path, attributes: &Attributes, size: u64, data: &mut dyn Read) -> Result<()> {
        let path = self.path(plain);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = file.map_err(|e| Error::io(&path, "cannot be made", e))?;
        let written = io::copy(data, &mut file).and_then(|written| match written == size {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        if let Err(e) = written {
            // Half a file looks like a whole one.
            let _ = fs::remove_file(&path);
            return Err(why(e, |e| Error::io(&path, "cannot be written", e)));
        }
        attributes.apply(&path)
    }

    fn link(&mut self, plain: &Path, to: &Path, _attributes: &Attributes) -> Result<()> {
        let path = self.path(plain);
        fs::hard_link(self.path(to), &path).map_err(|e| Error::io(&path, "cannot be linked", e))
    }

    fn symlink(&mut self, plain: &Path, target: &[u8], attributes: &Attributes) -> Result<()> {
        let path = self.path(plain);
        symlink(OsStr::from_bytes(target), &path).map_err(|e| Error::io(&path, "cannot be made", e))?;
        attributes.apply(&path)
    }

    fn special(&mut self, plain: &Path, attributes: &Attributes) -> Result<()> {
        attributes.make_special(&self.path(plain))
    }
}
