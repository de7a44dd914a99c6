//! Marks that a conversion leaves on files, for a run after one that was interrupted.
//!
//! ```text
//!   user.underseal.converting   on a new file, until it has taken the old one's place: its
//!                               temporary name, itself, and the old file; a file with several
//!                               names keeps it, for names that are not in place yet
//!   user.underseal.converted    on an old file with several names: the new file
//! ```
//! The first is on the disk before the two files exchange their names, so whatever has the
//! temporary name afterwards is known by the new file beside it. A mark names its own inode: a copy
//! of a file has a copy of the mark, which says nothing. The number alone counts, as a disk may be
//! another device after a restart.
//!
//! The second is written before the first name is replaced. So it may name a file that never took
//! its place: then the name that it gives leads to the old file still, and the mark says nothing.
//!
//! A user who may write to a lower file may write a mark on it (not through a mount, which refuses
//! that). So the second mark is believed only where the new file has the first one, with the old
//! file's number, the same owner, group and mode, and the same contents: it takes a writer of both
//! files to make a name of one lead to the other, and nothing is lost by that. All other marks say
//! nothing.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

use super::LowerFile;
use super::tree::{PinnedEntry, TreeFolder};
use super::walk::{EntryKind, WalkEntry};
use crate::durable::is_overlay;
use crate::lock::{LockMode, lock};
use crate::{Error, ErrorKind, Result, random};

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

/// The mark of a new file.
struct Mark {
    temporary: Vec<u8>,
    own: u64,
    /// The inode number of the old file, its length and last change.
    old: u64,
    state: (u64, i64, i64),
    /// The number of names that the old file had; 0 where a version before this one wrote the mark.
    names: u64,
}

impl Mark {
    /// Reads the mark of a file; `None` without one, or with another file's.
    ///
    /// Fails with `Io`.
    fn of(file: &File, path: &Path) -> Result<Option<Self>> {
        let Some(text) = note(file, CONVERTING, path)? else { return Ok(None) };
        let about = file.metadata().map_err(|e| Error::io(path, "cannot be looked at", e))?;
        Ok(Self::parse(&text).filter(|mark| mark.own == about.ino()))
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = str::from_utf8(text).ok()?.split(' ');
        let temporary = temporary_name(words.next()?.parse().ok()?);
        let (own, old) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let state = (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let names = words.next().map_or(Some(0), |names| names.parse().ok())?;
        Some(Self { temporary, own, old, state, names })
    }
}

/// Marks a new file with a temporary name, and locks it so that no other process takes it for left
/// over.
pub(super) fn begin(new: &File, temporary: &[u8], old: &Metadata, path: &Path) -> Result<()> {
    let own = new.metadata().map_err(|e| Error::io(path, "cannot be looked at", e))?.ino();
    let number = temporary.strip_prefix(TEMPORARY).unwrap_or_default().escape_ascii();
    let (len, seconds, nanoseconds) = state(old);
    let (old, names) = (old.ino(), old.nlink());
    let text = format!("{number} {own} {old} {len} {seconds} {nanoseconds} {names}");
    let marked = fsetxattr(new, CONVERTING, text.as_bytes(), XattrFlags::empty());
    marked.and_then(|()| lock(new, LockMode::Alone)).map_err(|e| Error::io(path, "cannot be marked", e))
}

/// Takes the mark of a file away that an earlier run has put in its place, if the old file had no
/// other name.
///
/// Fails with `Io`.
pub(super) fn finish(new: &File, path: &Path) -> Result<()> {
    if Mark::of(new, path)?.is_some_and(|mark| mark.names == 1) {
        forget(new);
    }
    Ok(())
}

/// Takes the mark of a file away, all of whose names are in place.
pub(super) fn forget(new: &File) {
    // A mark that stays says nothing of a file with another name than its temporary one.
    let _ = fremovexattr(new, CONVERTING);
}

/// Returns the name that a further name of a new file has before it is in place: that of its mark,
/// so that an interrupted run is known by the mark, too. What such a run has left is removed.
///
/// Fails with `Io`.
pub(super) fn further_name(found: &WalkEntry<'_>, new: &PinnedEntry) -> Result<Vec<u8>> {
    // A file that this user may not read has no mark that a run of this user would find.
    let Ok(file) = new.open(false) else { return random_name() };
    let Some(Mark { temporary, .. }) = Mark::of(&file, new.path())? else { return random_name() };
    if let Some(left) = found.folder.find(&temporary)?
        && [new.inode(), found.entry.inode()].contains(&left.inode())
    {
        remove(found, &temporary)?;
    }
    Ok(temporary)
}

/// Removes what a run has left beside a new file that is in place: the old file, or a further name
/// that was not in place yet.
///
/// Fails with `Busy` when another file has that name: another program may have put it in the old
/// one's place in the run's last moment.
pub(super) fn clear(found: &WalkEntry<'_>, new: &LowerFile) -> Result<()> {
    let Some(mark) = Mark::of(&new.file, found.lower)? else { return Ok(()) };
    if mark.temporary == found.name {
        return Ok(());
    }
    let Some(left) = found.folder.find(&mark.temporary)? else { return Ok(()) };
    let about = new.metadata()?;
    let is_new = left.inode() == (about.dev(), about.ino());
    let is_old = (left.about().ino() == mark.old || is_overlay(&left))
        && state(left.about()) == mark.state
        && ownership(left.about()) == ownership(&about)
        && left.open(false).is_ok_and(|file| lock(file, LockMode::Alone).is_ok());
    if is_new || is_old {
        return remove(found, &mark.temporary);
    }
    let context = format!(
        "a conversion of it was interrupted, and {} is not the file that it has replaced, or was changed \
         since: compare the two, remove one and convert again",
        left.path().display()
    );
    Err(Error::new(ErrorKind::Busy, context).in_file(found.lower))
}

fn remove(found: &WalkEntry<'_>, name: &[u8]) -> Result<()> {
    let removed = found.folder.remove(name);
    removed.map_err(|e| Error::io(&found.folder.path_of(name), "cannot be removed", e))
}

/// Whether an entry is a new file, or a further name of one, that a run has left before it took its
/// place.
///
/// Fails with `Io`.
pub(super) fn is_left_over(found: &WalkEntry<'_>) -> Result<bool> {
    if !is_temporary(found.name) {
        return Ok(false);
    }
    let Ok(file) = found.entry.open(false) else { return Ok(false) };
    let is_marked = Mark::of(&file, found.lower)?.is_some_and(|mark| mark.temporary == found.name);
    // A run may have been cut off before it set the mark: then there is nothing in the file.
    Ok((is_marked || found.about.len() == 0) && lock(&file, LockMode::Alone).is_ok())
}

/// Returns the names among those of a folder that a conversion has left there, and the names of the
/// new files beside them.
///
/// Fails with `Io`.
pub(super) fn of_conversions(folder: &TreeFolder, names: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let mut of_conversions = Vec::new();
    if !names.iter().any(|name| is_temporary(name)) {
        return Ok(of_conversions);
    }
    for name in names {
        let Some(entry) = folder.find(name)?.filter(|entry| entry.kind() == EntryKind::File) else {
            continue;
        };
        let Ok(file) = entry.open(false) else { continue };
        if let Some(mark) = Mark::of(&file, entry.path())?
            && names.contains(&mark.temporary)
        {
            of_conversions.extend([name.clone(), mark.temporary]);
        }
    }
    Ok(of_conversions)
}

/// Returns the value of a mark, or `None` without one.
///
/// Fails with `Io`: an error says nothing of a mark.
fn note(file: &File, name: &str, path: &Path) -> Result<Option<Vec<u8>>> {
    let mut text = vec![0; LONGEST];
    match fgetxattr(file, name, &mut text[..]) {
        Ok(len) => {
            text.truncate(len);
            Ok(Some(text))
        }
        // No mark is that long.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
        Err(e) => Err(Error::io(path, "the mark of a conversion cannot be read", e)),
    }
}

/// More than the length of the longest path and some numbers.
const LONGEST: usize = 8192;

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
    ///
    /// Fails with `Io`.
    pub(super) fn of(old: &LowerFile) -> Result<Option<Self>> {
        let Some(text) = note(&old.file, CONVERTED, &old.path)? else { return Ok(None) };
        Ok(Self::parse(&text, &old.metadata()?))
    }

    fn parse(text: &[u8], about: &Metadata) -> Option<Self> {
        let mut words = text.splitn(8, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(words.next()?).ok()?.parse::<i128>().ok();
        let new = (u64::try_from(number()?).ok()?, u64::try_from(number()?).ok()?);
        let old_inode = (u64::try_from(number()?).ok()?, u64::try_from(number()?).ok()?);
        if old_inode != (about.dev(), about.ino()) {
            return None;
        }
        let len = u64::try_from(number()?).ok()?;
        let old = (len, i64::try_from(number()?).ok()?, i64::try_from(number()?).ok()?);
        let path = OsString::from_vec(words.next()?.to_vec()).into();
        Some(Self { path, new, old_inode, old })
    }

    /// The new file; nothing where it never took its place, or is not in this tree, or is another
    /// file than a version of the old one.
    ///
    /// Fails with `Busy` when one of the two was changed since, and with `Io`.
    pub(super) fn find(
        &self,
        found: &WalkEntry<'_>,
        lower: &LowerFile,
        old: &Metadata,
    ) -> Result<Option<PinnedEntry>> {
        let Ok(new) = found.root.beneath(&self.path) else { return Ok(None) };
        if new.inode() != self.new || ownership(new.about()) != ownership(old) {
            return Ok(None);
        }
        // A new file that cannot be read is no worse off as a file of its own.
        let Ok(file) = new.open(false) else { return Ok(None) };
        if Mark::of(&file, new.path())?.is_none_or(|mark| mark.old != old.ino()) {
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
        let is_version = match LowerFile::of_entry(&new) {
            Ok(new) => lower.has_contents_of(&new)?,
            Err(e) if e.kind() == ErrorKind::Io => return Err(e),
            Err(_) => false,
        };
        Ok(is_version.then_some(new))
    }
}

fn ownership(about: &Metadata) -> (u32, u32, u32) {
    (about.uid(), about.gid(), about.mode())
}

fn state(about: &Metadata) -> (u64, i64, i64) {
    (about.len(), about.mtime(), about.mtime_nsec())
}
