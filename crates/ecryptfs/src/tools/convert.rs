//! Conversion of headers from files into xattrs and back.
//!
//! The contents are copied as they are to a new file that takes the old one's place, so at any time
//! one whole file is there. Further names of a file follow the first. A file with names outside of
//! the tree stays as it is: its names would lead to two files.
//!
//! A run that was interrupted is taken up by the same again (`unfinished.rs` has the marks that it
//! leaves): files that are as they should be stay so, further names of a converted file lead to it,
//! and what the run had not put in place is removed.

use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::Errno;

use super::attributes::{TreeAttributes, keep_times};
use super::links::MetNames;
use super::lower::write_xattr;
use super::replace::Replacement;
use super::sync::sync_entries;
use super::tree::PinnedEntry;
use super::unfinished::{self, Successor};
use super::walk::{EntryKind, Root, Visit, WalkEntry, walk};
use super::{LowerFile, ProgressWatch, Summary, TreeKeys};
use crate::lock::LockMode;
use crate::{Error, ErrorKind, HeaderLocation, Result};

/// Moves the headers of all files of a tree, or of one file, to one place. No key is needed.
///
/// # Errors
/// Only when the tree does not exist, or is in use (`Busy`). Failures in it are reported to the
/// watch.
pub fn convert(
    root: &Path,
    keys: &mut TreeKeys,
    place: HeaderLocation,
    watch: &mut dyn ProgressWatch,
) -> Result<Summary> {
    let root = Root::open(root, Some(LockMode::Alone))?;
    let names = MetNames::of(&root, keys);
    let mut visit = Convert { place, names, summary: Summary::default() };
    walk(&root, keys, watch, &mut visit);
    root.sync()?;
    Ok(visit.summary)
}

struct Convert {
    place: HeaderLocation,
    names: MetNames,
    summary: Summary,
}

impl Visit for Convert {
    fn visit(
        &mut self,
        found: &WalkEntry<'_>,
        _keys: &mut TreeKeys,
        watch: &mut dyn ProgressWatch,
    ) -> Result<()> {
        if found.kind != EntryKind::File {
            return Ok(());
        }
        if unfinished::is_left_over(found)? {
            found.leads_to(found.entry.inode())?;
            let removed = found.folder.remove(found.name);
            return removed.map_err(|e| Error::io(found.lower, "cannot be removed", e));
        }
        let lower = LowerFile::open_alone(found, false);
        let lower = match lower {
            Err(e) if e.has_no_header() => {
                self.summary.unchanged += 1;
                return Ok(());
            }
            lower => lower?,
        };
        unfinished::clear(found, &lower)?;
        let about = lower.metadata()?;
        // The note is on the file itself: its inode's number may be another file's by now.
        if let Some(successor) = Successor::of(&lower)?
            && let Some(new) = successor.find(found, &lower, &about)?
        {
            let attributes = TreeAttributes::with(found.entry, &about)?;
            let temporary = unfinished::further_name(found, &new)?;
            found.folder.link(&new, &temporary)?;
            let replacement = Replacement::new(found.folder, temporary, found.name);
            if replacement.put(new.inode(), |there| is_unchanged(found, there, &about, &attributes))? {
                self.summary.others += 1;
                if about.nlink() == 1 {
                    unfinished::forget(&new.open(false)?);
                }
            }
            return Ok(());
        }
        if lower.header.place() == self.place {
            unfinished::finish(&lower.file, found.lower)?;
            self.summary.unchanged += 1;
            return Ok(());
        }
        if rustix::process::geteuid().as_raw() != about.uid() && !rustix::process::geteuid().is_root() {
            let context =
                "it belongs to another user, who would lose it: convert it as that user, or as root";
            return Err(Error::io(found.lower, context, Errno::PERM));
        }
        let missing = self.names.missing(found.entry, about.nlink());
        if missing > 0 {
            return Err(has_names_elsewhere(found, missing));
        }
        lower.check_len()?;
        let temporary = unfinished::random_name()?;
        let (to, path) = (found.folder.make_file(&temporary)?, found.folder.path_of(&temporary));
        let replacement = Replacement::new(found.folder, temporary, found.name);
        unfinished::begin(&to, replacement.temporary(), &about, &path)?;
        self.fill(&lower, &to, &path, watch)?;
        let attributes = TreeAttributes::with(found.entry, &about)?;
        attributes.apply(&to, &path)?;
        to.sync_all().map_err(|e| Error::io(&path, "cannot be made", e))?;
        if is_changed(&about, &lower.metadata()?) {
            return Err(changed(found));
        }
        if about.nlink() > 1 {
            Successor::new(found, &about, &to)?.note(&lower)?;
        }
        let new = to.metadata().map_err(|e| Error::io(&path, "cannot be looked at", e))?;
        let new = (new.dev(), new.ino());
        if !replacement.put(new, |there| is_unchanged(found, there, &about, &attributes))? {
            // The file was removed, and so it stays.
            return Ok(());
        }
        if about.nlink() == 1 {
            unfinished::forget(&to);
        }
        self.summary.files += 1;
        self.summary.bytes += lower.header.size();
        Ok(())
    }

    fn leave(&mut self, found: &WalkEntry<'_>, _keys: &mut TreeKeys) -> Result<()> {
        keep_times(found.entry)?;
        sync_entries(found.entry, found.lower)
    }

    fn needs_names(&self) -> bool {
        false
    }

    fn failed(&mut self) {
        self.summary.failed += 1;
    }
}

impl Convert {
    fn fill(&self, lower: &LowerFile, to: &File, new: &Path, watch: &mut dyn ProgressWatch) -> Result<()> {
        let failed = |e: io::Error| Error::io(new, "cannot be written", e);
        let header = lower.header.moved_to(self.place);
        match self.place {
            HeaderLocation::File => to.write_all_at(&header.to_file(), 0),
            HeaderLocation::Xattr => write_xattr(to, &header),
        }
        .map_err(failed)?;
        let (start, new_start) = (lower.header.data_offset(), header.data_offset());
        let (mut from, end) = (start, lower.expected_len());
        while let Some(run) = next_data(&lower.file, from, end).map_err(failed)? {
            watch.advance(run.start - from);
            from = run.start;
            while from < run.end {
                let want = usize::try_from(run.end - from).map_or(CHUNK, |left| left.min(CHUNK));
                let copied = copy(&lower.file, from, to, from - start + new_start, want).map_err(failed)?;
                if copied == 0 {
                    return Err(cut_meanwhile(lower));
                }
                from += copied as u64;
                watch.advance(copied as u64);
            }
        }
        // A hole at the end.
        watch.advance(end - from);
        if lower.lower_len()? < end {
            return Err(cut_meanwhile(lower));
        }
        to.set_len(end - start + new_start).map_err(failed)
    }
}

/// Whether a file's attributes or its number of names have changed. A file that is locked changes
/// in no other way.
fn is_changed(before: &Metadata, now: &Metadata) -> bool {
    let of = |about: &Metadata| (about.ctime(), about.ctime_nsec());
    of(before) != of(now)
}

fn changed(found: &WalkEntry<'_>) -> Error {
    let context = "its attributes or names were changed meanwhile: convert it again";
    Error::new(ErrorKind::Busy, context).in_file(found.lower)
}

/// Returns the error of a file that further names would lead to as it was: two files in the place
/// of one.
fn has_names_elsewhere(found: &WalkEntry<'_>, missing: u64) -> Error {
    let context = format!(
        "{missing} more of its names are not in what is converted, or in a folder that cannot be read, and \
         would lead to another file than this one afterwards; try: convert a folder that has all of its \
         names, or remove the others"
    );
    Error::new(ErrorKind::Unsupported, context).in_file(found.lower)
}

/// Fails with `Busy` unless an entry is the file that was read, with the attributes from then. Its
/// own last change does not count, which a rename or a note on it is, too.
fn is_unchanged(
    found: &WalkEntry<'_>,
    there: &PinnedEntry,
    about: &Metadata,
    attributes: &TreeAttributes,
) -> Result<()> {
    if !there.is((about.dev(), about.ino()), about) {
        return Err(found.entry.swapped());
    }
    let of = |about: &Metadata| {
        let modified = (about.mtime(), about.mtime_nsec());
        (about.len(), modified, about.mode(), about.uid(), about.gid(), about.nlink())
    };
    if of(there.about()) != of(about) || TreeAttributes::of(there)?.xattrs != attributes.xattrs {
        return Err(changed(found));
    }
    Ok(())
}

fn cut_meanwhile(lower: &LowerFile) -> Error {
    Error::new(ErrorKind::Cut, "the file was cut meanwhile").in_file(&lower.path)
}

/// Returns the next bytes from `from` on that are no hole, or `None` without any before `end`. A
/// hole stays one in the copy: a missing extent, as before.
fn next_data(file: &File, from: u64, end: u64) -> io::Result<Option<Range<u64>>> {
    if from >= end {
        return Ok(None);
    }
    let data = match seek(file, SeekFrom::Data(from)) {
        Ok(data) if data < end => data,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        // A filesystem that does not say.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(from..end)),
        Err(e) => return Err(e.into()),
    };
    Ok(Some(data..seek(file, SeekFrom::Hole(data))?.min(end)))
}

/// The number of bytes that are copied at once.
const CHUNK: usize = 1 << 20;

/// Copies bytes, in the kernel if possible.
fn copy(from: &File, mut from_at: u64, to: &File, mut to_at: u64, len: usize) -> io::Result<usize> {
    match copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len) {
        Err(Errno::XDEV | Errno::NOSYS | Errno::INVAL | Errno::OPNOTSUPP | Errno::PERM) => {
            let mut buffer = vec![0; len];
            let read = super::lower::read_up_to(from, &mut buffer, from_at)?;
            to.write_all_at(&buffer[..read], to_at)?;
            Ok(read)
        }
        copied => Ok(copied?),
    }
}
