//! What a file has besides its contents: mode, owner, times, xattrs.

use std::ffi::{CStr, CString};
use std::fs::{Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, lgetxattr, llistxattr, lsetxattr,
    mknodat, utimensat,
};
use rustix::io::Errno;

use crate::{Error, Result, XATTR};

/// All of it.
#[derive(Debug, Clone)]
pub struct Attributes {
    /// Permissions and kind, as `stat` has them.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// A device's number.
    pub device: u64,
    /// Last read: seconds, nanoseconds.
    pub accessed: (i64, i64),
    /// Last written.
    pub modified: (i64, i64),
    /// Names and values; not the one that holds a header.
    pub xattrs: Vec<(CString, Vec<u8>)>,
}

/// Linux's limits for the list of names and for a value.
const MOST: usize = 65536;

impl Attributes {
    /// Those of what is at the path; a symlink's are its own.
    ///
    /// # Errors
    /// `Io`.
    pub fn of(path: &Path, about: &Metadata) -> Result<Self> {
        Ok(Self {
            mode: about.mode(),
            uid: about.uid(),
            gid: about.gid(),
            device: about.rdev(),
            accessed: (about.atime(), about.atime_nsec()),
            modified: (about.mtime(), about.mtime_nsec()),
            xattrs: xattrs(path).map_err(|e| Error::io(path, "its xattrs cannot be read", e))?,
        })
    }

    /// Gives them to what is at the path. Who is not root gives nothing that only root may give.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn apply(&self, path: &Path) -> Result<()> {
        let failed = |doing: &str, e: std::io::Error| Error::io(path, doing, e);
        let is_root = rustix::process::geteuid().is_root();
        let is_symlink = FileType::from_raw_mode(self.mode) == FileType::Symlink;
        match lchown(path, Some(self.uid), Some(self.gid)) {
            Err(e) if is_root || e.raw_os_error() != Some(Errno::PERM.raw_os_error()) => {
                return Err(failed("its owner cannot be kept", e));
            }
            _ => {}
        }
        for (name, value) in &self.xattrs {
            match lsetxattr(path, name.as_c_str(), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::PERM) if !is_root && !name.to_bytes().starts_with(b"user.") => {}
                Err(e) => {
                    return Err(failed(
                        &format!("xattr {} cannot be kept", name.to_string_lossy()),
                        e.into(),
                    ));
                }
            }
        }
        // After the owner, whose change takes set-user-ID away.
        if !is_symlink {
            let permissions = Permissions::from_mode(self.mode & 0o7777);
            std::fs::set_permissions(path, permissions).map_err(|e| failed("its mode cannot be kept", e))?;
        }
        set_times(path, self.accessed, self.modified)
    }

    /// Makes the pipe, socket or device that they are those of.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn make_special(&self, path: &Path) -> Result<()> {
        let kind = FileType::from_raw_mode(self.mode);
        mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), self.device)
            .map_err(|e| Error::io(path, "cannot be made", e))?;
        self.apply(path)
    }
}

/// Gives something the times that it had.
pub(super) fn keep_times(path: &Path, about: &Metadata) -> Result<()> {
    set_times(path, (about.atime(), about.atime_nsec()), (about.mtime(), about.mtime_nsec()))
}

fn set_times(path: &Path, accessed: (i64, i64), modified: (i64, i64)) -> Result<()> {
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| Error::io(path, "its times cannot be kept", e))
}

fn xattrs(path: &Path) -> std::io::Result<Vec<(CString, Vec<u8>)>> {
    let mut names = vec![0; MOST];
    let len = match llistxattr(path, &mut names) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        listed => listed?,
    };
    names.truncate(len);
    let mut all = Vec::new();
    let mut value = vec![0; MOST];
    for name in names.split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if name.to_bytes() == XATTR.as_bytes() {
            continue;
        }
        match lgetxattr(path, name, &mut value) {
            Ok(len) => all.push((name.to_owned(), value[..len].to_vec())),
            // Gone meanwhile, or not for us to read.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(all)
}
