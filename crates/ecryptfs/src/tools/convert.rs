//! Headers from files into xattrs and back.
//!
//! The contents are copied as they are to a new file that takes the old one's place, so at any time one whole file is there.
//! Further names of a file follow the first.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::copy_file_range;
use rustix::io::Errno;

use super::attributes::{Attributes, keep_times};
use super::lower::write_xattr;
use super::walk::{Found, Kind, Visit, walk};
use super::{Keys, Lower, Summary, Watch};
use crate::lock::{Access, Claim};
use crate::{Error, ErrorKind, Place, Result};

/// Puts the headers of all files of a tree, or of one file, into one place. It takes no key.
///
/// # Errors
/// Only when there is no such tree, or it is in use (`Busy`); what fails in it is told to the watch.
pub fn convert(root: &Path, keys: &mut Keys, place: Place, watch: &mut dyn Watch) -> Result<Summary> {
    let _claim = Claim::of(root, Access::Alone)?;
    let mut visit = Convert { place, linked: HashMap::new(), summary: Summary::default() };
    walk(root, keys, watch, &mut visit)?;
    Ok(visit.summary)
}

struct Convert {
    place: Place,
    /// Files with several names, by the inode that they had.
    linked: HashMap<(u64, u64), Converted>,
    summary: Summary,
}

/// A file of which further names still lead to the old one.
struct Converted {
    /// Where the new one is.
    new: PathBuf,
    /// The old one's length and last change.
    old: (u64, i64, i64),
}

impl Converted {
    fn state(about: &Metadata) -> (u64, i64, i64) {
        (about.len(), about.mtime(), about.mtime_nsec())
    }
}

impl Visit for Convert {
    fn visit(&mut self, found: &Found<'_>, _keys: &mut Keys, watch: &mut dyn Watch) -> Result<()> {
        if found.kind != Kind::File {
            return Ok(());
        }
        let inode = (found.about.dev(), found.about.ino());
        let new = found.lower.with_file_name(format!(".underseal-{}", std::process::id()));
        let made = |e: io::Error| Error::io(&new, "cannot be made", e);
        let lower = Lower::open_alone(found.lower, false);
        if let Some(first) = self.linked.get(&inode) {
            let still = lower?.file.metadata().map(|about| Converted::state(&about));
            if still.map_err(|e| Error::io(found.lower, "cannot be looked at", e))? != first.old {
                let context = "it was changed while its other names were converted";
                return Err(Error::new(ErrorKind::Busy, context).in_file(found.lower));
            }
            fs::hard_link(&first.new, &new).map_err(made)?;
            replace(&new, found.lower)?;
            self.summary.others += 1;
            return Ok(());
        }
        let lower = match lower {
            Err(e) if e.has_no_header() => {
                self.summary.unchanged += 1;
                return Ok(());
            }
            lower => lower?,
        };
        if lower.header.place() == self.place {
            self.summary.unchanged += 1;
            return Ok(());
        }
        lower.check_len()?;
        let to =
            File::options().read(true).write(true).create_new(true).mode(0o600).open(&new).map_err(made)?;
        let done = self.fill(&lower, &to, &new, watch).and_then(|()| {
            Attributes::of(found.lower, found.about)?.apply(&new)?;
            to.sync_all().map_err(made)?;
            replace(&new, found.lower)
        });
        if let Err(error) = done {
            let _ = fs::remove_file(&new);
            return Err(error);
        }
        if found.about.nlink() > 1 {
            let old = lower.file.metadata().map_err(|e| Error::io(found.lower, "cannot be looked at", e))?;
            let converted = Converted { new: found.lower.into(), old: Converted::state(&old) };
            self.linked.insert(inode, converted);
        }
        self.summary.files += 1;
        self.summary.bytes += lower.header.size();
        Ok(())
    }

    fn leave(&mut self, found: &Found<'_>, _keys: &mut Keys) -> Result<()> {
        keep_times(found.lower, found.about)
    }

    fn needs_names(&self) -> bool {
        false
    }

    fn failed(&mut self) {
        self.summary.failed += 1;
    }
}

impl Convert {
    fn fill(&self, lower: &Lower, to: &File, new: &Path, watch: &mut dyn Watch) -> Result<()> {
        let failed = |e: io::Error| Error::io(new, "cannot be written", e);
        let header = lower.header.moved_to(self.place);
        match self.place {
            Place::File => to.write_all_at(&header.to_file(), 0),
            Place::Xattr => write_xattr(to, &header),
        }
        .map_err(failed)?;
        let (mut from, mut at) = (lower.header.data_offset(), header.data_offset());
        let end = lower.expected_len();
        while from < end {
            let want = usize::try_from(end - from).map_or(CHUNK, |left| left.min(CHUNK));
            let copied = copy(&lower.file, from, to, at, want).map_err(failed)?;
            if copied == 0 {
                return Err(Error::new(ErrorKind::Cut, "the file was cut meanwhile").in_file(&lower.path));
            }
            (from, at) = (from + copied as u64, at + copied as u64);
            watch.advance(copied as u64);
        }
        Ok(())
    }
}

/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;

/// Copies in the kernel where it can.
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

/// Puts a new file in an old one's place.
fn replace(new: &Path, old: &Path) -> Result<()> {
    fs::rename(new, old).map_err(|e| {
        let _ = fs::remove_file(new);
        Error::io(old, "cannot be replaced", e)
    })
}
