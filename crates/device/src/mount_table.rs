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
        let table = fs::read("/proc/self/mountinfo")?;
        // The table has them in the order of mounting.
        Ok(table.split(|&byte| byte == b'\n').filter_map(|line| Self::in_line(line, &path)).next_back())
    }

    /// Returns the mount of this number.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn of_mount(number: u64) -> io::Result<Option<Self>> {
        let table = fs::read("/proc/self/mountinfo")?;
        Ok(line_of(&table, number).and_then(|line| Self::in_fields(&mut fields(line))))
    }

    /// Returns the path of the mount of this number and filesystem (its major and minor number);
    /// `None` when it is not in the table.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn path_of_mount(number: u64, filesystem: (u32, u32)) -> io::Result<Option<PathBuf>> {
        let table = fs::read("/proc/self/mountinfo")?;
        let device = format!("{}:{}", filesystem.0, filesystem.1);
        let mut of_line = line_of(&table, number).into_iter().flat_map(fields).skip(2);
        let path = of_line.next().filter(|field| *field == device.as_bytes()).and_then(|_| of_line.nth(1));
        Ok(path.map(|path| PathBuf::from(OsString::from_vec(unescape(path)))))
    }

    /// Parses a line of proc(5): the fifth field is the path, escaped; after `-` come the type and
    /// the source.
    fn in_line(line: &[u8], at: &Path) -> Option<Self> {
        let mut fields = fields(line);
        let place = unescape(fields.nth(4)?);
        if Path::new(&OsString::from_vec(place)) != at {
            return None;
        }
        Self::in_fields(&mut fields)
    }

    /// Parses fields up to the last.
    fn in_fields<'l>(fields: &mut impl Iterator<Item = &'l [u8]>) -> Option<Self> {
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let mut text = || rest.next().map(|field| String::from_utf8_lossy(&unescape(field)).into_owned());
        Some(Self { kind: text()?, source: text()? })
    }
}

/// Finds the line of a mount, which begins with its number.
fn line_of(table: &[u8], number: u64) -> Option<&[u8]> {
    let number = number.to_string();
    table.split(|&byte| byte == b'\n').find(|line| fields(line).next() == Some(number.as_bytes()))
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ')
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
        let expected = MountEntry { kind: "fuse.underseal".into(), source: "underseal".into() };
        let found = |line, path| MountEntry::in_line(line, Path::new(path));
        assert_eq!(found(line, r"/tmp/a b\c"), Some(expected));
        assert_eq!(found(line, "/tmp/a"), None);
        assert_eq!(found(b"", "/"), None);
        assert_eq!(found(b"36 35 0:70 / / rw", "/"), None, "cut short");
    }

    #[test]
    fn the_table_is_asked_for_paths_of_any_kind() {
        assert_eq!(MountEntry::at(Path::new("/proc")).unwrap().unwrap().kind, "proc");
        assert_eq!(MountEntry::at(Path::new("/proc/../proc")).unwrap().unwrap().kind, "proc");
        assert!(MountEntry::at(Path::new("/")).unwrap().is_some());
        assert_eq!(MountEntry::at(Path::new("nothing has this name")).unwrap(), None);
        assert!(MountEntry::at(Path::new("/no such folder/name")).is_err());
    }

    #[test]
    fn a_mount_is_found_by_its_number() {
        let table = b"21 1 0:20 / /proc rw - proc proc rw\n2 21 0:21 / /a\\040b rw - tmpfs none rw\n";
        assert_eq!(line_of(table, 2).and_then(|line| fields(line).nth(4)), Some(&br"/a\040b"[..]));
        assert_eq!(line_of(table, 1), None);
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
    fn only_three_octal_digits_are_an_escape() {
        assert_eq!(unescape(br"a\011b\1"), b"a\tb\\1");
        assert_eq!(unescape(br"\999"), br"\999");
    }
}
