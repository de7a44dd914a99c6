//! The mount table: /proc/self/mountinfo.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The source of our mounts, which mount(8) shows. By it a mount that a killed server left is
/// recognised.
pub const MOUNT_SOURCE: &str = "underseal";

/// File systems whose files a server has, which may not answer.
const SERVED: [&str; 8] = ["9p", "afs", "ceph", "cifs", "nfs", "nfs4", "smb3", "virtiofs"];

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
        let number = number.to_string();
        let is_it = |line: &&[u8]| line.split(|&byte| byte == b' ').next() == Some(number.as_bytes());
        Ok(table.split(|&byte| byte == b'\n').find(is_it).and_then(|line| Self::in_fields(&mut fields(line))))
    }

    /// Whether requests for its files are sent to a server: of FUSE, or of another machine.
    pub(crate) fn is_served(&self) -> bool {
        self.kind == "fuseblk" || self.kind.split('.').next() == Some("fuse") || SERVED.contains(&&*self.kind)
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

/// The whole mount table.
pub(crate) struct MountTable(Vec<Mount>);

/// A mount at its place.
struct Mount {
    number: u64,
    parent: u64,
    /// The device number of its files.
    device: u64,
    place: PathBuf,
    entry: MountEntry,
}

impl MountTable {
    /// Reads the table.
    pub(crate) fn read() -> io::Result<Self> {
        Ok(Self::of(&fs::read("/proc/self/mountinfo")?))
    }

    fn of(table: &[u8]) -> Self {
        Self(table.split(|&byte| byte == b'\n').filter_map(Mount::in_line).collect())
    }

    /// Returns the mount that a path without links lies on, and the device number of its files. No
    /// file is looked at.
    pub(crate) fn above(&self, path: &Path) -> Option<(&MountEntry, u64)> {
        let all = &self.0;
        let is_top = |mount: &&Mount| {
            !all.iter().any(|other| other.number == mount.parent && other.number != mount.number)
        };
        let mut found = all.iter().rfind(|mount| is_top(mount) && path.starts_with(&mount.place))?;
        // At most as many as there are mounts: a table that changes meanwhile may have a circle.
        for _ in all {
            let inside = |mount: &&Mount| {
                mount.parent == found.number && mount.number != found.number && path.starts_with(&mount.place)
            };
            let Some(next) = all.iter().filter(inside).min_by_key(|mount| mount.place.as_os_str().len())
            else {
                break;
            };
            found = next;
        }
        Some((&found.entry, found.device))
    }
}

impl Mount {
    /// Parses a line of proc(5): numbers of the mount, of the one that it is in, and of the device.
    fn in_line(line: &[u8]) -> Option<Self> {
        let mut fields = fields(line);
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (number, parent, device) = (text()?.parse().ok()?, text()?.parse().ok()?, text()?);
        let (major, minor) = device.split_once(':')?;
        let device = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
        let place = OsString::from_vec(unescape(fields.nth(1)?)).into();
        Some(Self { number, parent, device, place, entry: MountEntry::in_fields(&mut fields)? })
    }
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
    fn the_mount_above_a_path_is_found_without_a_look_at_files() {
        // The root came last, and holds mounts that were moved into it; /a was mounted over.
        let table = MountTable::of(
            b"21 40 0:5 / /run rw - tmpfs tmpfs rw\n\
              50 40 8:2 / /a rw - ext4 /dev/sda2 rw\n\
              51 50 0:60 / /a/file rw - fuse.underseal underseal rw\n\
              52 40 0:61 / /home\\040x rw - nfs4 server:/ rw\n\
              53 51 0:62 / /a/file rw - fuse.sshfs other rw\n\
              40 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
              60 40 8:3 / /b/c rw - xfs /dev/sda3 rw\n\
              61 60 0:63 / /b/c/d rw - fuseblk ntfs rw\n\
              62 40 0:64 / /b rw - tmpfs tmpfs rw\n",
        );
        let found = |path| {
            let (entry, device) = table.above(Path::new(path)).unwrap();
            (&*entry.kind, device, entry.is_served())
        };
        assert_eq!(found("/etc/image"), ("ext4", libc::makedev(8, 1), false));
        assert_eq!(found("/run/image"), ("tmpfs", libc::makedev(0, 5), false));
        assert_eq!(found("/a/file (deleted)"), ("ext4", libc::makedev(8, 2), false));
        assert_eq!(found("/a/file"), ("fuse.sshfs", libc::makedev(0, 62), true));
        assert_eq!(found("/home x/image"), ("nfs4", libc::makedev(0, 61), true));
        assert_eq!(found("/b/c/d/image"), ("tmpfs", libc::makedev(0, 64), false), "hidden mounts");
        assert!(MountTable::of(b"").above(Path::new("/")).is_none());
        let proc = MountTable::read().unwrap();
        assert_eq!(proc.above(Path::new("/proc/self")).unwrap().0.kind, "proc");
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
    fn only_three_octal_digits_are_an_escape() {
        assert_eq!(unescape(br"a\011b\1"), b"a\tb\\1");
        assert_eq!(unescape(br"\999"), br"\999");
    }
}
