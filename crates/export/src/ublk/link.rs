//! The link /dev/underseal/NAME: a name that is independent of the device's number.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

const FOLDER: &str = "/dev/underseal";

/// A link that is removed when this is dropped, if it still leads to the device.
pub(super) struct Link {
    path: PathBuf,
    target: PathBuf,
}

impl Link {
    /// Makes the link lead to device `id`, wherever it led before.
    pub(super) fn make(name: &str, id: u32) -> io::Result<Self> {
        match fs::DirBuilder::new().mode(0o755).create(FOLDER) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => made?,
        }
        let path = Path::new(FOLDER).join(name);
        // The new link is renamed over the old one: readers find one of the two.
        let fresh = Path::new(FOLDER).join(format!(".{name}.{id}"));
        match fs::remove_file(&fresh) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let target = target(id);
        symlink(&target, &fresh)?;
        fs::rename(&fresh, &path)?;
        Ok(Self { path, target })
    }

    /// The link that an old server has made, for the new server of its device.
    pub(super) fn of(name: &str, id: u32) -> Self {
        Self { path: Path::new(FOLDER).join(name), target: target(id) }
    }

    /// Returns the link's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the link in place for the next server.
    pub(super) fn leave(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if fs::read_link(&self.path).is_ok_and(|to| to == self.target) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn target(id: u32) -> PathBuf {
    format!("../ublkb{id}").into()
}

/// Returns the device that a link of this name leads to, if root made the link.
pub(super) fn lookup(name: &str) -> Option<u32> {
    let path = Path::new(FOLDER).join(name);
    let owned = fs::symlink_metadata(&path).is_ok_and(|link| link.uid() == 0);
    let target = fs::read_link(&path).ok().filter(|_| owned)?;
    target.to_str()?.strip_prefix("../ublkb")?.parse().ok()
}
