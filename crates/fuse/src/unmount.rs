//! The end of a mount.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use underseal_sandbox::{folder_of, mount_of};

use crate::MountEntry;
use crate::asking::AskingChild;
use crate::server::MountServer;

/// How long fusermount3 may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Unmounts the mount that `path` leads to, of another process: at once, or `lazily`, so that the
/// mount disappears while open files remain usable. `is_meant` decides whether the mount may be
/// unmounted.
///
/// # Errors
/// `EINVAL` when `path` has no mount, or a mount that `is_meant` refuses; `EBUSY` when it is in
/// use; a [`ForeignLink`](underseal_sandbox::ForeignLink); errors of the system.
pub fn unmount(path: &Path, lazily: bool, is_meant: impl FnOnce(&MountEntry) -> bool) -> io::Result<()> {
    let found = FoundMount::at(path)?;
    if !is_meant(&found.entry) {
        return Err(Errno::INVAL.into());
    }
    found.unmount(lazily)
}

/// Unmounts the mount that `path` leads to lazily, if its server has ended. Returns true if there
/// was such a mount.
///
/// # Errors
/// `EINVAL` when the server has ended, and `is_meant` refuses the mount; `TimedOut` when the server
/// does not say that it runs; errors of unmounting.
pub fn unmount_dead(path: &Path, is_meant: impl FnOnce(&MountEntry) -> bool) -> io::Result<bool> {
    // Where a path leads nowhere, nothing is mounted.
    let Ok(found) = FoundMount::at(path) else { return Ok(false) };
    // The descriptor of the mount whose server is asked is that of the mount that is unmounted.
    let mount = found.open()?;
    match MountServer::of(&mount)? {
        MountServer::Alive => Ok(false),
        MountServer::Ended if !is_meant(&found.entry) => Err(Errno::INVAL.into()),
        MountServer::Ended => found.detach(&mount).map(|()| true),
    }
}

/// A mount of another process, found by its number and by the folder that it is in: names on the
/// way to that folder may change, and the inspected mount is the one that is unmounted. Links of
/// other users are not followed on the way. The last name can only be changed in a mount namespace
/// that does not have the mount, by a user who may rename in the folder; so a lazy unmount reaches
/// the mount through a descriptor of the mount.
#[derive(Debug)]
struct FoundMount {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    entry: MountEntry,
    /// The mount's number.
    number: u64,
}

impl FoundMount {
    /// Finds the mount on a path, without a request to its server.
    fn at(path: &Path) -> io::Result<Self> {
        let (folder, name) = folder_of(path)?;
        let number = mount_of(&open_at(&folder, &name)?)?;
        let entry = if number == mount_of(&folder)? { None } else { MountEntry::of_mount(number)? };
        let entry = entry.ok_or(Errno::INVAL)?;
        let path = fs::read_link(through(&folder))?.join(&name);
        Ok(Self { path, folder, name, entry, number })
    }

    /// Opens the mount, which keeps it busy.
    fn open(&self) -> io::Result<OwnedFd> {
        let mount = open_at(&self.folder, &self.name)?;
        if mount_of(&mount)? == self.number { Ok(mount) } else { Err(Errno::AGAIN.into()) }
    }

    fn unmount(&self, lazily: bool) -> io::Result<()> {
        if lazily {
            return self.detach(&self.open()?);
        }
        // A descriptor of the mount itself would keep it busy, so it is reached through the
        // folder's descriptor.
        unmount_here(&through(&self.folder).join(&self.name), &self.path, false)
    }

    /// Unmounts lazily, through the mount's own descriptor.
    fn detach(&self, mount: &OwnedFd) -> io::Result<()> {
        detach(mount, &self.path)
    }
}

/// Opens a file of a folder for lookups, without a request to the server of a mount there.
pub(crate) fn open_at(folder: &OwnedFd, name: &std::ffi::OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::empty())?)
}

/// Returns a path that leads to the file of a descriptor.
pub(crate) fn through(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Unmounts the mount of a descriptor lazily. `shown` is the path that fusermount3 finds in the
/// mount table.
pub(crate) fn detach(mount: &OwnedFd, shown: &Path) -> io::Result<()> {
    match rustix::mount::unmount(through(mount), UnmountFlags::DETACH) {
        // Only root may do it without fusermount3.
        Err(Errno::PERM) => fusermount(shown, true),
        other => Ok(other?),
    }
}

/// Whether a mount is in use, which only root may ask.
///
/// # Errors
/// `EPERM` for other users, `EINVAL` without a mount, and errors of the system.
pub fn is_in_use(path: &Path) -> io::Result<bool> {
    // A second call makes Linux unmount a mount that has not been used in between. The first call
    // only marks it.
    match rustix::mount::unmount(path, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::AGAIN) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// Unmounts `path`. `shown` is the path that fusermount3 finds in the mount table.
pub(crate) fn unmount_here(path: &Path, shown: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        // Only root may do it without fusermount3.
        Err(Errno::PERM) => fusermount(shown, lazily),
        other => Ok(other?),
    }
}

fn fusermount(path: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(path);
    let (status, words) = AskingChild::start(&mut command)?.finish(PATIENCE)?;
    match words {
        _ if status.success() => Ok(()),
        words if words.contains("busy") => Err(Errno::BUSY.into()),
        words => Err(io::Error::other(words)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::mount::{MountFlags, mount};

    use super::*;

    /// Mounts of tmpfs stand for a killed server's mount and for another one.
    #[test]
    fn a_path_that_leads_elsewhere_meanwhile_takes_no_other_mount_away() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        for folder in ["user/mnt/disk", "other/disk"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        let tmpfs = |source, on: &Path| mount(source, on, "tmpfs", MountFlags::empty(), c"size=64k");
        match tmpfs("meant", &at("user/mnt/disk")) {
            // Users cannot mount.
            Err(Errno::PERM) => return underseal_testing::skip("a path that leads elsewhere", "not root"),
            mounted => mounted.unwrap(),
        }
        tmpfs("other", &at("other/disk")).unwrap();
        let found = FoundMount::at(&at("user/mnt/disk")).unwrap();
        assert_eq!(found.entry.source, "meant");
        fs::rename(at("user/mnt"), at("user/old")).unwrap();
        symlink("../other", at("user/mnt")).unwrap();
        found.unmount(false).unwrap();
        assert_eq!(MountEntry::at(&at("user/old/disk")).unwrap(), None);
        let other = MountEntry::at(&at("other/disk")).unwrap().unwrap();
        assert_eq!(other.source, "other");
        // The targets are an unwanted mount, and a folder without a mount.
        for path in ["other/disk", "user/old/disk"] {
            let refused = unmount(&at(path), true, |entry| entry.source == "meant").unwrap_err();
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::INVAL), "{path}");
        }
        unmount(&at("other/disk"), true, |entry| entry.source == "other").unwrap();
    }
}
