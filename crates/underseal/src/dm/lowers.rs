//! Lower devices: claimed once, for all tables that lie on them, as the kernel claims them for
//! device mapper.
//!
//! The file of a loop device is locked as well, as `underseal open` and QEMU lock an image: a claim
//! of the loop device alone leaves the file open to other programs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;
use underseal_dm::{DeviceNumber, Error, Result};

use crate::loop_file;

/// Claims of lower devices, and locks of the files below them.
#[derive(Default)]
pub(super) struct Lowers(Mutex<Known>);

#[derive(Default)]
struct Known {
    claims: BTreeMap<DeviceNumber, Weak<Claim>>,
    /// By device and inode number: several loop devices lie on one file.
    locks: BTreeMap<(DeviceNumber, u64), Weak<File>>,
}

/// A device that others are kept from claiming, for as long as this is there.
pub(super) struct Claim {
    /// Opened exclusively; a table server gets a duplicate, so that the claim lasts while one of
    /// them is there.
    pub(super) file: File,
    read_only: bool,
    lock: Option<Arc<File>>,
}

impl Claim {
    /// The file of a loop device, which is locked while a duplicate of this is open.
    pub(super) fn lock(&self) -> Option<&File> {
        self.lock.as_deref()
    }
}

impl Lowers {
    /// Claims a device, or shares the claim that there is.
    ///
    /// # Errors
    /// `EBUSY` where others have it, or the file that it lies on; `ENXIO` and others as the system
    /// says.
    pub(super) fn claim(&self, number: DeviceNumber, read_only: bool) -> Result<Arc<Claim>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.claims.get(&number).and_then(Weak::upgrade);
        if let Some(claim) = known.filter(|claim| read_only || !claim.read_only) {
            if let (Some(file), false) = (claim.lock(), read_only) {
                lock(number, file, true)?;
            }
            return Ok(claim);
        }
        // To write, where that can be: a later table may want to, and a second claim would be
        // refused.
        let writes = open(number, false).map(|file| (file, false));
        let opened = match writes {
            Err(e) if read_only && e.errno() != Errno::BUSY => open(number, true).map(|file| (file, true)),
            opened => opened,
        };
        let (file, opened_read_only) = opened?;
        let lock = all.lock(number, &file, read_only)?;
        let claim = Arc::new(Claim { file, read_only: opened_read_only, lock });
        all.claims.retain(|_, claim| claim.strong_count() > 0);
        all.claims.insert(number, Arc::downgrade(&claim));
        Ok(claim)
    }
}

impl Lowers {
    /// Takes the claims and locks of a table server that was another back end's: block devices, and
    /// the files of loop devices.
    pub(super) fn adopt(&self, files: Vec<OwnedFd>) -> Result<Vec<Arc<Claim>>> {
        let failed = |e: io::Error| Error::system("a claimed device", &e);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut locks = Vec::new();
        let mut devices = Vec::new();
        for file in files.into_iter().map(File::from) {
            let of = file.metadata().map_err(failed)?;
            if of.file_type().is_block_device() {
                devices.push((DeviceNumber::of_node(of.rdev()), file));
                continue;
            }
            let key = (DeviceNumber::of_node(of.dev()), of.ino());
            let lock = all.locks.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| Arc::new(file));
            all.locks.insert(key, Arc::downgrade(&lock));
            locks.push(lock);
        }
        let claims = devices.into_iter().map(|(number, file)| {
            if let Some(claim) = all.claims.get(&number).and_then(Weak::upgrade) {
                return Ok(claim);
            }
            let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| failed(e.into()))?;
            let read_only = !flags.contains(rustix::fs::OFlags::RDWR);
            let below = loop_file::find(&file);
            let lock = below.and_then(|(_, key)| all.locks.get(&key).and_then(Weak::upgrade));
            let claim = Arc::new(Claim { file, read_only, lock });
            all.claims.insert(number, Arc::downgrade(&claim));
            Ok(claim)
        });
        let claims = claims.collect();
        drop(locks);
        claims
    }
}

impl Known {
    /// Locks the file of a loop device, if this is one. Other devices have no file.
    fn lock(&mut self, number: DeviceNumber, node: &File, read_only: bool) -> Result<Option<Arc<File>>> {
        let Some((path, key)) = loop_file::find(node) else { return Ok(None) };
        if let Some(file) = self.locks.get(&key).and_then(Weak::upgrade) {
            if !read_only {
                lock(number, &file, true)?;
            }
            return Ok(Some(file));
        }
        let opened = loop_file::open_to_lock(&path, key, !read_only);
        let Some((file, exclusive)) = opened else {
            log::warn!("{number}: {} cannot be locked: another program may open it", path.display());
            return Ok(None);
        };
        lock(number, &file, exclusive)?;
        let file = Arc::new(file);
        self.locks.retain(|_, lock| lock.strong_count() > 0);
        self.locks.insert(key, Arc::downgrade(&file));
        Ok(Some(file))
    }
}

fn lock(number: DeviceNumber, file: &File, exclusive: bool) -> Result<()> {
    use underseal_device::{ErrorKind, lock_image};
    match lock_image(file, &format!("the file of {number}"), exclusive) {
        Err(e) if e.kind() == ErrorKind::Locked => Err(Error::new(Errno::BUSY, e.to_string())),
        Err(e) => {
            log::warn!("{e}");
            Ok(())
        }
        Ok(()) => Ok(()),
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
