//! Lower devices, opened and locked in a process apart.

use std::fs::{self, File};
use std::iter::successors;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use underseal_device::{LoopFile, file_below_loop};
use underseal_dm::{DeviceNumber, Error, Result};

use super::work::HelperOutcome;
use crate::reencryption::marker;

/// The most devices below each other that are followed.
const DEEPEST: usize = 16;

/// Opens a device for itself, and the file that it lies on if it is a loop device.
pub(super) fn open(number: DeviceNumber, read_only: bool) -> Result<(HelperOutcome, Vec<OwnedFd>)> {
    // To write, where that can be: a later table may want to, and a second claim would be refused.
    let writes = open_node(number, false).map(|file| (file, false));
    let opened = match writes {
        Err(e) if read_only && e.errno() != Errno::BUSY => open_node(number, true).map(|file| (file, true)),
        opened => opened,
    };
    let (node, opened_read_only) = opened?;
    let below = LoopFile::of(&node);
    if let Some(below) = &below {
        marker::refuse_unfinished(below.path()).map_err(|e| Error::new(Errno::BUSY, e.what()))?;
    }
    let below = below.and_then(|below| {
        let opened = below.open(!read_only);
        if opened.is_none() {
            log::warn!("{number}: {} cannot be locked: another program may open it", below.path().display());
        }
        opened.map(|(file, exclusive)| (file, below.id(), exclusive))
    });
    let (file, below) = below.map(|(file, id, exclusive)| (file, (id, exclusive))).unzip();
    let fds = [Some(node), file].into_iter().flatten().map(OwnedFd::from).collect();
    let beneath = beneath(number);
    Ok((HelperOutcome::Opened { read_only: opened_read_only, file: below, beneath }, fds))
}

/// The devices that a loop device's file and a partition lie on, and those below them. Devices of
/// this server have none here: the back end knows their tables.
pub(super) fn beneath(number: DeviceNumber) -> Vec<DeviceNumber> {
    let below = |number: &DeviceNumber| {
        let whole = fs::read_to_string(format!("/sys/dev/block/{number}/../dev")).ok();
        whole.and_then(|whole| whole.trim().parse().ok()).or_else(|| {
            let file = fs::metadata(file_below_loop(&node(*number).ok()?)?).ok()?;
            let dev = if file.file_type().is_block_device() { file.rdev() } else { file.dev() };
            // File systems without a device of their own have major number 0.
            Some(DeviceNumber::of_node(dev)).filter(|number| number.major != 0)
        })
    };
    successors(below(&number), below).take(DEEPEST).collect()
}

pub(super) fn lock(number: DeviceNumber, file: &File, exclusive: bool) -> Result<()> {
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

fn open_node(number: DeviceNumber, read_only: bool) -> Result<File> {
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

/// The number of the block device that a path leads to.
pub(super) fn number_of(path: &Path) -> Option<DeviceNumber> {
    let of = fs::metadata(path).ok().filter(|of| of.file_type().is_block_device())?;
    Some(DeviceNumber::of_node(of.rdev()))
}
