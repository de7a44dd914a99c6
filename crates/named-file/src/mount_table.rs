//! The mount table: /proc/self/mountinfo.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The source of our mounts, which mount(8) shows. By it a mount that a killed server left is
/// recognised.
pub const MOUNT_SOURCE: &str = "underseal";

/// A mount in the mount table.
#[derive(Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The mount's number.
    number: u64,
    /// The file system's major and minor number, as `stat` returns them.
    pub filesystem: (u32, u32),
    /// The mount point.
    pub point: PathBuf,
    /// The filesystem's type.
    pub kind: String,
    /// The source that the filesystem shows.
    pub source: String,
}

impl MountEntry {
    /// The topmost mount on a path, or `None`.
    ///
    /// # Errors
    /// When the path, up to its last name, leads nowhere; when the table cannot be read.
    pub fn at(path: &Path) -> io::Result<Option<Self>> {
        let path = absolute(path)?;
        // The table has them in the order of mounting.
        Ok(Self::all()?.filter(|mount| mount.point == path).last())
    }

    /// The mount that an absolute path without links leads into, or `None`. Neither the path nor a
    /// part of it is looked at: the server of a mount may not answer.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn over(path: &Path) -> io::Result<Option<Self>> {
        let above = Self::all()?.filter(|mount| path.starts_with(&mount.point));
        // Of mounts on one point the last covers the others.
        Ok(above.max_by_key(|mount| mount.point.components().count()))
    }

    /// Returns the mount of this number.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn of_mount(number: u64) -> io::Result<Option<Self>> {
        Ok(Self::all()?.find(|mount| mount.number == number))
    }

    /// Returns the path of the mount of this number and filesystem (its major and minor number);
    /// `None` when it is not in the table.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn path_of_mount(number: u64, filesystem: (u32, u32)) -> io::Result<Option<PathBuf>> {
        let mount = Self::of_mount(number)?.filter(|mount| mount.filesystem == filesystem);
        Ok(mount.map(|mount| mount.point))
    }

    /// Returns the mounts of a block device's file system, in the order of mounting.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn of_device(filesystem: (u32, u32)) -> io::Result<Vec<Self>> {
        Ok(Self::all()?.filter(|mount| mount.filesystem == filesystem).collect())
    }

    /// The whole table.
    fn all() -> io::Result<impl Iterator<Item = Self>> {
        let table = fs::read("/proc/self/mountinfo")?;
        let mounts: Vec<_> = table.split(|&byte| byte == b'\n').filter_map(Self::in_line).collect();
        Ok(mounts.into_iter())
    }

    /// Parses a line of proc(5): the number, the parent's, the file system's, the root in it, the
    /// path, escaped; after `-` the type and the source.
    fn in_line(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let mut text = |at| std::str::from_utf8(fields.nth(at)?).ok();
        let number = text(0)?.parse().ok()?;
        let (major, minor) = text(1)?.split_once(':')?;
        let filesystem = (major.parse().ok()?, minor.parse().ok()?);
        let point = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let mut text = || rest.next().map(|field| String::from_utf8_lossy(&unescape(field)).into_owned());
        Some(Self { number, filesystem, point, kind: text()?, source: text()? })
    }
}

/// The absolute path of a name, without access to the named file: its server may have ended.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else { return fs::canonicalize(path) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(fs::canonicalize(folder.unwrap_or(Path::new(".")))?.join(name))
}

/// Decodes backslash escapes of three octal digits.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_its_escaped_path() {
        let line =
            br"36 35 0:70 / /tmp/a\040b\134c rw,nosuid shared:1 - fuse.underseal underseal rw,user_id=0";
        let expected = MountEntry {
            number: 36,
            filesystem: (0, 70),
            point: r"/tmp/a b\c".into(),
            kind: "fuse.underseal".into(),
            source: "underseal".into(),
        };
        assert_eq!(MountEntry::in_line(line), Some(expected));
        assert_eq!(MountEntry::in_line(b""), None);
        assert_eq!(MountEntry::in_line(b"36 35 0:70 / / rw"), None, "cut short");
    }

    #[test]
    fn the_table_is_asked_for_paths_of_any_kind() {
        assert_eq!(MountEntry::at(Path::new("/proc")).unwrap().unwrap().kind, "proc");
        assert_eq!(MountEntry::at(Path::new("/proc/../proc")).unwrap().unwrap().kind, "proc");
        assert!(MountEntry::at(Path::new("/")).unwrap().is_some());
        assert_eq!(MountEntry::at(Path::new("nothing has this name")).unwrap(), None);
        assert!(MountEntry::at(Path::new("/no such folder/name")).is_err());
        let over = |path| MountEntry::over(Path::new(path)).unwrap().unwrap();
        assert_eq!(over("/proc/no such process/name").point, Path::new("/proc"));
        assert_eq!(over("/process").point, Path::new("/"));
    }

    #[test]
    fn a_mount_is_found_by_its_number() {
        let flags = rustix::fs::AtFlags::empty();
        let about =
            rustix::fs::statx(rustix::fs::CWD, "/proc", flags, rustix::fs::StatxFlags::MNT_ID).unwrap();
        let (number, device) = (about.stx_mnt_id, (about.stx_dev_major, about.stx_dev_minor));
        let path = MountEntry::path_of_mount(number, device).unwrap();
        assert_eq!(path.as_deref(), Some(Path::new("/proc")));
        assert_eq!(MountEntry::path_of_mount(number, (1, 0)).unwrap(), None);
        assert_eq!(MountEntry::path_of_mount(u64::MAX, device).unwrap(), None);
    }

    #[test]
    fn a_file_systems_mounts_are_found_by_its_number() {
        let proc = MountEntry::at(Path::new("/proc")).unwrap().unwrap();
        assert!(MountEntry::of_device(proc.filesystem).unwrap().contains(&proc));
        assert_eq!(MountEntry::of_device((4095, 1)).unwrap(), []);
    }

    #[test]
    fn only_three_octal_digits_are_an_escape() {
        assert_eq!(unescape(br"a\011b\1"), b"a\tb\\1");
        assert_eq!(unescape(br"\999"), br"\999");
    }
}
