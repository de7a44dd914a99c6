//! The attributes of a file besides its contents: mode, owner, times, xattrs.

use std::ffi::{CStr, CString};
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, StatVfsMountFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, fstatvfs, getxattr, listxattr, setxattr, statat, utimensat,
};
use rustix::io::Errno;

use super::inherited::remove_lists;
use super::tree::{PinnedEntry, TreeFolder};
use crate::{Error, Result, is_own_xattr, proc_path};

/// All attributes.
#[derive(Debug, Clone)]
pub struct TreeAttributes {
    /// Permissions and kind, as in `stat`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// A device's number.
    pub device: u64,
    /// The last read: seconds, nanoseconds.
    pub accessed: (i64, i64),
    /// The last write: seconds, nanoseconds.
    pub modified: (i64, i64),
    /// Names and values, without the xattrs of a header and of marks.
    pub xattrs: Vec<(CString, Vec<u8>)>,
}

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

/// The xattr that gives a program capabilities.
const CAPABILITY: &CStr = c"security.capability";

/// Linux's limits for the list of names and for a value.
const MOST: usize = 65536;

impl TreeAttributes {
    /// Returns an entry's attributes; for a symlink the symlink's own.
    ///
    /// Fails with `Io`.
    pub(super) fn of(entry: &PinnedEntry) -> Result<Self> {
        Self::with(entry, entry.about())
    }

    /// Returns an entry's attributes for its copy in another tree, without the privileges that the
    /// entry's mount denies: a user's FUSE file system shows whatever owner, mode and device he
    /// likes, and the copy would have them.
    ///
    /// Fails with `Io`, for a device also where the mount denies devices.
    pub(super) fn to_copy(entry: &PinnedEntry) -> Result<Self> {
        let mut attributes = Self::of(entry)?;
        let kind = FileType::from_raw_mode(attributes.mode);
        let is_device = matches!(kind, FileType::BlockDevice | FileType::CharacterDevice);
        let is_privileged = kind == FileType::RegularFile
            && (attributes.mode & SET_ID != 0
                || attributes.xattrs.iter().any(|(name, _)| **name == *CAPABILITY));
        if !is_device && !is_privileged {
            return Ok(attributes);
        }
        let mount = fstatvfs(entry);
        let mount = mount.map_err(|e| Error::io(entry.path(), "its mount cannot be looked at", e))?.f_flag;
        if is_device && mount.contains(StatVfsMountFlags::NODEV) {
            let what = "a device is not copied from a mount without devices (nodev)";
            return Err(Error::io(entry.path(), what, Errno::PERM));
        }
        if is_privileged && mount.contains(StatVfsMountFlags::NOSUID) {
            log::warn!(
                "{}: copied without privileges, which its mount denies (nosuid)",
                entry.path().display()
            );
            attributes.mode &= !SET_ID;
            attributes.xattrs.retain(|(name, _)| **name != *CAPABILITY);
        }
        Ok(attributes)
    }

    /// Returns an entry's attributes with those that `stat` has returned since.
    ///
    /// Fails with `Io`.
    pub(super) fn with(entry: &PinnedEntry, about: &Metadata) -> Result<Self> {
        Ok(Self {
            mode: about.mode(),
            uid: about.uid(),
            gid: about.gid(),
            device: about.rdev(),
            accessed: (about.atime(), about.atime_nsec()),
            modified: (about.mtime(), about.mtime_nsec()),
            xattrs: xattrs(&proc_path(entry))
                .map_err(|e| Error::io(entry.path(), "its xattrs cannot be read", e))?,
        })
    }

    /// Sets them on the file behind a descriptor, which may be O_PATH. Access control lists that
    /// are not among them are removed. The path is for messages. Without root, attributes that only
    /// root may set are left out.
    ///
    /// Fails with `Io`.
    pub(super) fn apply(&self, to: impl AsFd, path: &Path) -> Result<()> {
        let failed = |doing: &str, e: Errno| Error::io(path, doing, e);
        let is_root = rustix::process::geteuid().is_root();
        let is_symlink = FileType::from_raw_mode(self.mode) == FileType::Symlink;
        // The link in /proc leads to the file itself, even if it is a symlink.
        let link = proc_path(&to);
        let (uid, gid) = (Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.gid)));
        match chownat(&to, "", uid, gid, AtFlags::EMPTY_PATH) {
            Err(e) if is_root || e != Errno::PERM => return Err(failed("its owner cannot be kept", e)),
            _ => {}
        }
        for (name, value) in &self.xattrs {
            match setxattr(&*link, name.as_c_str(), value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::PERM) if !is_root && !name.to_bytes().starts_with(b"user.") => {}
                Err(e) => {
                    return Err(failed(&format!("xattr {} cannot be kept", name.to_string_lossy()), e));
                }
            }
        }
        // After the owner, as a change of the owner removes set-user-ID, and after the lists: the
        // mode's bits of the group are a list's mask.
        if !is_symlink {
            remove_lists(&to, &self.xattrs).map_err(|e| failed("its access cannot be kept", e))?;
            let is = statat(&to, "", AtFlags::EMPTY_PATH).map_err(|e| failed("cannot be looked at", e))?;
            let mode = Mode::from_raw_mode(self.mode & 0o7777 & !self.not_given(is.st_uid, is.st_gid));
            chmodat(CWD, &*link, mode, AtFlags::empty()).map_err(|e| failed("its mode cannot be kept", e))?;
        }
        set_times(to, path, self.accessed, self.modified)
    }

    /// Returns set-user-ID and set-group-ID where a file has another owner or group than these: a
    /// stranger's program would run as this user.
    fn not_given(&self, uid: u32, gid: u32) -> u32 {
        let user = if uid == self.uid { 0 } else { 0o4000 };
        let group = if gid == self.gid { 0 } else { 0o2000 };
        user | group
    }

    /// Creates the pipe, socket or device with these attributes.
    ///
    /// Fails with `Io`.
    pub(super) fn make_special(&self, folder: &TreeFolder, name: &[u8]) -> Result<()> {
        let made = folder.make_special(name, FileType::from_raw_mode(self.mode), self.device)?;
        self.apply(&made, made.path())
    }
}

/// Sets the times of a folder or file to those when it was pinned.
pub(super) fn keep_times(entry: &PinnedEntry) -> Result<()> {
    let about = entry.about();
    let (accessed, modified) = ((about.atime(), about.atime_nsec()), (about.mtime(), about.mtime_nsec()));
    set_times(entry, entry.path(), accessed, modified)
}

fn set_times(to: impl AsFd, path: &Path, accessed: (i64, i64), modified: (i64, i64)) -> Result<()> {
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time(accessed), last_modification: time(modified) };
    utimensat(to, "", &times, AtFlags::EMPTY_PATH).map_err(|e| Error::io(path, "its times cannot be kept", e))
}

fn xattrs(link: &str) -> std::io::Result<Vec<(CString, Vec<u8>)>> {
    let mut names = vec![0; MOST];
    let len = match listxattr(link, &mut names) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        listed => listed?,
    };
    names.truncate(len);
    let mut all = Vec::new();
    let mut value = vec![0; MOST];
    for name in names.split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        if is_own_xattr(name.to_bytes()) {
            continue;
        }
        match getxattr(link, name, &mut value) {
            Ok(len) => all.push((name.to_owned(), value[..len].to_vec())),
            // Removed meanwhile, or unreadable for this user.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(e) => return Err(e.into()),
        }
    }
    // Filesystems list them in an order of their own, which a change of another one may change.
    all.sort();
    Ok(all)
}
