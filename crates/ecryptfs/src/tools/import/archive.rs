//! A tar archive, member by member: GNU's and pax's.
//!
//! ```text
//!   [ x: records | L: a long name | K: a long link ]*
//!   header  size bytes  zeros to 512    ..    a block of zeros
//! ```
//! The `tar` crate reads the headers only: its reader of pax records splits them at line feeds,
//! which names and xattrs may contain, and it reads a member's description into memory whatever its
//! size.

use std::ffi::CString;
use std::io::{self, Read};

use rustix::fs::makedev;
use tar::{EntryType, Header};

use super::acl;
use crate::tools::attributes::TreeAttributes;
use crate::tools::inherited::{ACCESS, DEFAULT};
use crate::{Error, ErrorKind, Result, is_own_xattr};

/// The largest description of a member: some xattrs of 64 KiB.
const MOST: u64 = 1 << 20;
const BLOCK: usize = 512;

/// Reads the bytes of the present member.
pub(super) struct Archive<'r> {
    from: &'r mut dyn Read,
    left: u64,
    padding: u64,
}

/// A member of an archive.
pub(super) struct Member {
    pub(super) kind: EntryType,
    /// The path as written.
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    /// The attributes, without a file's type.
    pub(super) attributes: TreeAttributes,
    /// The member's bytes leave out holes.
    pub(super) sparse: bool,
}

/// The records before a member's header.
#[derive(Default)]
struct Described {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    modified: Option<(i64, i64)>,
    accessed: Option<(i64, i64)>,
    xattrs: Vec<(CString, Vec<u8>)>,
    sparse: bool,
}

impl<'r> Archive<'r> {
    pub(super) fn new(from: &'r mut dyn Read) -> Self {
        Self { from, left: 0, padding: 0 }
    }

    /// Returns the next member, or `None` at the end.
    ///
    /// Fails with `BadFile` for bytes that are no archive, and for an incomplete archive, and with
    /// `Io`. After an error nothing can be read.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let mut described = Described::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let kind = header.entry_type();
            let describes = matches!(
                kind,
                EntryType::XHeader
                    | EntryType::XGlobalHeader
                    | EntryType::GNULongName
                    | EntryType::GNULongLink
            );
            let size = described.size.filter(|_| !describes);
            let size = size.map_or_else(|| header.entry_size(), Ok).map_err(no_archive)?;
            if i64::try_from(size).is_err() {
                return Err(bad("a member is larger than any file"));
            }
            // The size of a member that has no bytes stands for something else: a folder's for a
            // quota (POSIX, ustar), a hard link's for the file's.
            let has_bytes = !matches!(
                kind,
                EntryType::Link
                    | EntryType::Symlink
                    | EntryType::Char
                    | EntryType::Block
                    | EntryType::Directory
                    | EntryType::Fifo
            );
            let size = if has_bytes { size } else { 0 };
            (self.left, self.padding) = (size, size.next_multiple_of(BLOCK as u64) - size);
            match kind {
                EntryType::XHeader => described.read(&self.text()?)?,
                EntryType::GNULongName => described.path = Some(until_zero(self.text()?)),
                EntryType::GNULongLink => described.link = Some(until_zero(self.text()?)),
                // Global records, which usually are comments.
                EntryType::XGlobalHeader => {}
                _ => return described.complete(&header).map(Some),
            }
        }
    }

    /// Reads the rest of the last record, so that the writer of a pipe can end.
    pub(super) fn end(&mut self) {
        let _ = io::copy(&mut Read::take(&mut *self.from, MOST), &mut io::sink());
    }

    /// Skips to the next header.
    fn skip(&mut self) -> Result<()> {
        let left = self.left + self.padding;
        let skipped = io::copy(&mut Read::take(&mut *self.from, left), &mut io::sink()).map_err(failed)?;
        (self.left, self.padding) = (0, 0);
        if skipped == left { Ok(()) } else { Err(cut()) }
    }

    /// Returns `None` at the end's mark.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut header = Header::new_old();
        self.from.read_exact(header.as_mut_bytes()).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => cut(),
            _ => failed(e),
        })?;
        let bytes = header.as_bytes();
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        // The checksum counts its own place as spaces.
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        if header.cksum().ok() != Some(sum(&bytes[..148]) + 8 * 32 + sum(&bytes[156..])) {
            return Err(bad("it is no tar archive, or damaged: a header has another checksum"));
        }
        Ok(Some(header))
    }

    fn text(&mut self) -> Result<Vec<u8>> {
        if self.left > MOST {
            return Err(bad(format!("{} bytes describe one member", self.left)));
        }
        let mut text = Vec::new();
        self.read_to_end(&mut text).map_err(failed)?;
        Ok(text)
    }
}

impl Read for Archive<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = self.from.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the archive is cut"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

impl Described {
    /// Parses records of `length key=value\n`.
    fn read(&mut self, mut records: &[u8]) -> Result<()> {
        while !records.is_empty() {
            let (record, rest) = first_record(records).ok_or_else(|| bad("a pax record is damaged"))?;
            records = rest;
            let at = record.iter().position(|&byte| byte == b'=');
            let (key, value) = record.split_at(at.ok_or_else(|| bad("a pax record is damaged"))?);
            self.record(key, &value[1..])?;
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let wrong = || bad(format!("a pax record's {} is no number", String::from_utf8_lossy(key)));
        let text = str::from_utf8(value);
        match key {
            b"path" => self.path = Some(value.into()),
            b"linkpath" => self.link = Some(value.into()),
            b"size" => self.size = Some(text.ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?),
            b"uid" => self.uid = Some(text.ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?),
            b"gid" => self.gid = Some(text.ok().and_then(|text| text.parse().ok()).ok_or_else(wrong)?),
            b"mtime" => self.modified = Some(text.ok().and_then(time).ok_or_else(wrong)?),
            b"atime" => self.accessed = Some(text.ok().and_then(time).ok_or_else(wrong)?),
            b"SCHILY.acl.access" => self.xattrs.push((ACCESS.into(), acl::to_xattr(value)?)),
            b"SCHILY.acl.default" => self.xattrs.push((DEFAULT.into(), acl::to_xattr(value)?)),
            _ if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {
                let Some(name) = key.strip_prefix(b"SCHILY.xattr.") else { return Ok(()) };
                let name = plain_keyword(name);
                // A header of eCryptfs would belong to another file, and so would a mark.
                if !is_own_xattr(&name) {
                    let name = CString::new(name).map_err(|_| bad("an xattr's name is damaged"))?;
                    self.xattrs.push((name, value.into()));
                }
            }
        }
        Ok(())
    }

    fn complete(self, header: &Header) -> Result<Member> {
        let id = |id: io::Result<u64>| {
            u32::try_from(id.map_err(no_archive)?).map_err(|_| bad("an owner's number is out of range"))
        };
        // Times before 1970 are negative in GNU's headers.
        let seconds = header.mtime().map_err(no_archive)?.cast_signed();
        let modified = self.modified.unwrap_or((seconds, 0));
        let number = |number: io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
        let (path, kind) = (self.path.unwrap_or_else(|| header.path_bytes().into()), header.entry_type());
        Ok(Member {
            // Old archives have no type for folders.
            kind: if kind.is_file() && path.ends_with(b"/") { EntryType::Directory } else { kind },
            path,
            link: self.link.or_else(|| Some(header.link_name_bytes()?.into())).unwrap_or_default(),
            attributes: TreeAttributes {
                mode: header.mode().map_err(no_archive)? & 0o7777,
                uid: self.uid.map_or_else(|| id(header.uid()), Ok)?,
                gid: self.gid.map_or_else(|| id(header.gid()), Ok)?,
                device: makedev(number(header.device_major()), number(header.device_minor())),
                accessed: self.accessed.unwrap_or(modified),
                modified,
                xattrs: self.xattrs,
            },
            sparse: self.sparse || kind.is_gnu_sparse(),
        })
    }
}

/// Returns an xattr's name as it was before GNU tar's encoding, which a record's key needs: `%3D`
/// is `=`, and `%25` is `%`.
fn plain_keyword(mut encoded: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    while let [first, rest @ ..] = encoded {
        let (byte, rest) = match encoded {
            [b'%', b'3', b'D', rest @ ..] => (b'=', rest),
            [b'%', b'2', b'5', rest @ ..] => (b'%', rest),
            _ => (*first, rest),
        };
        name.push(byte);
        encoded = rest;
    }
    name
}

fn first_record(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = records.iter().position(|&byte| byte == b' ')?;
    let len: usize = str::from_utf8(&records[..space]).ok()?.parse().ok()?;
    let record = records.get(space + 1..len)?.strip_suffix(b"\n")?;
    Some((record, &records[len..]))
}

/// `seconds[.fraction]`.
fn time(text: &str) -> Option<(i64, i64)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let nanos = fraction.chars().chain("000000000".chars()).take(9).collect::<String>().parse().ok()?;
    let whole: i64 = seconds.parse().ok()?;
    // Before 1970, the fraction counts in the other direction.
    match text.starts_with('-') && nanos > 0 {
        true => Some((whole.checked_sub(1)?, 1_000_000_000 - nanos)),
        false => Some((whole, nanos)),
    }
}

fn until_zero(mut text: Vec<u8>) -> Vec<u8> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text.truncate(end);
    text
}

fn cut() -> Error {
    bad("it ends without an end mark: it is cut, or no tar archive")
}

pub(super) fn bad(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::BadFile, format!("the archive: {why}"))
}

fn no_archive(e: io::Error) -> Error {
    bad("a header is damaged").with_source(e)
}

fn failed(e: io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => cut(),
        _ => Error::new(ErrorKind::Io, "the archive cannot be read").with_source(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_may_have_line_feeds_and_nothing_that_is_made_up_is_followed() {
        let mut described = Described::default();
        described.read(b"14 path=a\nb\nc\n30 SCHILY.xattr.user.x=1\n=2 3\n").unwrap();
        assert_eq!(described.path.as_deref(), Some(&b"a\nb\nc"[..]));
        assert_eq!(described.xattrs, [(c"user.x".into(), b"1\n=2 3".to_vec())]);
        for made_up in [
            &b"99 path=a\n"[..],
            b"3 path=a\n",
            b"0 path=a\n",
            b"-1 path=a\n",
            b"10 path=ab",
            b"9 path a\n",
            b"13 size=-100\n",
            b"18446744073709551615 path=a\n",
            b"\xff\xff",
        ] {
            assert!(Described::default().read(made_up).is_err(), "{made_up:?}");
        }
        let mut header = Described::default();
        header.read(b"30 SCHILY.xattr.user.ecryptfs=\n").unwrap_err();
        header.read(b"31 SCHILY.xattr.user.ecryptfs=\n").unwrap();
        header.read(b"34 SCHILY.xattr.user.underseal.x=\n").unwrap();
        assert!(header.xattrs.is_empty());
    }

    #[test]
    fn names_of_xattrs_are_those_from_before_their_encoding() {
        for (encoded, plain) in [
            (&b"user.a%3Db"[..], &b"user.a=b"[..]),
            (b"user.%25", b"user.%"),
            (b"user.%253D", b"user.%3D"),
            (b"user.%3d%2%", b"user.%3d%2%"),
            (b"user.n\xff", b"user.n\xff"),
        ] {
            assert_eq!(plain_keyword(encoded), plain, "{}", encoded.escape_ascii());
        }
    }

    #[test]
    fn times_have_fractions() {
        for (text, expected) in [
            ("7", Some((7, 0))),
            ("7.5", Some((7, 500_000_000))),
            ("7.123456789987", Some((7, 123_456_789))),
            ("-7", Some((-7, 0))),
            ("-7.25", Some((-8, 750_000_000))),
            ("-0.25", Some((-1, 750_000_000))),
            ("x", None),
            ("7.x", None),
            ("-9223372036854775808.5", None),
        ] {
            assert_eq!(time(text), expected, "{text}");
        }
    }
}
