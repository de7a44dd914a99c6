//! Secrets in files and descriptors.
//!
//! A passphrase is the first line without its newline, or everything where no newline follows; a
//! carriage return before it is kept, as cryptsetup does. A key file is every byte.

#![expect(unsafe_code, reason = "a descriptor that is inherited by its number")]

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;

use rustix::io::Errno;
use underseal_cipher::Key;

use crate::error::{Error, Result};
use crate::size;

/// Reads the first line of a file. Fails with `Usage` when it is empty or too long; with `Failed`.
pub(crate) fn first_line_of_file(path: &Path) -> Result<Key> {
    let file = File::open(path).map_err(|e| Error::io(path, "cannot open the passphrase file", e))?;
    first_line(file.as_fd(), &path.display().to_string())
}

/// Reads the first line from a descriptor, and no further than the newline, so that later reads
/// find the following bytes. Fails as [`first_line_of_file`].
pub(crate) fn first_line_of_descriptor(number: u32) -> Result<Key> {
    first_line_if_any(number)?.ok_or_else(|| nothing(&format!("descriptor {number}")))
}

/// Reads the first line from a descriptor; `None` where it is empty. Fails as
/// [`first_line_of_file`].
pub(crate) fn first_line_if_any(number: u32) -> Result<Option<Key>> {
    let name = format!("descriptor {number}");
    let not_open = || {
        let remedy = format!("{number}< FILE after the command opens it");
        Error::usage(format!("{name} is not open")).with_remedy(remedy)
    };
    let raw = RawFd::try_from(number).map_err(|_| not_open())?;
    // SAFETY: until it is a daemon, which reads no secrets, this program closes no descriptor that
    // it did not open; so an open descriptor stays open for the borrow, and every call on a closed
    // one fails.
    let fd = unsafe { BorrowedFd::borrow_raw(raw) };
    rustix::io::fcntl_getfd(fd).map_err(|_| not_open())?;
    line(fd, &name)
}

/// The line of a descriptor after `offset` bytes: `len` bytes of it, if that is said.
pub(crate) fn limited_line_of_descriptor(number: u32, offset: u64, len: Option<u64>) -> Result<Key> {
    let raw = RawFd::try_from(number).unwrap_or(-1);
    // SAFETY: as in `first_line_if_any`.
    let fd = unsafe { BorrowedFd::borrow_raw(raw) };
    let name = format!("descriptor {number}");
    let failed = |e: Errno| Error::io(Path::new(&name), "cannot read the passphrase", e);
    let mut skipped = 0;
    while skipped < offset {
        match rustix::io::read(fd, &mut [0; 1]) {
            Ok(0) => {
                let what = format!("{name}: {skipped} bytes, and the passphrase begins after {offset}");
                return Err(Error::usage(what).with_remedy("--keyfile-offset with what is there"));
            }
            Ok(_) => skipped += 1,
            Err(Errno::INTR) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    let most = len.map_or(Key::MAX, |len| usize::try_from(len).unwrap_or(Key::MAX).min(Key::MAX));
    let secret = line_of_at_most(fd, &name, most)?.map_or_else(|| Key::new(&[]).map_err(Error::from), Ok)?;
    match len {
        Some(len) if (secret.len() as u64) < len => {
            let what = format!("{name}: a line of {} bytes, not {len}", secret.len());
            Err(Error::usage(what).with_remedy("--keyfile-size with what is there"))
        }
        _ => Ok(secret),
    }
}

/// All bytes of a file, or `len` of them after `offset`; "-" is stdin.
///
/// # Errors
/// `Usage` when it is empty, too short or longer than a key may be; `Failed`.
pub(crate) fn key_file(path: &Path, offset: u64, len: Option<u64>) -> Result<Key> {
    match key_bytes(path, offset, len)? {
        key if key.is_empty() => Err(Error::usage(format!("{}: there is nothing in it", path.display()))),
        key => Ok(key),
    }
}

fn key_bytes(path: &Path, offset: u64, len: Option<u64>) -> Result<Key> {
    let name = path.display().to_string();
    let too_large = || {
        Error::usage(format!("{name}: a key has at most {}", size::show(Key::MAX as u64)))
            .with_remedy("--keyfile-size BYTES to use its beginning")
    };
    let len = len.map(usize::try_from).transpose().ok().filter(|len| len.is_none_or(|len| len <= Key::MAX));
    let len = len.ok_or_else(too_large)?;
    let failed = |e: io::Error| Error::io(path, "cannot read", e);

    let file =
        if name == "-" { io::stdin().as_fd().try_clone_to_owned().map(File::from) } else { File::open(path) };
    let mut file = file.map_err(failed)?;
    if file.is_terminal() {
        let context = format!("{name}: a key file cannot be read from a terminal, which would show it");
        return Err(Error::usage(context).with_remedy("without a key file, to be asked"));
    }
    // A pipe has no offset to seek to.
    let skipped = io::copy(&mut (&mut file).take(offset), &mut io::sink()).map_err(failed)?;
    if skipped < offset {
        let context = format!("{name}: {skipped} bytes, and the key begins after {offset}");
        return Err(Error::usage(context).with_remedy("--keyfile-offset with what is there"));
    }
    let mut secret = Growing::new(len.unwrap_or(0))?;
    let limit = len.unwrap_or(Key::MAX);
    while secret.len < limit {
        let room = secret.room(limit)?;
        match file.read(room) {
            Ok(0) => break,
            Ok(read) => secret.len += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    match len {
        // A byte beyond the limit is only noticed by reading it.
        None if secret.len == Key::MAX && file.read(&mut [0]).map_err(failed)? > 0 => Err(too_large()),
        Some(len) if secret.len < len => {
            let context = format!("{name}: {} bytes after {skipped}, not {len}", secret.len);
            Err(Error::usage(context).with_remedy("--keyfile-size with what is there"))
        }
        _ => Ok(secret.into_key()),
    }
}

/// The same, but of an empty file an empty key. A pipe, a device and stdin have to have one.
pub(crate) fn key_file_or_nothing(path: &Path, offset: u64, len: Option<u64>) -> Result<Key> {
    let is_file = path.as_os_str() != "-" && std::fs::metadata(path).is_ok_and(|of| of.is_file());
    if is_file { key_bytes(path, offset, len) } else { key_file(path, offset, len) }
}

fn first_line(fd: BorrowedFd<'_>, name: &str) -> Result<Key> {
    line(fd, name)?.ok_or_else(|| nothing(name))
}

fn nothing(name: &str) -> Error {
    Error::usage(format!("{name}: no passphrase there: it is empty"))
}

fn line(fd: BorrowedFd<'_>, name: &str) -> Result<Option<Key>> {
    line_of_at_most(fd, name, usize::MAX)
}

/// A line, or the first bytes of a longer one.
fn line_of_at_most(fd: BorrowedFd<'_>, name: &str, most: usize) -> Result<Option<Key>> {
    let mut secret = Growing::new(0)?;
    loop {
        if secret.len == most {
            return Ok(Some(secret.into_key()));
        }
        if secret.len == Key::MAX {
            return Err(Error::usage(format!("{name}: a first line of more than {} bytes", Key::MAX))
                .with_remedy("--key-file for a key that is not text"));
        }
        match rustix::io::read(fd, &mut secret.room(Key::MAX)?[..1]) {
            Ok(0) if secret.len == 0 => return Ok(None),
            Ok(0) => return Ok(Some(secret.into_key())),
            Ok(_) => secret.len += 1,
            Err(Errno::INTR) => {}
            Err(e) => return Err(Error::io(Path::new(name), "cannot read the passphrase", e)),
        }
        if secret.is_line() {
            secret.len -= 1;
            return Ok(Some(secret.into_key()));
        }
    }
}

/// A key of unknown length. It moves between locked pages only.
pub(super) struct Growing {
    key: Key,
    pub(super) len: usize,
}

impl Growing {
    pub(super) fn new(expected: usize) -> Result<Self> {
        Ok(Self { key: Key::zeroed(expected.max(4096))?, len: 0 })
    }

    /// Returns bytes to fill behind the present ones: at least one below `limit` bytes, which is at
    /// most [`Key::MAX`].
    pub(super) fn room(&mut self, limit: usize) -> Result<&mut [u8]> {
        if self.len == self.key.len() {
            let mut larger = Key::zeroed((self.len * 2).min(Key::MAX))?;
            larger.as_mut_bytes()[..self.len].copy_from_slice(self.key.as_bytes());
            self.key = larger;
        }
        let end = limit.min(self.key.len());
        Ok(&mut self.key.as_mut_bytes()[self.len..end])
    }

    pub(super) fn is_line(&self) -> bool {
        self.key.as_bytes()[..self.len].ends_with(b"\n")
    }

    pub(super) fn into_key(mut self) -> Key {
        self.key.truncate(self.len);
        self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    fn line_of(bytes: &[u8]) -> Result<Key> {
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&write, bytes).unwrap();
        drop(write);
        first_line(read.as_fd(), "pipe")
    }

    #[test]
    fn a_passphrase_is_the_first_line_without_its_newline() {
        for (bytes, secret) in [
            (&b"secret"[..], &b"secret"[..]),
            (b"secret\n", b"secret"),
            (b"secret\r\n", b"secret\r"),
            (b"secret\nmore\n", b"secret"),
            (b"\n", b""),
            (b"a\0b\n", b"a\0b"),
        ] {
            assert_eq!(line_of(bytes).unwrap().as_bytes(), secret, "{bytes:?}");
        }
        assert_eq!(line_of(b"").unwrap_err().exit(), Exit::Usage);
        let long = vec![b'x'; 10_000];
        assert_eq!(line_of(&long).unwrap().as_bytes(), long);
    }

    #[test]
    fn nothing_after_the_newline_is_read() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&write, b"secret\ndata").unwrap();
        first_line(read.as_fd(), "pipe").unwrap();
        let mut rest = [0; 8];
        assert_eq!(rustix::io::read(&read, &mut rest), Ok(4));
        assert_eq!(&rest[..4], b"data");
    }

    #[test]
    fn a_key_file_is_every_byte_within_the_given_range() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).flat_map(|n| n.to_le_bytes()).collect();
        std::fs::write(file.path(), &bytes).unwrap();
        for (offset, len) in [(0, None), (0, Some(64)), (4097, Some(10_000)), (79_999, None)] {
            let key = key_file(file.path(), offset, len).unwrap();
            let from = usize::try_from(offset).unwrap();
            let end = len.map_or(bytes.len(), |len| from + usize::try_from(len).unwrap());
            assert_eq!(key.as_bytes(), &bytes[from..end]);
        }
        for (offset, len) in [(80_000, None), (79_999, Some(2)), (0, Some(9 << 20))] {
            assert_eq!(
                key_file(file.path(), offset, len).unwrap_err().exit(),
                Exit::Usage,
                "{offset} {len:?}"
            );
        }
    }

    #[test]
    fn a_key_file_above_the_limit_is_refused_not_cut() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(Key::MAX as u64).unwrap();
        assert_eq!(key_file(file.path(), 0, None).unwrap().len(), Key::MAX);
        file.as_file().set_len(Key::MAX as u64 + 1).unwrap();
        assert_eq!(key_file(file.path(), 0, None).unwrap_err().exit(), Exit::Usage);
        assert_eq!(key_file(file.path(), 1, None).unwrap().len(), Key::MAX);
    }
}
