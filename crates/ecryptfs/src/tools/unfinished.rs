//! Marks that a conversion leaves on files, for a run after one that was interrupted.
//!
//! ```text
//!   user.underseal.converting   on a new file, until it has taken the old one's place; a file with
//!                               several names keeps it, for a name that is not in place yet
//!   user.underseal.converted    on an old file with several names: the new file
//! ```
//! The second is written before the first name is replaced. So it may name a file that never took
//! its place: then the name that it gives leads to the old file still, and the mark says nothing.
//!
//! A user who may write to a file may write a mark on it. So a file with another owner, group or
//! mode than the old one's is no successor: no mark makes a name lead to a file that its writer
//! could not write to before, or puts his file into the place of another user's.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};

use super::LowerFile;
use super::tree::PinnedEntry;
use super::walk::WalkEntry;
use crate::lock::{LockMode, lock};
use crate::{Error, ErrorKind, Result, random};

/// The beginning of the names of all marks, which are not among a file's attributes.
pub(super) const MARKS: &[u8] = b"user.underseal.";

const CONVERTING: &str = "user.underseal.converting";
const CONVERTED: &str = "user.underseal.converted";

const TEMPORARY: &[u8] = b".underseal-";

/// A name that nothing has, for a file that is about to take another one's place.
pub(super) fn random_name() -> Result<Vec<u8>> {
    let mut number = [0; 8];
    random::fill(&mut number)?;
    Ok(temporary_name(u64::from_ne_bytes(number)))
}

/// The name with this number of an entry that is about to take another one's place.
pub(super) fn temporary_name(number: u64) -> Vec<u8> {
    [TEMPORARY, number.to_string().as_bytes()].concat()
}

/// Whether a name is of that form.
pub(super) fn is_temporary(name: &[u8]) -> bool {
    let number = name.strip_prefix(TEMPORARY);
    number.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// Marks a new file, and locks it so that no other process takes it for left over.
pub(super) fn begin(new: &File, path: &Path) -> Result<()> {
    let marked = fsetxattr(new, CONVERTING, b"", XattrFlags::empty());
    marked.and_then(|()| lock(new, LockMode::Alone)).map_err(|e| Error::io(path, "cannot be marked", e))
}

/// Takes the mark of a file away that has its place, if that is its only name.
pub(super) fn finish(new: &File, old: &Metadata) {
    if old.nlink() == 1 {
        // A mark that stays says nothing of a file with another name than temporary ones have.
        let _ = fremovexattr(new, CONVERTING);
    }
}

/// Whether an entry is a new file, or a further name of one, that a run has left before it took its
/// place.
pub(super) fn is_left_over(found: &WalkEntry<'_>) -> bool {
    if !is_temporary(found.name) {
        return false;
    }
    let Ok(file) = found.entry.open(false) else { return false };
    // A run may have been cut off before it set the mark: then there is nothing in the file.
    (has_mark(&file) || found.about.len() == 0) && lock(&file, LockMode::Alone).is_ok()
}

/// Whether a file under this name is one that a conversion makes, or has left.
pub(super) fn is_of_conversion(name: &[u8], entry: &PinnedEntry) -> bool {
    is_temporary(name) && entry.open(false).is_ok_and(|file| has_mark(&file))
}

fn has_mark(file: &File) -> bool {
    fgetxattr(file, CONVERTING, &mut [0_u8; 1][..]).is_ok()
}

/// The new file that further names of a converted file are to lead to.
#[derive(Debug)]
pub(super) struct Successor {
    /// Where it is, from the root of the walk that made it.
    path: PathBuf,
    /// The new file's device and inode number.
    new: (u64, u64),
    /// The old file's device and inode number: a copy of it has a copy of the mark.
    old_inode: (u64, u64),
    /// The old one's length and last change.
    old: (u64, i64, i64),
}

impl Successor {
    /// The file `to`, which is about to take the place of what was found.
    pub(super) fn new(found: &WalkEntry<'_>, old: &Metadata, to: &File) -> Result<Self> {
        let new = to.metadata().map_err(|e| Error::io(found.lower, "cannot be looked at", e))?;
        let (new, old_inode) = ((new.dev(), new.ino()), (old.dev(), old.ino()));
        Ok(Self { path: found.inside.into(), new, old_inode, old: state(old) })
    }

    /// Writes it down on the old file.
    pub(super) fn note(&self, old: &LowerFile) -> Result<()> {
        let Self { new, old_inode, old: (len, seconds, nanoseconds), .. } = self;
        let text =
            format!("{} {} {} {} {len} {seconds} {nanoseconds} ", new.0, new.1, old_inode.0, old_inode.1);
        let mut text = text.into_bytes();
        text.extend(self.path.as_os_str().as_bytes());
        let noted = fsetxattr(&old.file, CONVERTED, &text, XattrFlags::empty()).map_err(std::io::Error::from);
        let synced = noted.and_then(|()| old.file.sync_all());
        synced.map_err(|e| Error::io(&old.path, "cannot be marked", e))
    }

    /// Reads the note of an earlier run on a file.
    pub(super) fn of(old: &File) -> Option<Self> {
        let mut text = vec![0; 8192];
        let len = fgetxattr(old, CONVERTED, &mut text[..]).ok()?;
        let mut words = text[..len].splitn(8, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<i128>().ok();
        let new = (u64::try_from(number()?).ok()?, u64::try_from(number()?).ok()?);
        let old_inode = (u64::try_from(number()?).ok()?, u64::try_from(number()?).ok()?);
        let about = old.metadata().ok()?;
        if old_inode != (about.dev(), about.ino()) {
            return None;
        }
        let len = u64::try_from(number()?).ok()?;
        let old = (len, i64::try_from(number()?).ok()?, i64::try_from(number()?).ok()?);
        let path = OsString::from_vec(words.next()?.to_vec()).into();
        Some(Self { path, new, old_inode, old })
    }

    /// The new file; nothing where it never took its place, or is not in this tree.
    pub(super) fn find(&self, found: &WalkEntry<'_>, old: &Metadata) -> Result<Option<PinnedEntry>> {
        let Ok(new) = found.root.beneath(&self.path) else { return Ok(None) };
        let ownership = |of: &Metadata| (of.uid(), of.gid(), of.mode());
        if new.inode() != self.new || ownership(new.about()) != ownership(old) {
            return Ok(None);
        }
        // The new one was given the old one's time.
        let (_, seconds, nanoseconds) = self.old;
        let about = new.about();
        if state(old) != self.old || (about.mtime(), about.mtime_nsec()) != (seconds, nanoseconds) {
            let context = format!(
                "this file or {}, which were one, was changed after that one was converted: compare the \
                 two, remove one and convert again",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Busy, context).in_file(found.lower));
        }
        Ok(Some(new))
    }
}

fn state(about: &Metadata) -> (u64, i64, i64) {
    (about.len(), about.mtime(), about.mtime_nsec())
}
