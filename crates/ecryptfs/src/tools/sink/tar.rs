//! A tar archive with PAX records for attributes that do not fit its headers.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, major, minor};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use super::{Sink, why};
use crate::tools::attributes::TreeAttributes;
use crate::tools::tree::TreeFolder;
use crate::tools::walk::last;
use crate::{Error, ErrorKind, Result};

/// The most bytes of a link's target in a header.
const MOST_LINK: usize = 100;

/// Exactly the promised number of bytes: the archive's headers tell where the next member begins.
/// Missing bytes are replaced by zeros, as in the archives of other programs.
struct Exactly<'d> {
    data: &'d mut dyn Read,
    left: u64,
    failed: Option<io::Error>,
}

impl Read for Exactly<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        let out = &mut out[..want];
        let read = match &self.failed {
            None => self.data.read(out),
            Some(_) => Ok(0),
        };
        let read = match read {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Err(e),
            Ok(0) if want > 0 => {
                self.failed.get_or_insert_with(|| io::Error::other("it became shorter meanwhile"));
                out.fill(0);
                want
            }
            Ok(read) => read,
            Err(e) => {
                self.failed = Some(e);
                out.fill(0);
                want
            }
        };
        self.left -= read as u64;
        Ok(read)
    }
}

/// A new file for an archive, for its owner only.
#[derive(Debug)]
pub struct ArchiveFile {
    folder: TreeFolder,
    file: File,
    path: PathBuf,
}

impl ArchiveFile {
    /// Creates a file that did not exist.
    ///
    /// # Errors
    /// `Io`.
    pub fn create(path: &Path) -> Result<Self> {
        let folder = TreeFolder::above(path)?;
        Ok(Self { file: folder.make_file(last(path))?, folder, path: path.into() })
    }

    /// Makes the file and its name durable.
    ///
    /// # Errors
    /// `Io`.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::io(&self.path, "is not safe on the disk", e))?;
        self.folder.sync_entries()
    }
}

impl Write for &ArchiveFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.file).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of the key of an xattr's record.
const XATTR_KEY: &[u8] = b"SCHILY.xattr.";

/// Returns an xattr's name as a part of a record's key, as GNU tar encodes it: `=` ends a key.
fn keyword(name: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'=' => encoded.extend(b"%3D"),
            b'%' => encoded.extend(b"%25"),
            byte => encoded.push(*byte),
        }
    }
    encoded
}

/// A tree as a tar archive.
pub struct TarSink<W: Write> {
    archive: Builder<W>,
    /// The names so far in the present folder and in those above it.
    folders: Vec<(PathBuf, HashSet<Vec<u8>>)>,
    /// A file failed in the middle: the next member would be read as its contents.
    broken: bool,
}

impl<W: Write> TarSink<W> {
    /// Returns an archive that is written to `out`.
    pub fn new(out: W) -> Self {
        Self { archive: Builder::new(out), folders: Vec::new(), broken: false }
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// `Io`.
    pub fn finish(self) -> Result<W> {
        if self.broken {
            return Err(Error::new(ErrorKind::Io, "the archive is not complete"));
        }
        self.archive.into_inner().map_err(failed)
    }

    fn begin(
        &mut self,
        kind: EntryType,
        plain: &Path,
        attributes: &TreeAttributes,
        size: u64,
    ) -> Result<Header> {
        self.begin_with(kind, plain, attributes, size, Vec::new())
    }

    fn begin_with(
        &mut self,
        kind: EntryType,
        plain: &Path,
        attributes: &TreeAttributes,
        size: u64,
        mut records: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<Header> {
        if self.broken {
            return Err(Error::new(ErrorKind::Io, "the archive is not complete"));
        }
        self.take(plain)?;
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(attributes.mode & 0o7777);
        header.set_uid(attributes.uid.into());
        header.set_gid(attributes.gid.into());
        header.set_size(size);
        header.set_mtime(u64::try_from(attributes.modified.0).unwrap_or(0));
        let xattrs = attributes.xattrs.iter();
        records.extend(
            xattrs.map(|(name, value)| ([XATTR_KEY, &keyword(name.to_bytes())].concat(), value.clone())),
        );
        if attributes.modified.1 != 0 || attributes.modified.0 < 0 {
            let time = match attributes.modified {
                // Before 1970, the fraction counts in the other direction.
                (seconds @ ..0, nanos @ 1..) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos),
                (seconds, nanos) => format!("{seconds}.{nanos:09}"),
            };
            records.push((b"mtime".to_vec(), time.into_bytes()));
        }
        self.records(&records).map_err(failed)?;
        Ok(header)
    }

    /// Refuses a second member with one path, whose file would take the first one's place.
    fn take(&mut self, plain: &Path) -> Result<()> {
        let above = plain.parent().unwrap_or(Path::new(""));
        // Entries come folder by folder.
        while self.folders.last().is_some_and(|(folder, _)| folder != above) {
            self.folders.pop();
        }
        if self.folders.is_empty() {
            self.folders.push((above.into(), HashSet::new()));
        }
        let is_new = self.folders.last_mut().is_none_or(|(_, names)| names.insert(last(plain).into()));
        if is_new { Ok(()) } else { Err(Error::io(plain, "cannot be made", Errno::EXIST)) }
    }

    /// Writes records of `length key=value\n`, whose keys may be any bytes.
    fn records(&mut self, records: &[(Vec<u8>, Vec<u8>)]) -> io::Result<()> {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + " =\n".len();
            let mut len = rest;
            while len != rest + len.to_string().len() {
                len = rest + len.to_string().len();
            }
            text.extend([len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat());
        }
        if text.is_empty() {
            return Ok(());
        }
        let mut header = Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_entry_type(EntryType::XHeader);
        header.set_cksum();
        self.archive.append(&header, &*text)
    }

    fn empty(&mut self, kind: EntryType, plain: &Path, attributes: &TreeAttributes) -> Result<()> {
        let mut header = self.begin(kind, plain, attributes, 0)?;
        self.archive.append_data(&mut header, in_archive(plain), std::io::empty()).map_err(failed)
    }
}

/// The root's name is ".".
fn in_archive(plain: &Path) -> &Path {
    if plain.as_os_str().is_empty() { Path::new(".") } else { plain }
}

fn failed(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, "the archive cannot be written").with_source(e)
}

impl<W: Write> Sink for TarSink<W> {
    fn folder(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()> {
        self.empty(EntryType::Directory, plain, attributes)?;
        self.folders.push((plain.into(), HashSet::new()));
        Ok(())
    }

    fn file(
        &mut self,
        plain: &Path,
        attributes: &TreeAttributes,
        size: u64,
        data: &mut dyn Read,
    ) -> Result<()> {
        let mut header = self.begin(EntryType::Regular, plain, attributes, size)?;
        let mut data = Exactly { data, left: size, failed: None };
        let written = self.archive.append_data(&mut header, plain, &mut data).map_err(failed);
        self.broken |= written.is_err();
        written?;
        let because = |e| Error::new(ErrorKind::Io, "the file cannot be read").with_source(e);
        data.failed
            .map_or(Ok(()), |e| Err(why(e, because).within("zeros are in the archive instead of its end")))
    }

    fn link(&mut self, plain: &Path, to: &Path, attributes: &TreeAttributes) -> Result<()> {
        let mut header = self.begin(EntryType::Link, plain, attributes, 0)?;
        self.archive.append_link(&mut header, plain, to).map_err(failed)
    }

    fn symlink(&mut self, plain: &Path, target: &[u8], attributes: &TreeAttributes) -> Result<()> {
        // The target's bytes are kept as they are: other functions of the archive take it for a
        // path, and leave out a slash that follows another one.
        let record = (b"linkpath".to_vec(), target.to_vec());
        let mut header = self.begin_with(EntryType::Symlink, plain, attributes, 0, vec![record])?;
        let start = &target[..target.len().min(MOST_LINK)];
        header.set_link_name_literal(start).map_err(failed)?;
        self.archive.append_data(&mut header, in_archive(plain), io::empty()).map_err(failed)
    }

    fn special(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()> {
        let kind = match FileType::from_raw_mode(attributes.mode) {
            FileType::Fifo => EntryType::Fifo,
            FileType::CharacterDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            _ => return Err(Error::new(ErrorKind::Unsupported, "a socket does not go into an archive")),
        };
        let mut header = self.begin(kind, plain, attributes, 0)?;
        header.set_device_major(major(attributes.device)).map_err(failed)?;
        header.set_device_minor(minor(attributes.device)).map_err(failed)?;
        self.archive.append_data(&mut header, plain, std::io::empty()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_became_shorter_leaves_the_next_one_in_its_place() {
        let about = TreeAttributes {
            mode: 0o100_644,
            uid: 0,
            gid: 0,
            device: 0,
            accessed: (0, 0),
            modified: (1, 0),
            xattrs: Vec::new(),
        };
        let mut sink = TarSink::new(Vec::new());
        sink.file(Path::new("whole"), &about, 3, &mut &b"one"[..]).unwrap();
        let refused = sink.file(Path::new("short"), &about, 2000, &mut &b"two"[..]).unwrap_err();
        assert!(refused.to_string().contains("zeros are in the archive"), "{refused}");
        // A file that grew is cut at the promised length.
        sink.file(Path::new("long"), &about, 2, &mut &b"three"[..]).unwrap();
        let archive = sink.finish().unwrap();
        let mut found = Vec::new();
        for entry in tar::Archive::new(&archive[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            found.push((entry.path().unwrap().display().to_string(), bytes));
        }
        let mut short = b"two".to_vec();
        short.resize(2000, 0);
        let expected = [("whole", b"one".to_vec()), ("short", short), ("long", b"th".to_vec())];
        assert_eq!(found, expected.map(|(name, bytes)| (name.to_owned(), bytes)));
    }
}
