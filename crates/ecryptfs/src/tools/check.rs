//! All possible checks: names, headers, lengths, whether every extent can be read, and the zeros
//! behind the end.
//!
//! eCryptfs has no checksum of contents: a changed lower extent gives noise in the plain file,
//! which no check can notice.

use std::path::Path;

use super::lower::read_up_to;
use super::walk::{EntryKind, Root, Visit, WalkEntry, walk};
use super::{LowerFile, ProgressWatch, Summary, TreeKeys};
use crate::file::extents::is_missing;
use crate::lock::LockMode;
use crate::{Cipher, EXTENT, Error, ErrorKind, Result};

/// A finding that is not an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckFinding {
    /// A file without a header.
    Plain,
    /// All zeros: an empty file.
    Zeros,
    /// More bytes than the header's size: bytes written before the size, or left behind.
    Longer {
        /// The number of bytes.
        bytes: u64,
    },
    /// The bytes behind the end of the plain file are not zeros: a damaged extent, or a wrong key.
    Tail,
    /// The file was cut, and repaired on request: its header has the present size now.
    Repaired {
        /// The number of plain bytes in the header, before and after.
        size: (u64, u64),
    },
    /// A name file without its long name.
    LeftOver,
    /// The header's cipher differs from the first file's.
    Cipher(Cipher),
}

/// Checks a lower tree. With `repair`, a file of whole extents that is shorter than the size in its
/// header gets the present size: a power cut leaves such files when the size was on the disk before
/// the contents, or a cut before the size.
///
/// # Errors
/// Only when the tree does not exist, or is in use and to be repaired (`Busy`). Failures in it are
/// reported to the watch.
pub fn check(
    root: &Path,
    keys: &mut TreeKeys,
    repair: bool,
    watch: &mut dyn ProgressWatch,
    tell: &mut dyn FnMut(&Path, CheckFinding),
) -> Result<Summary> {
    let mut visit =
        Check { tell, repair, cipher: None, buffer: vec![0; BUFFER], summary: Summary::default() };
    walk(&Root::open(root, repair.then_some(LockMode::Alone))?, keys, watch, &mut visit);
    Ok(visit.summary)
}

/// The number of bytes that are read at once.
const BUFFER: usize = 1 << 20;

struct Check<'t> {
    tell: &'t mut dyn FnMut(&Path, CheckFinding),
    repair: bool,
    cipher: Option<Cipher>,
    buffer: Vec<u8>,
    summary: Summary,
}

impl Visit for Check<'_> {
    fn visit(
        &mut self,
        found: &WalkEntry<'_>,
        keys: &mut TreeKeys,
        watch: &mut dyn ProgressWatch,
    ) -> Result<()> {
        match found.kind {
            EntryKind::Folder => self.summary.folders += 1,
            EntryKind::Special => self.summary.others += 1,
            EntryKind::Symlink => {
                let lower = found.entry.target()?;
                keys.decode_target(&lower).map_err(|e| e.in_file(found.lower))?;
                self.summary.others += 1;
            }
            EntryKind::File => match LowerFile::of_entry(found.entry) {
                Ok(mut lower) => {
                    if self.repair && lower.check_len().is_err_and(|e| e.kind() == ErrorKind::Cut) {
                        let mut alone = LowerFile::open_alone(found, true)?;
                        // A key that opens the header proves that it is sound.
                        keys.unlock(&alone.header).map_err(|e| e.in_file(found.lower))?;
                        if let Some(size) = alone.shorten()? {
                            (self.tell)(found.lower, CheckFinding::Repaired { size });
                        }
                        lower = alone;
                    }
                    self.file(&lower, keys, watch)?;
                }
                Err(e) if e.has_no_header() => {
                    let is_empty = e.kind() == ErrorKind::Empty;
                    if found.about.len() > 0 {
                        (self.tell)(
                            found.lower,
                            if is_empty { CheckFinding::Zeros } else { CheckFinding::Plain },
                        );
                    }
                    self.summary.unchanged += 1;
                }
                Err(e) => return Err(e),
            },
        }
        Ok(())
    }

    fn left_over(&mut self, lower: &Path) {
        (self.tell)(lower, CheckFinding::LeftOver);
    }

    fn failed(&mut self) {
        self.summary.failed += 1;
    }
}

impl Check<'_> {
    fn file(&mut self, lower: &LowerFile, keys: &mut TreeKeys, watch: &mut dyn ProgressWatch) -> Result<()> {
        let key = keys.unlock(&lower.header).map_err(|e| e.in_file(&lower.path))?;
        if *self.cipher.get_or_insert(key.cipher()) != key.cipher() {
            (self.tell)(&lower.path, CheckFinding::Cipher(key.cipher()));
        }
        lower.check_len()?;
        let (len, expected) = (lower.lower_len()?, lower.expected_len());
        if len > expected {
            (self.tell)(&lower.path, CheckFinding::Longer { bytes: len - expected });
        }
        let failed = |e: std::io::Error| Error::io(&lower.path, "cannot be read", e);
        let (start, size) = (lower.header.data_offset(), lower.header.size());
        let (mut at, mut missing) = (start, None);
        while at < expected {
            let want = usize::try_from(expected - at).map_or(BUFFER, |left| left.min(BUFFER));
            let got = read_up_to(&lower.file, &mut self.buffer[..want], at).map_err(failed)?;
            if got < want {
                return Err(Error::new(ErrorKind::Cut, "the file was cut meanwhile").in_file(&lower.path));
            }
            watch.advance(got as u64);
            for (n, extent) in ((at - start) / EXTENT as u64..).zip(self.buffer[..got].chunks_exact(EXTENT)) {
                if is_missing(extent) {
                    let (_, count) = missing.get_or_insert((n, 0u64));
                    *count += 1;
                }
            }
            at += got as u64;
            if at == expected {
                // The last extent of the file is the last extent of the buffer.
                let last = &mut self.buffer[got - EXTENT..got];
                if is_missing(last) {
                    break;
                }
                key.contents()?.decrypt((expected - start) / EXTENT as u64 - 1, last);
                let used = usize::try_from(size % EXTENT as u64).unwrap_or(0);
                if used > 0 && last[used..].iter().any(|&byte| byte != 0) {
                    (self.tell)(&lower.path, CheckFinding::Tail);
                }
            }
        }
        if let Some((first, count)) = missing {
            let context = format!("{count} of its extents are missing, the first is extent {first}");
            return Err(Error::new(ErrorKind::Missing, context).in_file(&lower.path));
        }
        self.summary.files += 1;
        self.summary.bytes += size;
        Ok(())
    }
}

impl Drop for Check<'_> {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.buffer);
    }
}
