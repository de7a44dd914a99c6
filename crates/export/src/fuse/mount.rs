//! The mount itself: where it may be, how it is made and how it ends. fuser does the handshake.

use std::fs::{self, File};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fuser::{Filesystem, InitFlags, KernelConfig, MountOption, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use underseal_sandbox::Helper;

use super::INBOX;
use crate::{Error, ErrorKind, Result};

/// What mount(8) shows as the source, and how a mount of ours is known that its server left behind.
const NAME: &str = "underseal";

/// Requests that the kernel keeps under way without anybody waiting: read ahead, asynchronous direct I/O.
const BACKGROUND: u16 = 256;

/// A file or folder that a volume can be mounted on.
#[derive(Debug)]
pub struct MountPoint {
    path: PathBuf,
    folder: bool,
}

impl MountPoint {
    /// Looks at `path`: a regular file or a folder where nothing is mounted. What a server of ours left mounted there
    /// when it was killed is unmounted.
    ///
    /// # Errors
    /// `FuseDevice` when this process cannot use FUSE at all; `MountPoint` when `path` is nothing to mount on;
    /// `Mounted` when it is in use.
    pub fn new(path: &Path) -> Result<Self> {
        File::options().read(true).write(true).open("/dev/fuse").map_err(no_device)?;
        let shown = path.display();
        let bad = |e: io::Error| {
            Error::new(ErrorKind::MountPoint, format!("cannot mount on {shown}")).with_source(e)
        };
        // Asked for each time; attributes may still be remembered of a server that is gone.
        if rustix::fs::statfs(path).is_err_and(|e| e == Errno::NOTCONN) {
            clear(&beside(path).map_err(bad)?)?;
        }
        let path = fs::canonicalize(path).map_err(bad)?;
        let kind = fs::metadata(&path).map_err(bad)?.file_type();
        if !kind.is_file() && !kind.is_dir() {
            let context = format!("{shown} is neither a regular file nor a folder to mount on");
            return Err(Error::new(ErrorKind::MountPoint, context));
        }
        match mounted_at(&path) {
            Some(found) if found.kind.starts_with("fuse") => {
                let context = format!("{shown} is in use: {} is mounted there", found.source);
                Err(Error::new(ErrorKind::Mounted, context))
            }
            _ => Ok(Self { folder: kind.is_dir(), path }),
        }
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes away what is mounted there: what a server's [`Helper`] does.
    ///
    /// # Errors
    /// `EBUSY` when it is in use; what the system says otherwise.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        unmount_here(&self.path, lazily)
    }

    /// Whether it is a folder.
    pub fn is_folder(&self) -> bool {
        self.folder
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
    let ours = mounted_at(path).is_some_and(|found| found.source == NAME);
    if !ours {
        return Err(Error::new(ErrorKind::Mounted, stale));
    }
    unmount(path, true).map_err(|e| Error::new(ErrorKind::Mounted, stale.clone()).with_source(e))?;
    log::warn!("{stale}; it was unmounted");
    Ok(())
}

/// The absolute path of what itself cannot be looked at.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or(Path::new(".")))?;
    Ok(path.file_name().map_or(folder.clone(), |name| folder.join(name)))
}

/// A line of /proc/self/mountinfo.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    kind: String,
    source: String,
}

/// What is mounted at `path`, on top of all else.
fn mounted_at(path: &Path) -> Option<Found> {
    let table = fs::read("/proc/self/mountinfo").ok()?;
    table.split(|&b| b == b'\n').filter_map(|line| found(line, path)).next_back()
}

/// proc(5): the fifth field is where, escaped; after `-` come the type and the source.
fn found(line: &[u8], path: &Path) -> Option<Found> {
    let mut fields = line.split(|&b| b == b' ');
    let place = unescape(fields.nth(4)?);
    if Path::new(&std::ffi::OsString::from_vec(place)) != path {
        return None;
    }
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let mut text = || rest.next().map(|field| String::from_utf8_lossy(&unescape(field)).into_owned());
    Some(Found { kind: text()?, source: text()? })
}

/// Puts back what stands there as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, more)) = rest.split_first() {
        let octal = more.get(..3).filter(|digits| first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &more[3..] } else { more };
    }
    bytes
}

/// Takes a mount away: at once, or `lazily`, out of sight while those who use it go on. The process's helper does it, where
/// there is one.
///
/// # Errors
/// `EBUSY` when it is in use; what the system says otherwise.
pub(super) fn unmount(path: &Path, lazily: bool) -> io::Result<()> {
    Helper::get().map_or_else(|| unmount_here(path, lazily), |helper| helper.unmount(lazily))
}

fn unmount_here(path: &Path, lazily: bool) -> io::Result<()> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        // Only root may do it without help.
        Err(Errno::PERM) => fusermount(path, lazily),
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

/// A mount whose handshake is done. Dropping it unmounts; at a regular end that has happened before, see `close`.
pub(super) struct Mounted {
    /// fuser would unmount its path by itself, when somebody else's mount may be there, and when this process has no
    /// privileges for it any more.
    session: ManuallyDrop<Session<Handshake>>,
    path: PathBuf,
    closed: bool,
}

impl Mounted {
    /// Mounts.
    ///
    /// # Errors
    /// `Mount` with what the system or fusermount3 said.
    pub(super) fn new(point: &MountPoint, read_only: bool, allow_root: bool) -> Result<Self> {
        let mut config = fuser::Config::default();
        config.mount_options = vec![
            MountOption::FSName(NAME.into()),
            MountOption::Subtype(NAME.into()),
            // The file's mode lets its owner in, and root.
            MountOption::DefaultPermissions,
            MountOption::NoAtime,
            if read_only { MountOption::RO } else { MountOption::RW },
        ];
        config.acl = if allow_root { SessionACL::All } else { SessionACL::Owner };
        let session = Session::new(Handshake, &point.path, &config).map_err(|e| failed(&point.path, e))?;
        Ok(Self { session: ManuallyDrop::new(session), path: point.path.clone(), closed: false })
    }

    /// Lets go of a mount that is unmounted.
    pub(super) fn close(mut self) {
        self.closed = true;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.closed
            && let Err(e) = unmount(&self.path, true)
        {
            log::error!("{} cannot be unmounted: {e}", self.path.display());
        }
        // SAFETY: the session owned the descriptor, and is never heard of again.
        drop(unsafe { OwnedFd::from_raw_fd(self.session.as_fd().as_raw_fd()) });
    }
}

impl AsFd for Mounted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }
}

fn failed(path: &Path, e: io::Error) -> Error {
    let (kind, why) = match e.kind() {
        _ if e.to_string().contains("user_allow_other") => {
            (ErrorKind::OthersForbidden, ": /etc/fuse.conf does not allow others, nor root")
        }
        io::ErrorKind::NotFound => {
            (ErrorKind::Mount, ": users other than root need fusermount3 (package fuse3)")
        }
        _ => (ErrorKind::Mount, ""),
    };
    Error::new(kind, format!("cannot mount on {}{why}", path.display())).with_source(e)
}

/// What the kernel is asked for when the mount begins; requests never come here.
struct Handshake;

impl Filesystem for Handshake {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Asynchronous direct I/O goes on while its caller does other things. There is no write-back cache: a write
        // that was acknowledged would be lost with the server.
        let wanted = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(INBOX);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_escaped_path() {
        let line =
            br"36 35 0:70 / /tmp/a\040b\134c rw,nosuid shared:1 - fuse.underseal underseal rw,user_id=0";
        let expected = Found { kind: "fuse.underseal".into(), source: "underseal".into() };
        assert_eq!(found(line, Path::new(r"/tmp/a b\c")), Some(expected));
        assert_eq!(found(line, Path::new("/tmp/a")), None);
        assert_eq!(found(b"", Path::new("/")), None);
        assert_eq!(found(b"36 35 0:70 / / rw", Path::new("/")), None, "cut short");
    }

    #[test]
    fn only_three_octal_digits_are_an_escape() {
        assert_eq!(unescape(br"a\011b\1"), b"a\tb\\1");
        assert_eq!(unescape(br"\999"), br"\999");
    }
}
