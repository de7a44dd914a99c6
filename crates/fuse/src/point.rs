//! A mount point by descriptors: the inspected file is the one that is mounted on, and only this
//! process's mount is unmounted.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, open, statat, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use underseal_sandbox::{Asked, Helper, canonical};

use crate::MountEntry;
use crate::connection::FuseConnection;
use crate::identity::MountIdentity;
use crate::unmount::{detach, open_at, through, unmount_here};

/// Unmounts from any thread: through the process's helper, if it has one, otherwise by the mount
/// point.
#[derive(Debug, Clone)]
pub struct Unmounter(Option<Arc<Point>>);

impl Unmounter {
    /// An unmounter of the point's mount. When a helper runs, the value keeps no descriptor.
    pub fn of(point: &Arc<Point>) -> Self {
        Self(Helper::get().is_none().then(|| point.clone()))
    }

    /// Unmounts: at once, or `lazily`, hidden while its users still have it.
    ///
    /// # Errors
    /// The kinds of [`Point::unmount`]; that the helper has ended.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        match (&self.0, Helper::get()) {
            (Some(point), _) => point.unmount(lazily),
            (None, Some(helper)) => helper.unmount(lazily),
            (None, None) => Err(Errno::INVAL.into()),
        }
    }
}

/// A file or folder, and the folder that it is in.
#[derive(Debug)]
pub struct Point {
    path: PathBuf,
    /// The opened file or folder. `None` if a volume was mounted at the time: a descriptor of the
    /// mount keeps the mount busy.
    at: Option<OwnedFd>,
    folder: OwnedFd,
    name: OsString,
    kind: FileType,
    /// The identity of the mount on the point, once it exists.
    mounted: OnceLock<MountIdentity>,
    /// The connection of that mount, for a helper.
    connection: OnceLock<FuseConnection>,
}

impl Point {
    /// Opens the point by its path without links. A link of another user is not followed.
    ///
    /// # Errors
    /// A [`ForeignLink`](underseal_sandbox::ForeignLink); `EAGAIN` when names on the way change
    /// meanwhile; `EINVAL` for the root folder; errors of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = canonical(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL.into());
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = open(&path, flags, Mode::empty())?;
        let folder = open(parent, flags | OFlags::DIRECTORY, Mode::empty())?;
        let (about, there) = (fstat(&at)?, statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?);
        if (about.st_dev, about.st_ino) != (there.st_dev, there.st_ino) {
            return Err(Errno::AGAIN.into());
        }
        let (kind, name) = (FileType::from_raw_mode(about.st_mode), name.to_owned());
        let point = Self {
            path,
            at: Some(at),
            folder,
            name,
            kind,
            mounted: OnceLock::new(),
            connection: OnceLock::new(),
        };
        if point.is_elsewhere()? { Err(Errno::AGAIN.into()) } else { Ok(point) }
    }

    /// Opens the mount point of a volume that another process has mounted, and records that mount
    /// for [`Self::unmount`].
    ///
    /// # Errors
    /// The kinds of [`Self::open`].
    pub fn of_mounted(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL.into());
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(parent, flags, Mode::empty())?;
        // The mount's server may be paused, and answer no request.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let about = statx(&folder, name, flags, StatxFlags::TYPE)?;
        let (kind, name) = (FileType::from_raw_mode(about.stx_mode.into()), name.to_owned());
        let point = Self {
            path,
            at: None,
            folder,
            name,
            kind,
            mounted: OnceLock::new(),
            connection: OnceLock::new(),
        };
        point.is_mounted(point.identity()?);
        point.open_connection();
        Ok(point)
    }

    /// The point's absolute path, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's type, read through the descriptor.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// Returns the descriptors that a helper needs, the folder's first.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [Some(self.folder.as_fd()), self.connection.get().map(AsFd::as_fd)].into_iter().flatten().collect()
    }

    /// Returns true when its path has changed since it was opened.
    pub(crate) fn is_elsewhere(&self) -> io::Result<bool> {
        Ok(fs::read_link(self.target()?)? != self.path)
    }

    /// The path that mount(2) takes: the opened file, even after its path has changed.
    pub(crate) fn target(&self) -> io::Result<PathBuf> {
        let at = self.at.as_ref().ok_or(Errno::BUSY)?;
        Ok(format!("/proc/self/fd/{}", at.as_raw_fd()).into())
    }

    /// The identity of the mount that is there now.
    pub(crate) fn identity(&self) -> io::Result<MountIdentity> {
        MountIdentity::at(&self.folder, &self.name)
    }

    /// Records the mount for [`Self::unmount`]. The first recorded mount stays.
    pub(crate) fn is_mounted(&self, identity: MountIdentity) {
        let _ = self.mounted.set(identity);
    }

    /// Unmounts in this process the recorded mount, also where it was moved to.
    ///
    /// # Errors
    /// `EINVAL` when the mount is gone, `EBUSY` when it is in use, `EAGAIN` when another mount
    /// covers it, and errors of the system.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        let mounted = self.mounted.get().ok_or(Errno::INVAL)?;
        if self.identity().is_ok_and(|there| there == *mounted) {
            return unmount_at(&self.folder, &self.name, &self.path, mounted, lazily);
        }
        // The mount was moved, or another one covers it.
        let path = MountEntry::path_of_mount(mounted.number, mounted.filesystem)?.ok_or(Errno::INVAL)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::AGAIN.into());
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(parent, flags, Mode::empty()).map_err(|_| Errno::AGAIN)?;
        match MountIdentity::at(&folder, name) {
            Ok(there) if there == *mounted => unmount_at(&folder, name, &path, mounted, lazily),
            _ => Err(Errno::AGAIN.into()),
        }
    }

    /// Opens the connection of the recorded mount, so that a helper may end its requests. Without
    /// it, a server that is killed and does not end is left to its users.
    fn open_connection(&self) {
        let mounted = self.mounted.get().ok_or(Errno::INVAL.into());
        if let Ok(connection) = mounted.and_then(|mounted| FuseConnection::open(mounted.filesystem)) {
            let _ = self.connection.set(connection);
        }
    }

    /// Ends all requests of the recorded mount with errors, and does not unmount it.
    fn abort(&self) -> io::Result<()> {
        match self.connection.get() {
            Some(connection) => connection.abort(),
            None => self.force(),
        }
    }

    /// As [`Self::abort`], where the kernel shows no connections: in a user namespace whose owner
    /// has mounted it.
    fn force(&self) -> io::Result<()> {
        let mount = open_at(&self.folder, &self.name)?;
        if MountIdentity::of(&mount).ok().as_ref() != self.mounted.get() {
            return Err(Errno::AGAIN.into());
        }
        match rustix::mount::unmount(through(&mount), UnmountFlags::FORCE) {
            // The descriptor keeps the mount.
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Unmounts like [`Self::unmount`], through the process's helper if it has one.
    ///
    /// # Errors
    /// The kinds of [`Self::unmount`]; that the helper has ended.
    pub fn end(&self, lazily: bool) -> io::Result<()> {
        Helper::get().map_or_else(|| self.unmount(lazily), |helper| helper.unmount(lazily))
    }

    /// The function of a server's helper for this mount.
    pub fn answers(&self) -> impl Fn(Asked<'_>) -> io::Result<()> + Sync {
        |asked| match asked {
            Asked::Mounted(identity) => {
                self.is_mounted(MountIdentity::from_bytes(identity));
                self.open_connection();
                Ok(())
            }
            Asked::Unmount { lazily } => self.unmount(lazily),
            Asked::Killed => self.abort(),
            Asked::Gone => Ok(()),
        }
    }
}

/// Unmounts the mount on a name in a folder, if it is this one. `shown` is its path in the mount
/// table.
fn unmount_at(
    folder: &OwnedFd,
    name: &OsStr,
    shown: &Path,
    meant: &MountIdentity,
    lazily: bool,
) -> io::Result<()> {
    if !lazily {
        // A descriptor of the mount itself would keep it busy, so it is reached through the
        // folder's descriptor.
        return unmount_here(&through(folder).join(name), shown, false);
    }
    let mount = open_at(folder, name)?;
    if MountIdentity::of(&mount)? == *meant { detach(&mount, shown) } else { Err(Errno::AGAIN.into()) }
}
