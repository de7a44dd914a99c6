//! The mount itself: where it may be, and what is asked of the kernel.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::FileType;
use rustix::io::Errno;
use underseal_fuse::{
    FuseSession, Init, MountEntry, MountFailure, MountSettings, Point, capability, unmount,
};

use super::{INBOX, MountPlace};
use crate::{Error, ErrorKind, Result};

/// What mount(8) shows as the source, and how a mount of ours is known that its server left behind.
pub const SOURCE: &str = "underseal";

/// Requests that the kernel keeps under way without anybody waiting: read ahead, asynchronous
/// direct I/O.
const BACKGROUND: u16 = 256;

/// A file or folder that a volume can be mounted on.
#[derive(Debug)]
pub struct MountPoint {
    point: Arc<Point>,
}

impl MountPoint {
    /// Looks at `path`: a regular file or a folder where nothing is mounted. What a server of ours
    /// left mounted there when it was killed is unmounted.
    ///
    /// # Errors
    /// `FuseDevice` when this process cannot use FUSE at all; `MountPoint` when `path` is nothing
    /// to mount on; `MountEntry` when it is in use.
    pub fn new(path: &Path) -> Result<Self> {
        File::options().read(true).write(true).open("/dev/fuse").map_err(no_device)?;
        let shown = path.display();
        let bad = |e: io::Error| {
            Error::new(ErrorKind::MountPoint, format!("cannot mount on {shown}")).with_source(e)
        };
        // Asked for each time; attributes may still be remembered of a server that is gone.
        if rustix::fs::statfs(path).is_err_and(|e| e == Errno::NOTCONN) {
            clear(path)?;
        }
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

    /// Where a server of ours has mounted what this process takes over.
    ///
    /// # Errors
    /// `MountPoint` when no volume is mounted there, whatever the other process says.
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

    /// What is known of it by descriptors.
    pub fn point(&self) -> &Arc<Point> {
        &self.point
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        self.point.path()
    }

    /// Whether it is a folder.
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

/// Unmounts what a killed server left at `path`.
fn clear(path: &Path) -> Result<()> {
    let shown = path.display();
    let stale = format!("{shown}: the server of what is mounted there is gone");
    let unmounted = unmount(path, true, |found| found.source == SOURCE);
    unmounted.map_err(|e| {
        let error = Error::new(ErrorKind::Mounted, stale.clone());
        // Another program's mount, which stays.
        if Errno::from_io_error(&e) == Some(Errno::INVAL) { error } else { error.with_source(e) }
    })?;
    log::warn!("{stale}; it was unmounted");
    Ok(())
}

/// Mounts.
///
/// # Errors
/// `OthersForbidden` or `Mount`, with what the system or fusermount3 said.
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
        // The file's mode lets its owner in, and root.
        allow_other: allow_root,
        others: vec!["noatime".into()],
    };
    let init = Init {
        // Asynchronous direct I/O goes on while its caller does other things. There is no
        // write-back cache: a write that was acknowledged would be lost with the server.
        wanted: capability::ASYNC_DIO
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
