//! Lower devices: claimed once, for all tables that lie on them, as the kernel claims them for device mapper.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;
use underseal_dm::{DeviceNumber, Error, Result};

/// Claims of lower devices.
#[derive(Default)]
pub(super) struct Lowers(Mutex<BTreeMap<DeviceNumber, Weak<Claim>>>);

/// A device that others are kept from claiming, for as long as this is there.
pub(super) struct Claim {
    /// Opened exclusively; a table server gets a duplicate, so that the claim lasts while one of them is there.
    pub(super) file: File,
    read_only: bool,
}

impl Lowers {
    /// Claims a device, or shares the claim that there is.
    ///
    /// # Errors
    /// `EBUSY` where others have it; `ENXIO` and others as the system says.
    pub(super) fn claim(&self, number: DeviceNumber, read_only: bool) -> Result<Arc<Claim>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get(&number).and_then(Weak::upgrade);
        if let Some(claim) = known.filter(|claim| read_only || !claim.read_only) {
            return Ok(claim);
        }
        // To write, where that can be: a later table may want to, and a second claim would be refused.
        let writes = open(number, false).map(|file| (file, false));
        let opened = match writes {
            Err(e) if read_only && e.errno() != Errno::BUSY => open(number, true).map(|file| (file, true)),
            opened => opened,
        };
        let (file, read_only) = opened?;
        let claim = Arc::new(Claim { file, read_only });
        all.retain(|_, claim| claim.strong_count() > 0);
        all.insert(number, Arc::downgrade(&claim));
        Ok(claim)
    }
}

impl Lowers {
    /// Takes the claim of a table server that was another back end's.
    pub(super) fn adopt(&self, file: File) -> Result<Arc<Claim>> {
        let of = file.metadata().map_err(|e| Error::system("a claimed device", &e))?;
        let number = DeviceNumber::of_node(of.rdev());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claim) = all.get(&number).and_then(Weak::upgrade) {
            return Ok(claim);
        }
        let flags =
            rustix::fs::fcntl_getfl(&file).map_err(|e| Error::system("a claimed device", &e.into()))?;
        let read_only = !flags.contains(rustix::fs::OFlags::RDWR);
        let claim = Arc::new(Claim { file, read_only });
        all.insert(number, Arc::downgrade(&claim));
        Ok(claim)
    }
}

fn open(number: DeviceNumber, read_only: bool) -> Result<File> {
    let path = node(number)?;
    let mut how = File::options();
    how.read(true).write(!read_only).custom_flags(libc::O_EXCL | libc::O_NONBLOCK);
    let opened = how.open(&path);
    opened.map_err(|e| Error::system(format!("{}: Device lookup failed", path.display()), &e))
}

/// The node of a block device, by the kernel's name for it.
fn node(number: DeviceNumber) -> Result<PathBuf> {
    let lookup = |why: String| Error::new(Errno::NXIO, format!("Device lookup failed: {why}"));
    let link = format!("/sys/dev/block/{number}/uevent");
    let text = fs::read_to_string(&link).map_err(|e| lookup(format!("{link}: {e}")))?;
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name = name.ok_or_else(|| lookup(format!("{link} has no name")))?;
    let path = Path::new("/dev").join(name);
    match number_of(&path) {
        Some(found) if found == number => Ok(path),
        _ => Err(lookup(format!("{} is not device {number}", path.display()))),
    }
}

/// The number of the block device that a path leads to, or that a text like `7:0` says.
pub(super) fn number_of(path: &Path) -> Option<DeviceNumber> {
    if let Some(number) = path.to_str().and_then(|text| text.parse().ok()) {
        return Some(number);
    }
    let of = fs::metadata(path).ok().filter(|of| of.file_type().is_block_device())?;
    Some(DeviceNumber::of_node(of.rdev()))
}
