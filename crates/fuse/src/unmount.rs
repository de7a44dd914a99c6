//! How a mount ends.

use std::io;
use std::path::Path;
use std::process::Command;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Takes away the mount that `path` leads to, of another process: at once, or `lazily`, out of sight while those who use it go on.
///
/// # Errors
/// `EBUSY` when it is in use; what the system says otherwise.
pub fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    unmount_here(path, path, lazily)
}

/// Whether somebody uses a mount: only root may ask.
///
/// # Errors
/// `EPERM` for others, `EINVAL` where nothing is mounted; what the system says otherwise.
pub fn is_in_use(path: &Path) -> io::Result<bool> {
    // Asked twice, the kernel takes a mount away that nobody has used in between. Asked once, it only marks it.
    match rustix::mount::unmount(path, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::AGAIN) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// `shown` is the path that fusermount3 finds in the mount table.
pub(crate) fn unmount_here(path: &Path, shown: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        // Only root may do it without help.
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
