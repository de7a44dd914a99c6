//! A connection of a FUSE filesystem, as the kernel's filesystem `fusectl` shows it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where distributions mount it.
const MOUNTED: &str = "/sys/fs/fuse/connections";

/// Ends all requests of the filesystem with this device number with errors. The filesystem's server
/// must be there still: later the number may be another filesystem's. Fails with `EINVAL` for the
/// number of another kind of filesystem, with `ENOENT` without such a one or without a request that
/// waits, and with errors of the system.
pub(crate) fn abort((major, minor): (u32, u32)) -> io::Result<()> {
    // The kernel names a connection by its device number: the minor, as such ones have the major 0.
    if major != 0 {
        return Err(Errno::INVAL.into());
    }
    let at = |folder: &OwnedFd, name: &str, flags: OFlags| {
        let file = openat(folder, format!("{minor}/{name}"), flags | OFlags::CLOEXEC, Mode::empty());
        file.map(File::from)
    };
    let mounted = open(MOUNTED, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let is_there = |folder: &OwnedFd| at(folder, "waiting", OFlags::RDONLY).is_ok();
    let folder = match mounted.ok().filter(is_there) {
        Some(folder) => folder,
        // Only root may mount it: here without a place.
        None => {
            let new = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&new)?;
            fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?
        }
    };
    let mut waiting = String::new();
    at(&folder, "waiting", OFlags::RDONLY)?.read_to_string(&mut waiting)?;
    if waiting.trim() == "0" {
        return Err(Errno::NOENT.into());
    }
    at(&folder, "abort", OFlags::WRONLY)?.write_all(b"1")
}
