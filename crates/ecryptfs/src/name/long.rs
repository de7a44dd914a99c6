//! Names of 144 to 255 bytes, whose encrypted form is too long for a lower name. The kernel does
//! not know them, and does not show their plaintext.
//!
//! ```text
//!   UNDERSEAL_LONG_NAME.<SHA-256 of the encrypted form>            the file itself, of any kind
//!   UNDERSEAL_LONG_NAME.<the same>.name                            its name file
//! ```
//! A name has one encrypted form under a key, and so one lower name and one name file: all writers
//! write the same. Without the key, guessed names cannot be tried, since the digest covers
//! encrypted bytes. The name file is created before the name is used, and removed after it; a name
//! file alone is left over, without meaning.

use std::borrow::Cow;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Deref;
use std::os::fd::AsFd;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fgetxattr, fstat, fsync, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::{NameCipher, bad, check_name, is_encoded};
use crate::{Error, ErrorKind, Result, XATTR};

/// The prefix of long names' lower names. The kernel does not try to decrypt names with this
/// prefix.
const LONG: &[u8] = b"UNDERSEAL_LONG_NAME.";
/// The suffix of the name file.
const BESIDE: &[u8] = b".name";
const DIGITS: usize = 64;
/// The length of the longest encrypted form that is read: above the form of 255 bytes.
const MOST: u64 = 1024;

/// A lower name, and the contents of its name file, if any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LowerName<'a> {
    name: Cow<'a, [u8]>,
    encoded: Option<Vec<u8>>,
}

impl<'a> LowerName<'a> {
    /// Returns a name without a name file.
    pub(crate) fn short(name: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { name: name.into(), encoded: None }
    }

    /// Returns the encrypted form of a long name.
    pub(crate) fn encoded(&self) -> Option<&[u8]> {
        self.encoded.as_deref()
    }
}

impl Deref for LowerName<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.name
    }
}

impl NameCipher {
    /// The length of the longest name with long names: Linux's limit.
    pub const MAX_LONG_NAME: usize = 255;

    /// Returns a name's lower form; the form of a long name only if `long`.
    ///
    /// # Errors
    /// The kinds of [`NameCipher::encode`].
    pub fn lower(&self, name: &[u8], long: bool) -> Result<LowerName<'static>> {
        if !long || name.len() <= Self::MAX_NAME {
            return self.encode(name).map(LowerName::short);
        }
        check_name(name)?;
        if name.len() > Self::MAX_LONG_NAME {
            let context =
                format!("a name of {} bytes: long names have {} at most", name.len(), Self::MAX_LONG_NAME);
            return Err(Error::new(ErrorKind::NameTooLong, context));
        }
        let encoded = self.seal(name)?;
        let lower = [LONG, digest(&encoded).as_bytes()].concat();
        Ok(LowerName { name: lower.into(), encoded: Some(encoded) })
    }
}

/// Returns true for the lower name of a long name.
pub(crate) fn is_long(lower: &[u8]) -> bool {
    lower.strip_prefix(LONG).is_some_and(|digits| {
        digits.len() == DIGITS && digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Returns the lower name that a name file belongs to, or a new one that has not taken its place,
/// by its name alone. A user's file may have such a name: [`name_file_of`] knows.
pub(crate) fn is_beside(lower: &[u8]) -> Option<&[u8]> {
    let (of, rest) = lower.split_at_checked(LONG.len() + DIGITS).filter(|(of, _)| is_long(of))?;
    let is_name = match rest.strip_prefix(BESIDE)? {
        [] => true,
        [b'.', digits @ ..] => digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit),
        _ => false,
    };
    is_name.then_some(of)
}

/// Returns the lower name that a name file belongs to, or a new one that has not taken its place. A
/// file is one by its contents, which have the digest of its name, and is no encrypted file: any
/// other file with such a name is a user's.
pub(crate) fn name_file_of(folder: impl AsFd, lower: &[u8]) -> Option<&[u8]> {
    let of = is_beside(lower)?;
    let (file, _) = read_file(folder, lower, of).ok()?;
    let has_header = fgetxattr(&file, XATTR, &mut [0; 0][..]).is_ok();
    (!has_header).then_some(of)
}

/// Returns the encrypted form of a lower long name, or of a path that ends with one.
///
/// Fails with `BadName` when the name file is missing, cannot be read, or belongs to another name.
pub(crate) fn read(folder: impl AsFd, lower: &[u8]) -> Result<Vec<u8>> {
    Ok(read_file(folder, &beside(lower), lower)?.1)
}

/// Reads a name file of a lower long name, under the name `name`.
fn read_file(folder: impl AsFd, name: &[u8], lower: &[u8]) -> Result<(File, Vec<u8>)> {
    let failed = |e: Errno| {
        let context = "a long name, and the file beside it, which holds the name, cannot be read";
        Error::new(ErrorKind::BadName, context).with_source(std::io::Error::from(e))
    };
    let fd = openat(folder, name, READ, Mode::empty()).map_err(failed)?;
    // Reading another kind of file might take forever.
    if FileType::from_raw_mode(fstat(&fd).map_err(failed)?.st_mode) != FileType::RegularFile {
        return Err(bad("beside it is no file that holds the name"));
    }
    let (file, mut encoded) = (File::from(fd), Vec::new());
    // The beginning of a longer file is no encrypted form, so one byte more is read.
    (&file)
        .take(MOST + 1)
        .read_to_end(&mut encoded)
        .map_err(|e| failed(Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
    let is_form = encoded.len() as u64 <= MOST && is_encoded(&encoded);
    if !is_form || !lower.ends_with(digest(&encoded).as_bytes()) {
        return Err(bad("the file beside it holds another one, or a part"));
    }
    Ok((file, encoded))
}

/// The owner of a name file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NameOwner {
    /// The thread, as of any file that it creates.
    Thread,
    /// The user and the group of the entry, who list the folder without the program that wrote it.
    /// Only root can give it to others.
    Entry(u32, u32),
}

/// Creates the name file of a long name, on disk before this returns: the name would be lost
/// without it. No file that is there is written to: whatever it holds may have other names.
pub(crate) fn write(
    folder: impl AsFd,
    lower: &[u8],
    encoded: &[u8],
    owner: NameOwner,
) -> std::result::Result<(), Errno> {
    let name = beside(lower);
    if is_there(&folder, lower, encoded, owner) {
        return Ok(());
    }
    match fill(&folder, &name, encoded, owner) {
        Err(Errno::EXIST) => {}
        written => return written,
    }
    // An incomplete, damaged or foreign file gives its place to a new one.
    let mut number = [0; 8];
    crate::random::fill(&mut number).map_err(|_| Errno::IO)?;
    let new = [&*name, b".", hex::encode(number).as_bytes()].concat();
    let placed = fill(&folder, &new, encoded, owner)
        .and_then(|()| renameat(&folder, &new, &folder, &name))
        // The file's new name, too.
        .and_then(|()| fsync(openat(&folder, &name, READ, Mode::empty())?));
    if placed.is_err() {
        let _ = unlinkat(&folder, &new, AtFlags::empty());
    }
    placed
}

/// Whether the name file is there as it should be. A tool leaves no file in its place that has
/// other names, or belongs to neither the entry's owner, nor the folder's, nor the tool's user.
fn is_there(folder: impl AsFd, lower: &[u8], encoded: &[u8], owner: NameOwner) -> bool {
    let is_own = || match owner {
        NameOwner::Thread => true,
        NameOwner::Entry(uid, _) => {
            let of_folder = fstat(&folder).map(|about| about.st_uid);
            let about = statat(&folder, beside(lower), AtFlags::SYMLINK_NOFOLLOW);
            about.is_ok_and(|about| {
                let users = [Ok(uid), of_folder, Ok(rustix::process::geteuid().as_raw())];
                about.st_nlink == 1 && users.contains(&Ok(about.st_uid))
            })
        }
    };
    read(&folder, lower).is_ok_and(|found| found == encoded) && is_own()
}

/// Creates a file with the contents, on disk.
///
/// Fails with `EEXIST` for a name that is there, and removes a file that it cannot fill.
fn fill(folder: impl AsFd, name: &[u8], encoded: &[u8], owner: NameOwner) -> std::result::Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(&folder, name, flags, MODE)?);
    let filled = give(&file, owner).and_then(|()| {
        let written = file.write_all(encoded).and_then(|()| file.sync_all());
        written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    });
    if filled.is_err() {
        let _ = unlinkat(&folder, name, AtFlags::empty());
    }
    filled
}

/// Gives a new name file its owner, and a mode that does not depend on a tool's umask.
fn give(file: &File, owner: NameOwner) -> std::result::Result<(), Errno> {
    let NameOwner::Entry(uid, gid) = owner else { return Ok(()) };
    if rustix::process::geteuid().is_root() {
        fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    fchmod(file, MODE)
}

const MODE: Mode = Mode::from_raw_mode(0o644);
const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Removes the name file of a long name that is no longer used.
pub(crate) fn tidy(folder: impl AsFd, lower: &[u8]) {
    if statat(&folder, lower, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT) {
        // A leftover name file does no harm.
        let _ = unlinkat(&folder, beside(lower), AtFlags::empty());
    }
}

fn beside(lower: &[u8]) -> Vec<u8> {
    [lower, BESIDE].concat()
}

fn digest(encoded: &[u8]) -> String {
    hex::encode(Sha256::digest(encoded))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use rustix::fs::CWD;

    use super::*;
    use crate::{AuthToken, Cipher};

    const OURS: NameOwner = NameOwner::Thread;

    fn names(passphrase: &[u8]) -> NameCipher {
        let token = AuthToken::from_passphrase(passphrase, AuthToken::NAME_SALT).unwrap();
        NameCipher::new(Arc::new(token), Cipher::DEFAULT).unwrap()
    }

    #[test]
    fn a_long_name_has_one_lower_name_under_a_key_and_is_read_from_beside_it() {
        let (ours, other) = (names(b"ours"), names(b"another"));
        let folder = tempfile::tempdir().unwrap();
        for len in [144, 200, 255] {
            let name = vec![b'n'; len];
            let lower = ours.lower(&name, true).unwrap();
            assert!(is_long(&lower) && !super::super::is_encoded(&lower) && lower.len() <= 255);
            assert_ne!(*lower, *other.lower(&name, true).unwrap());
            let path = folder.path().join(std::ffi::OsStr::from_bytes(&lower));
            let path = path.as_os_str().as_bytes();
            assert_eq!(read(CWD, path).unwrap_err().kind(), ErrorKind::BadName);
            write(CWD, path, lower.encoded().unwrap(), OURS).unwrap();
            assert_eq!(ours.decode(&read(CWD, path).unwrap()).unwrap(), name);
            let beside = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&beside(path)));
            assert_eq!(is_beside(beside.file_name().unwrap().as_bytes()), Some(&*lower));
            for damage in [&b""[..], &lower.encoded().unwrap()[..50], &[b'x'; 5000]] {
                fs::write(&beside, damage).unwrap();
                assert_eq!(read(CWD, path).unwrap_err().kind(), ErrorKind::BadName);
                write(CWD, path, lower.encoded().unwrap(), OURS).unwrap();
                assert_eq!(read(CWD, path).unwrap(), lower.encoded().unwrap());
            }
            tidy(CWD, path);
            assert!(!beside.exists());
            fs::create_dir(&beside).unwrap();
            assert_eq!(read(CWD, path).unwrap_err().kind(), ErrorKind::BadName);
        }
    }

    #[test]
    fn no_file_that_is_there_is_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let lower = names(b"ours").lower(&[b'n'; 200], true).unwrap();
        let open = fs::File::open(folder.path()).unwrap();
        let (encoded, about) = (lower.encoded().unwrap(), fs::metadata(folder.path()).unwrap());
        let path = folder.path().join(std::ffi::OsStr::from_bytes(&beside(&lower)));
        let mine = folder.path().join("mine");
        for owner in [OURS, NameOwner::Entry(about.uid(), about.gid())] {
            fs::write(&mine, b"data of another user").unwrap();
            fs::hard_link(&mine, &path).unwrap();
            write(&open, &lower, encoded, owner).unwrap();
            assert_eq!(fs::read(&mine).unwrap(), b"data of another user");
            assert_eq!(fs::read(&path).unwrap(), encoded);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no new file is left");
            fs::remove_file(&path).unwrap();
        }
        // Nor is one left in place that another name leads to.
        fs::write(&mine, encoded).unwrap();
        fs::hard_link(&mine, &path).unwrap();
        write(&open, &lower, encoded, NameOwner::Entry(about.uid(), about.gid())).unwrap();
        assert_eq!((fs::metadata(&path).unwrap().nlink(), fs::read(&path).unwrap()), (1, encoded.to_vec()));
    }

    #[test]
    fn a_name_file_that_has_not_taken_its_place_belongs_to_its_name() {
        let lower = names(b"ours").lower(&[b'n'; 200], true).unwrap();
        let with = |rest: &str| [&lower, rest.as_bytes()].concat();
        assert_eq!(is_beside(&with(".name.0123456789abcdef")), Some(&*lower));
        for rest in ["", ".", ".nam", ".name.", ".name.0123", ".name.0123456789abcdeg", ".names"] {
            assert_eq!(is_beside(&with(rest)), None, "{rest}");
        }
    }

    #[test]
    fn a_file_is_a_name_file_by_its_contents() {
        let folder = tempfile::tempdir().unwrap();
        let open = fs::File::open(folder.path()).unwrap();
        let lower = names(b"ours").lower(&[b'n'; 200], true).unwrap();
        let encoded = lower.encoded().unwrap();
        for name in [beside(&lower), [&beside(&lower), &b".0123456789abcdef"[..]].concat()] {
            let path = folder.path().join(std::ffi::OsStr::from_bytes(&name));
            assert_eq!(name_file_of(&open, &name), None, "it is missing");
            for contents in [&b""[..], b"a user's", &encoded[..50], &[encoded, &[0][..]].concat()] {
                fs::write(&path, contents).unwrap();
                assert_eq!(name_file_of(&open, &name), None, "{contents:?}");
            }
            fs::write(&path, encoded).unwrap();
            assert_eq!(name_file_of(&open, &name), Some(&*lower));
            rustix::fs::setxattr(&path, XATTR, b"header", rustix::fs::XattrFlags::empty()).unwrap();
            assert_eq!(name_file_of(&open, &name), None, "an encrypted file");
            fs::remove_file(&path).unwrap();
        }
        // Bytes of the right digest that are no encrypted form.
        for contents in [&b""[..], b"a user's"] {
            let name = [LONG, digest(contents).as_bytes(), BESIDE].concat();
            fs::write(folder.path().join(std::ffi::OsStr::from_bytes(&name)), contents).unwrap();
            assert_eq!(name_file_of(&open, &name), None);
        }
        assert_eq!(name_file_of(&open, b"another"), None);
    }

    #[test]
    fn only_what_has_no_other_form_is_a_long_name() {
        let names = names(b"ours");
        assert_eq!(*names.lower(&[b'n'; 143], true).unwrap(), *names.encode(&[b'n'; 143]).unwrap());
        for (len, long) in [(144, false), (256, true)] {
            let refused = names.lower(&vec![b'n'; len], long).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::NameTooLong);
        }
        let slash = [&[b'n'; 200][..], b"/.."].concat();
        assert_eq!(names.lower(&slash, true).unwrap_err().kind(), ErrorKind::BadName);
        let lower = names.lower(&[b'n'; 144], true).unwrap();
        assert!(
            !is_long(&lower[..83]) && !is_long(&lower.to_ascii_uppercase()) && is_beside(&lower).is_none()
        );
        assert!(!is_long(b"UNDERSEAL_LONG_NAME."));
    }
}
