//! Mount points, and the parameters of a mount.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use underseal_fuse::{
    FuseSession, Init, MountEntry, MountFailure, MountSettings, Point, SOURCE, capability, unmount_dead,
};

use super::{INBOX, MountPlace};
use crate::{Error, ErrorKind, Result};

/// How many background requests (read-ahead, asynchronous direct I/O) the kernel keeps in flight.
const BACKGROUND: u16 = 256;

/// A file or folder that a volume can be mounted on.
#[derive(Debug)]
pub struct MountPoint {
    point: Arc<Point>,
}

impl MountPoint {
    /// Checks `path`: it must be a regular file or a folder where nothing is mounted. A mount that
    /// a killed Underseal server left at the path is unmounted.
    ///
    /// # Errors
    /// `FuseDevice` when this process cannot use FUSE at all; `MountPoint` when `path` is no file
    /// or folder; `Mounted` when another filesystem is mounted there.
    pub fn new(path: &Path) -> Result<Self> {
        File::options().read(true).write(true).open("/dev/fuse").map_err(no_device)?;
        let shown = path.display();
        let bad = |e: io::Error| {
            Error::new(ErrorKind::MountPoint, format!("cannot mount on {shown}")).with_source(e)
        };
        clear(path)?;
        let point = Point::open(path).map_err(bad)?;
        if !matches!(point.kind(), FileType::RegularFile | FileType::Directory) {
            let context = format!("{shown} is neither a regular file nor a folder to mount on");
            return Err(Error::new(ErrorKind::MountPoint, context));
        }
        match MountEntry::at(point.path()).map_err(bad)? {
            Some(found) if found.kind.starts_with("fuse") => {
                let context = format!("{shown} is in use: {} is mounted there", found.source);
                Err(Error::new(ErrorKind::Mounted, context))
            }
            _ => Ok(Self { point: point.into() }),
        }
    }

    /// The mount point of a mount that the old server of a handover passes on.
    ///
    /// # Errors
    /// `MountPoint` when no volume is mounted at that path, whatever the old server reports.
    pub fn of_carried(place: &MountPlace) -> Result<Self> {
        let bad = |e: io::Error| {
            let context = format!("{}: cannot be taken over", place.path.display());
            Error::new(ErrorKind::MountPoint, context).with_source(e)
        };
        let point = Point::of_mounted(&place.path).map_err(bad)?;
        let found = MountEntry::at(point.path()).map_err(bad)?;
        if !found.is_some_and(|found| found.source == SOURCE && found.kind.starts_with("fuse")) {
            return Err(bad(io::Error::other("no volume is mounted there")));
        }
        Ok(Self { point: point.into() })
    }

    /// Returns the mount point's descriptors.
    pub fn point(&self) -> &Arc<Point> {
        &self.point
    }

    /// Returns the absolute path.
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Returns true when the mount at this path has this minor device number.
    pub(super) fn is_of(&self, number: u32) -> bool {
        let found = MountEntry::at(self.path()).ok().flatten();
        found.is_some_and(|found| found.filesystem == (0, number))
    }

    /// Returns true when the mount point is a folder.
    pub fn is_folder(&self) -> bool {
        self.point.kind() == FileType::Directory
    }
}

fn no_device(e: io::Error) -> Error {
    let context = match e.kind() {
        io::ErrorKind::NotFound => "this system has no /dev/fuse, or this container was not given it",
        io::ErrorKind::PermissionDenied => "this user may not use /dev/fuse",
        _ => "/dev/fuse cannot be opened",
    };
    Error::new(ErrorKind::FuseDevice, context).with_source(e)
}

/// Unmounts the mount that a killed server left at `path`, if there is one.
fn clear(path: &Path) -> Result<()> {
    let shown = path.display();
    let stale = format!("{shown}: the server of what is mounted there is gone");
    let unmounted = unmount_dead(path, |found| found.source == SOURCE).map_err(|e| {
        if e.kind() == io::ErrorKind::TimedOut {
            return Error::new(ErrorKind::Mounted, format!("{shown} is in use: a mount is there"))
                .with_source(e);
        }
        let error = Error::new(ErrorKind::Mounted, stale.clone());
        // Another program's mount stays.
        if Errno::from_io_error(&e) == Some(Errno::INVAL) { error } else { error.with_source(e) }
    })?;
    if unmounted {
        log::warn!("{stale}; it was unmounted");
    }
    Ok(())
}

/// Mounts the volume.
pub(super) fn mount(
    point: &MountPoint,
    read_only: bool,
    allow_root: bool,
    io_uring: bool,
) -> Result<FuseSession> {
    let options = MountSettings {
        name: SOURCE.into(),
        subtype: SOURCE,
        read_only,
        // The file's mode permits access for its owner and root only.
        allow_other: allow_root,
        others: vec!["noatime".into()],
    };
    let init = Init {
        // Asynchronous direct I/O goes on while its caller does other things. There is no
        // write-back cache: a write that was acknowledged would be lost with the server.
        // At a new size the kernel drops pages beyond the end, and no others: with them it would
        // lose those of writes under way, and read the old bytes again.
        wanted: capability::EXPLICIT_INVAL_DATA
            | capability::ASYNC_DIO
            | capability::DIRECT_IO_ALLOW_MMAP
            | if io_uring { capability::OVER_IO_URING } else { 0 },
        needed: 0,
        since: "5.4",
        max_write: INBOX,
        max_background: BACKGROUND,
    };
    FuseSession::mount(&point.point, &options, &init).map_err(|e| {
        let kind = match e {
            MountFailure::OthersForbidden(_) => ErrorKind::OthersForbidden,
            MountFailure::NoDevice(_) => ErrorKind::FuseDevice,
            MountFailure::NoHelper(_) | MountFailure::Refused(_) => ErrorKind::Mount,
        };
        let context = format!("cannot mount on {}{e}", point.path().display());
        Error::new(kind, context).with_source(e.into_source())
    })
}
