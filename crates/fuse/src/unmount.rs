//! The end of a mount.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::MountEntry;

/// Unmounts the mount that `path` leads to, of another process: at once, or `lazily`, so that the
/// mount disappears while open files remain usable. `is_meant` decides whether the mount may be
/// unmounted.
///
/// # Errors
/// `EINVAL` when `path` has no mount, or a mount that `is_meant` refuses; `EBUSY` when it is in
/// use; errors of the system.
pub fn unmount(path: &Path, lazily: bool, is_meant: impl FnOnce(&MountEntry) -> bool) -> io::Result<()> {
    let found = Found::at(path)?;
    if !is_meant(&found.entry) {
        return Err(Errno::INVAL.into());
    }
    found.unmount(lazily)
}

/// A mount of another process, by a descriptor of the folder that it is in: names on the way to
/// that folder may change, and the inspected mount is the one that is unmounted. The last name can
/// only be changed in a mount namespace that does not have the mount, by a user who may rename in
/// the folder; so a lazy unmount reaches the mount through a descriptor of the mount.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    folder: OwnedFd,
    name: OsString,
    entry: MountEntry,
    /// The mount's number.
    mount: u64,
}

impl Found {
    /// Finds the mount on a path, without a request to its server.
    fn at(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(Errno::INVAL)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = fs::canonicalize(parent.unwrap_or(Path::new(".")))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = open(&parent, flags | OFlags::DIRECTORY, Mode::empty())?;
        let mount = mount_of(&openat(&folder, &name, flags, Mode::empty())?)?;
        let entry = if mount == mount_of(&folder)? { None } else { MountEntry::of_mount(mount)? };
        let entry = entry.ok_or(Errno::INVAL)?;
        Ok(Self { path: parent.join(&name), folder, name, entry, mount })
    }

    fn unmount(&self, lazily: bool) -> io::Result<()> {
        if lazily {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mount = openat(&self.folder, &self.name, flags, Mode::empty())?;
            if mount_of(&mount)? != self.mount {
                return Err(Errno::AGAIN.into());
            }
            let path = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
            return match rustix::mount::unmount(&path, UnmountFlags::DETACH) {
                // Only root may do it without fusermount3.
                Err(Errno::PERM) => fusermount(&self.path, true),
                other => Ok(other?),
            };
        }
        // A descriptor of the mount itself would keep it busy, so it is reached through the
        // folder's descriptor.
        let folder = PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd()));
        unmount_here(&folder.join(&self.name), &self.path, lazily)
    }
}

/// Returns the number of the mount of a descriptor's file, as in the mount table.
fn mount_of(fd: &OwnedFd) -> io::Result<u64> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let number = about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or_else(|| Errno::NOTSUP.into())
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
    let output = command.output()?;
    match String::from_utf8_lossy(&output.stderr).trim() {
        _ if output.status.success() => Ok(()),
        text if text.contains("busy") => Err(Errno::BUSY.into()),
        text => Err(io::Error::other(text.to_owned())),
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
        let found = Found::at(&at("user/mnt/disk")).unwrap();
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
