//! A mount point by descriptors: what was looked at is what is mounted on, and what was mounted is
//! what is unmounted.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, fstat, open, statat, statx};
use rustix::io::Errno;
use underseal_sandbox::{Asked, Helper, IDENTITY};

use crate::unmount::unmount_here;

/// Takes a mount away, from any thread: in the process's helper, where there is one, else by its
/// mount point.
#[derive(Debug, Clone)]
pub struct Unmounter(Option<Arc<Point>>);

impl Unmounter {
    /// Of what is mounted there. Where there is a helper, this keeps no descriptor.
    pub fn of(point: &Arc<Point>) -> Self {
        Self(Helper::get().is_none().then(|| point.clone()))
    }

    /// Unmounts: at once, or `lazily`, out of sight while its users have it still.
    ///
    /// # Errors
    /// As [`Point::unmount`]; that the helper is gone.
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
    /// None where a volume was mounted when it was opened: a descriptor of the mount keeps that
    /// busy.
    at: Option<OwnedFd>,
    folder: OwnedFd,
    name: OsString,
    kind: FileType,
    /// What is mounted there, once it is.
    mounted: OnceLock<[u8; IDENTITY]>,
}

impl Point {
    /// Opens it by its path without links.
    ///
    /// # Errors
    /// What the system says; `EAGAIN` when names on the way change meanwhile; `EINVAL` for the root
    /// folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
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
        let point = Self { path, at: Some(at), folder, name, kind, mounted: OnceLock::new() };
        if point.is_elsewhere()? { Err(Errno::AGAIN.into()) } else { Ok(point) }
    }

    /// Opens the mount point of a volume that another process has mounted, and remembers that mount
    /// for [`Self::unmount`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn of_mounted(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::INVAL.into());
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(parent, flags, Mode::empty())?;
        // The server that mounted it may rest just now, and answer nobody.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let about = statx(&folder, name, flags, StatxFlags::TYPE)?;
        let (kind, name) = (FileType::from_raw_mode(about.stx_mode.into()), name.to_owned());
        let point = Self { path, at: None, folder, name, kind, mounted: OnceLock::new() };
        point.is_mounted(point.identity()?);
        Ok(point)
    }

    /// Its absolute path, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it is: asked for through the descriptor.
    pub fn kind(&self) -> FileType {
        self.kind
    }

    /// The descriptors that [`Self::unmount`] needs.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 1] {
        [self.folder.as_fd()]
    }

    /// Whether its path has come to be another one since it was opened.
    pub(crate) fn is_elsewhere(&self) -> io::Result<bool> {
        Ok(fs::read_link(self.target()?)? != self.path)
    }

    /// What mount(2) takes: the file that was opened, wherever its path leads by now.
    pub(crate) fn target(&self) -> io::Result<PathBuf> {
        let at = self.at.as_ref().ok_or(Errno::BUSY)?;
        Ok(format!("/proc/self/fd/{}", at.as_raw_fd()).into())
    }

    /// What is mounted there now: the number of its file system, and that of the mount (from Linux
    /// 5.8 on).
    ///
    /// # Errors
    /// What the system says.
    pub fn identity(&self) -> io::Result<[u8; IDENTITY]> {
        // Linux 6.8 has numbers that are never used again (`STATX_MNT_ID_UNIQUE`); older kernels
        // leave the bit alone.
        let wanted = StatxFlags::MNT_ID | StatxFlags::from_bits_retain(0x4000);
        // The mount's server may not answer yet, or not any more.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
        let about = statx(&self.folder, &*self.name, flags, wanted)?;
        let mut identity = [0; IDENTITY];
        identity[..4].copy_from_slice(&about.stx_dev_major.to_ne_bytes());
        identity[4..8].copy_from_slice(&about.stx_dev_minor.to_ne_bytes());
        identity[8..].copy_from_slice(&about.stx_mnt_id.to_ne_bytes());
        Ok(identity)
    }

    /// Remembers which mount [`Self::unmount`] is for. The first one stays.
    pub fn is_mounted(&self, identity: [u8; IDENTITY]) {
        let _ = self.mounted.set(identity);
    }

    /// Takes the mount away in this process, if it is the one that was made.
    ///
    /// # Errors
    /// `EINVAL` when another mount or none is there; `EBUSY` when it is in use; what the system
    /// says otherwise.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        if self.mounted.get() != Some(&self.identity()?) {
            return Err(Errno::INVAL.into());
        }
        let folder = PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()));
        // A descriptor of the mount itself would be a user that keeps it busy, so it is reached
        // through the folder's.
        unmount_here(&folder.join(&self.name), &self.path, lazily)
    }

    /// Takes the mount away as [`Self::unmount`]: in the process's helper, where there is one.
    ///
    /// # Errors
    /// As [`Self::unmount`]; that the helper is gone.
    pub fn end(&self, lazily: bool) -> io::Result<()> {
        Helper::get().map_or_else(|| self.unmount(lazily), |helper| helper.unmount(lazily))
    }

    /// What a server's helper does for this mount.
    pub fn answers(&self) -> impl Fn(Asked<'_>) -> io::Result<()> + Sync {
        |asked| match asked {
            Asked::Mounted(identity) => {
                self.is_mounted(*identity);
                Ok(())
            }
            Asked::Unmount { lazily } => self.unmount(lazily),
        }
    }
}
