//! A connection of a FUSE filesystem, as the kernel's filesystem `fusectl` shows it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// Where distributions mount it.
const MOUNTED: &str = "/sys/fs/fuse/connections";

/// The file that ends one connection. It belongs to that connection for good: the kernel gives the
/// number to a later connection, but with a new file, and this one then does nothing.
#[derive(Debug)]
pub(crate) struct FuseConnection {
    abort: File,
}

impl FuseConnection {
    /// Opens the file of the filesystem with this device number, whose server must be there still:
    /// later the number may be another filesystem's. Fails with `EINVAL` for the number of another
    /// kind of filesystem, with `ENOENT` without such a one, and with errors of the system.
    pub(crate) fn open((major, minor): (u32, u32)) -> io::Result<Self> {
        // The kernel names a connection by its device number: the minor, as such ones have the
        // major 0.
        if major != 0 {
            return Err(Errno::INVAL.into());
        }
        let folder = without_place().or_else(|_| {
            // Only root may mount it.
            open(MOUNTED, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        })?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let abort = openat(folder, format!("{minor}/abort"), flags, Mode::empty())?;
        Ok(Self { abort: abort.into() })
    }

    /// Ends all requests of the filesystem with errors, those that come later too. Does nothing
    /// when the filesystem is gone.
    pub(crate) fn abort(&self) -> io::Result<()> {
        (&self.abort).write_all(b"1")
    }
}

impl AsFd for FuseConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.abort.as_fd()
    }
}

/// The filesystem `fusectl`, mounted without a place, so that no other mount of it is kept busy.
fn without_place() -> rustix::io::Result<OwnedFd> {
    let new = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&new)?;
    fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;
    use crate::identity::MountIdentity;

    /// Mounts a filesystem that answers nothing, so that its first request waits. Returns the
    /// descriptor of its requests and its device number.
    fn mounted(at: &Path) -> rustix::io::Result<(OwnedFd, (u32, u32))> {
        let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&device);
        let data = format!("fd={fd},rootmode=40000,user_id=0,group_id=0");
        mount("silent", at, "fuse", MountFlags::empty(), &*std::ffi::CString::new(data).unwrap())?;
        let number = MountIdentity::at(rustix::fs::CWD, at.as_os_str()).unwrap().filesystem;
        Ok((device, number))
    }

    fn is_over(device: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(device, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        fds[0].revents().contains(PollFlags::ERR)
    }

    #[test]
    fn a_later_filesystem_with_the_same_number_is_not_aborted() {
        let scratch = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| scratch.path().join(name));
        for folder in [&first, &second] {
            fs::create_dir(folder).unwrap();
        }
        for _ in 0..1000 {
            let (device, number) = match mounted(&first) {
                Ok(mounted) => mounted,
                Err(Errno::PERM | Errno::NOENT) => {
                    return underseal_testing::skip(
                        "a number that is given again",
                        "not root, or no /dev/fuse",
                    );
                }
                Err(e) => panic!("{e}"),
            };
            let connection = FuseConnection::open(number).unwrap();
            unmount(&first, UnmountFlags::DETACH).unwrap();
            drop(device);
            let (device, next) = mounted(&second).unwrap();
            // Other programs mount as well, and may get the number.
            if next == number {
                connection.abort().unwrap();
                assert!(!is_over(&device), "another filesystem's requests were ended");
                FuseConnection::open(next).unwrap().abort().unwrap();
                assert!(is_over(&device), "its own were not");
            }
            unmount(&second, UnmountFlags::DETACH).unwrap();
            if next == number {
                return;
            }
        }
        panic!("no number was given again");
    }

    #[test]
    fn a_filesystem_of_another_kind_has_no_connection() {
        let error = |number| FuseConnection::open(number).unwrap_err();
        assert_eq!(error((8, 1)).raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        let proc = MountIdentity::at(rustix::fs::CWD, std::ffi::OsStr::new("/proc")).unwrap();
        assert!(matches!(
            error(proc.filesystem).kind(),
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
        ));
    }
}
