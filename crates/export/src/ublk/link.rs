//! /dev/underseal/NAME: a name that stays the same whichever number the device gets.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

const FOLDER: &str = "/dev/underseal";

/// A link that goes when the value does.
pub(super) struct Link(PathBuf);

impl Link {
    /// Makes the link lead to device `id`, wherever it led before.
    ///
    /// # Errors
    /// When this user may not make one.
    pub(super) fn make(name: &str, id: u32) -> io::Result<Self> {
        match fs::DirBuilder::new().mode(0o755).create(FOLDER) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        let path = Path::new(FOLDER).join(name);
        // Beside it and then over it: whoever looks finds the old one or the new one.
        let fresh = Path::new(FOLDER).join(format!(".{name}.{id}"));
        match fs::remove_file(&fresh) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        symlink(format!("../ublkb{id}"), &fresh)?;
        fs::rename(&fresh, &path)?;
        Ok(Self(path))
    }

    /// The link that another server has made, for the one that goes on with its device.
    pub(super) fn of(name: &str) -> Self {
        Self(Path::new(FOLDER).join(name))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Leaves it behind, for who goes on with the device.
    pub(super) fn leave(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// The device that a link of this name leads to, if root made it.
pub(super) fn lookup(name: &str) -> Option<u32> {
    let path = Path::new(FOLDER).join(name);
    let owned = fs::symlink_metadata(&path).is_ok_and(|link| link.uid() == 0);
    let target = fs::read_link(&path).ok().filter(|_| owned)?;
    target.to_str()?.strip_prefix("../ublkb")?.parse().ok()
}
