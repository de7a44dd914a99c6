//! A lower file: its header, the header's place, and its replacement.

use std::fs::{File, FileTimes, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;

use super::tree::PinnedEntry;
use super::walk::WalkEntry;
use crate::file::blank::is_blank;
use crate::lock::{LockMode, lock_for_tool};
use crate::{EXTENT, Error, ErrorKind, FileHeader, HeaderLocation, Result, XATTR};

/// An open lower file with its header.
#[derive(Debug)]
pub struct LowerFile {
    /// The file.
    pub file: File,
    /// The path.
    pub path: PathBuf,
    /// The header.
    pub header: FileHeader,
}

/// Sectors are written whole or not at all, and no disk has smaller sectors.
const SECTOR: usize = 512;
/// The number of bytes of each file that are compared at once.
const COMPARED: usize = 1 << 18;

impl LowerFile {
    /// Opens a lower file and reads its header, from the file or else from the xattr.
    ///
    /// # Errors
    /// The kinds of [`FileHeader::read`]; `Empty`; `Io`. All errors name the path.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(path, open(path)?)
    }

    /// Opens an entry of a tree.
    ///
    /// Fails with the kinds of [`LowerFile::open`].
    pub(super) fn of_entry(entry: &PinnedEntry) -> Result<Self> {
        Self::of(entry.path(), entry.open(false)?)
    }

    /// Opens an entry for a change, locked against mounts and other tools. The header is read under
    /// the lock.
    ///
    /// Fails with the kinds of [`LowerFile::open`]; with `Busy` also when another tool has put
    /// another file in its place meanwhile.
    pub(super) fn open_alone(found: &WalkEntry<'_>, writable: bool) -> Result<Self> {
        let entry = found.entry;
        let file = entry.open(writable)?;
        lock_for_tool(&file, LockMode::Alone).map_err(|e| e.in_file(entry.path()))?;
        // overlayfs copies a file that is opened for writing: the copy is another file.
        let about = file.metadata().map_err(|e| Error::io(entry.path(), "cannot be looked at", e))?;
        found.leads_to((about.dev(), about.ino()))?;
        Self::of(entry.path(), file)
    }

    fn of(path: &Path, file: File) -> Result<Self> {
        let header = read_header(&file).map_err(|e| e.in_file(path))?;
        Ok(Self { file, path: path.into(), header })
    }

    /// Returns the lower file's attributes as they are now.
    pub(super) fn metadata(&self) -> Result<Metadata> {
        self.file.metadata().map_err(|e| Error::io(&self.path, "cannot be looked at", e))
    }

    /// The lower file's length.
    ///
    /// # Errors
    /// `Io`.
    pub fn lower_len(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }

    /// Returns the length that a lower file of this size should have.
    pub fn expected_len(&self) -> u64 {
        let extents = self.header.size().div_ceil(EXTENT as u64);
        self.header.data_offset().saturating_add(extents.saturating_mul(EXTENT as u64))
    }

    /// Fails for a file that is shorter than the size in its header: the kernel would invent the
    /// missing bytes.
    ///
    /// # Errors
    /// `Cut`; `Io`.
    pub fn check_len(&self) -> Result<()> {
        let (len, expected) = (self.lower_len()?, self.expected_len());
        if len >= expected {
            return Ok(());
        }
        let context = format!("the file is cut: {len} bytes of {expected}");
        Err(Error::new(ErrorKind::Cut, context).in_file(&self.path))
    }

    /// Returns true when both files are whole and have the same plain bytes under the same keys,
    /// wherever their headers are.
    ///
    /// Fails with `Io`.
    pub(super) fn has_contents_of(&self, other: &Self) -> Result<bool> {
        let moved = self.header.moved_to(HeaderLocation::File).to_xattr();
        if moved != other.header.moved_to(HeaderLocation::File).to_xattr() {
            return Ok(false);
        }
        let len = self.expected_len() - self.header.data_offset();
        let mut at = 0;
        let mut buffers = [vec![0; COMPARED], vec![0; COMPARED]];
        while at < len {
            let want = usize::try_from(len - at).map_or(COMPARED, |left| left.min(COMPARED));
            for (lower, buffer) in [self, other].into_iter().zip(&mut buffers) {
                let read = read_up_to(&lower.file, &mut buffer[..want], lower.header.data_offset() + at);
                if read.map_err(|e| Error::io(&lower.path, "cannot be read", e))? < want {
                    return Ok(false);
                }
            }
            if buffers[0][..want] != buffers[1][..want] {
                return Ok(false);
            }
            at += want as u64;
        }
        Ok(true)
    }

    /// Reduces the size in the header to the present size, if the header's is larger and the file
    /// ends with a whole extent. Returns the sizes before and after.
    ///
    /// Fails with `Io`.
    pub(super) fn shorten(&mut self) -> Result<Option<(u64, u64)>> {
        let (len, start, before) = (self.lower_len()?, self.header.data_offset(), self.header.size());
        let there = match len.checked_sub(start) {
            Some(there) if len < self.expected_len() && there.is_multiple_of(EXTENT as u64) => there,
            _ => return Ok(None),
        };
        let failed = |e: io::Error| Error::io(&self.path, "cannot write the header", e);
        self.header.set_size(there);
        match self.header.place() {
            HeaderLocation::File => self.file.write_all_at(&self.header.size_field(), 0).map_err(failed)?,
            HeaderLocation::Xattr => write_xattr(&self.file, &self.header).map_err(failed)?,
        }
        self.file.sync_all().map_err(failed)?;
        Ok(Some((before, there)))
    }

    /// Replaces this header's packets by another header's, so that at any time the file opens with
    /// one of them.
    ///
    /// In a file the packets are in one sector, which a disk writes whole or not at all; the size
    /// in front of them is not touched. File systems change an xattr whole or not at all; the xattr
    /// gets the present size. A mount that ignores locks may be changing either.
    ///
    /// Fails with `Unsupported` when it is longer than a sector, and with `Io`.
    pub(super) fn replace_packets(&mut self, mut new: FileHeader) -> Result<()> {
        let failed = |e: io::Error| Error::io(&self.path, "cannot write the header", e);
        let about = self.file.metadata().map_err(failed)?;
        match self.header.place() {
            HeaderLocation::Xattr => {
                let now = read_xattr(&self.file).map_err(failed)?.unwrap_or_default();
                new.set_size(FileHeader::read_xattr(&now).map_err(|e| e.in_file(&self.path))?.size());
                write_xattr(&self.file, &new).map_err(failed)?;
            }
            HeaderLocation::File => {
                let (mut bytes, old) = (new.to_xattr(), self.header.to_xattr().len());
                // A zero ends the packets, and no old packet stays behind it.
                bytes.resize((bytes.len() + 1).max(old), 0);
                if bytes.len() > SECTOR {
                    let context = format!(
                        "{} keys do not fit one sector of a disk, so the header cannot be replaced safely",
                        new.packets().len()
                    );
                    return Err(Error::new(ErrorKind::Unsupported, context).in_file(&self.path));
                }
                let at = new.packets_at();
                self.file.write_all_at(&bytes[at..], at as u64).map_err(failed)?;
            }
        }
        self.sync_aged(&about).map_err(failed)?;
        self.header = new;
        Ok(())
    }

    /// Syncs the file, whose contents are as old as they were.
    fn sync_aged(&self, about: &Metadata) -> io::Result<()> {
        self.file.set_times(FileTimes::new().set_modified(about.modified()?))?;
        self.file.sync_all()
    }

    /// Writes the header's packets once more, so that the disk has the header that was read here.
    /// After a sync that failed the kernel's pages have bytes that the disk has not, and no other
    /// sync writes them.
    pub(super) fn write_again(&mut self) -> Result<()> {
        match self.replace_packets(self.header.clone()) {
            // No run of this tool has written it.
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(()),
            done => done,
        }
    }
}

fn open(path: &Path) -> Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path);
    file.map_err(|e| Error::io(path, "cannot open", e))
}

fn read_header(file: &File) -> Result<FileHeader> {
    let io = |e: io::Error| Error::new(ErrorKind::Io, "cannot read the header").with_source(e);
    let mut start = [0; FileHeader::PARSED];
    let len = read_up_to(file, &mut start, 0).map_err(io)?;
    if FileHeader::is_marked(&start[..len]) {
        return FileHeader::read(&start[..len]);
    }
    match read_xattr(file).map_err(io)? {
        Some(bytes) => FileHeader::read_xattr(&bytes),
        None if is_blank(file.as_fd(), &start[..len]).map_err(|e| io(e.into()))? => {
            let context = "there is no eCryptfs header, nor anything else: it is an empty file";
            Err(Error::new(ErrorKind::Empty, context))
        }
        None => FileHeader::read(&start[..len]),
    }
}

/// Returns the header in the xattr, or `None` without a header or without xattrs.
fn read_xattr(file: &File) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 2 * FileHeader::PARSED];
    match fgetxattr(file, XATTR, &mut value) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => Ok(None),
        // The value is longer than any header.
        Err(Errno::RANGE) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Writes a header to the xattr.
pub(super) fn write_xattr(file: &File, header: &FileHeader) -> io::Result<()> {
    Ok(fsetxattr(file, XATTR, &header.to_xattr(), XattrFlags::empty())?)
}

/// Reads until the buffer is full or the file ends.
pub(super) fn read_up_to(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::super::tree::TreeFolder;
    use super::*;
    use crate::{AuthToken, Cipher, FileKey, Keyring};

    #[test]
    fn packets_that_are_replaced_leave_a_size_alone_that_changed_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let token = |text: &[u8]| AuthToken::from_passphrase(text, AuthToken::DEFAULT_SALT).unwrap();
        let key = FileKey::random(Cipher::DEFAULT).unwrap();
        for place in [HeaderLocation::File, HeaderLocation::Xattr] {
            let mut header = FileHeader::new(&key, &[&token(b"old")], place).unwrap();
            header.set_size(10);
            let file = File::create(&path).unwrap();
            let write = |header: &FileHeader| match place {
                HeaderLocation::File => file.write_all_at(&header.to_file(), 0).unwrap(),
                HeaderLocation::Xattr => write_xattr(&file, header).unwrap(),
            };
            write(&header);
            let pinned = TreeFolder::above(&path).unwrap().pin(b"file").unwrap();
            let mut lower = LowerFile::of(&path, pinned.open(true).unwrap()).unwrap();
            // As a mount does that ignores locks.
            header.set_size(5000);
            write(&header);
            let mut new = lower.header.clone();
            new.add(&key, &token(b"new")).unwrap();
            lower.replace_packets(new).unwrap();
            let found = LowerFile::open(&path).unwrap().header;
            assert_eq!((found.place(), found.size(), found.packets().len()), (place, 5000, 2));
            found.unlock(&Keyring::from(token(b"new"))).unwrap();
            std::fs::remove_file(&path).unwrap();
        }
    }
}
