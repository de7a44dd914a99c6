//! Entries that take the place of others, and entries that are removed, while other programs may
//! replace or remove the same names.
//!
//! A rename over a name, or a removal, takes whatever the name leads to by then. So the old entry
//! is moved to a temporary name first, in one step with the new one (an exchange), and removed only
//! when it is the one that was looked at. Another entry goes back to its name.

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::tree::{PinnedEntry, TreeFolder};
use crate::{Error, ErrorKind, Result};

/// The number of exchanges until both entries stay where they are: other programs replace a name
/// seldom, and hardly in each of the moments between two calls.
const TRIES: usize = 16;

/// A new entry under a temporary name beside the one that it is to replace. The new entry is
/// removed unless it took that place.
pub(super) struct Replacement<'f> {
    folder: &'f TreeFolder,
    temporary: Vec<u8>,
    name: &'f [u8],
    /// The temporary name leads to the new entry.
    is_ours: bool,
}

impl<'f> Replacement<'f> {
    pub(super) fn new(folder: &'f TreeFolder, temporary: Vec<u8>, name: &'f [u8]) -> Self {
        Self { folder, temporary, name, is_ours: true }
    }

    pub(super) fn temporary(&self) -> &[u8] {
        &self.temporary
    }

    /// Replaces the entry that passes the check by the new one, and removes it. Returns false when
    /// the name is gone.
    ///
    /// Fails with the check's error when the name leads to another entry by then, which keeps it.
    /// Where the filesystem exchanges no names the check comes before the replacement.
    pub(super) fn put(mut self, new: (u64, u64), check: impl Fn(&PinnedEntry) -> Result<()>) -> Result<bool> {
        let failed = |e| Error::io(&self.folder.path_of(self.name), "cannot be replaced", e);
        let Some(there) = self.folder.find(self.name)? else { return Ok(false) };
        check(&there)?;
        match self.exchange() {
            Ok(()) => {}
            Err(Errno::NOENT) if !self.folder.has(self.name) => return Ok(false),
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                self.folder.rename(&self.temporary, self.name, RenameFlags::empty()).map_err(failed)?;
                self.is_ours = false;
                return Ok(true);
            }
            Err(e) => return Err(failed(e)),
        }
        self.is_ours = false;
        self.settle(new, check)
    }

    /// Removes the entry that came out, or puts it back.
    fn settle(&self, new: (u64, u64), check: impl Fn(&PinnedEntry) -> Result<()>) -> Result<bool> {
        let stays_because = |e: Errno| self.stays().with_source(std::io::Error::from(e));
        // Where it is missing, another program has taken it away.
        let Some(mut out) = self.folder.find(&self.temporary)? else { return Ok(true) };
        let why = match check(&out) {
            Ok(()) => return self.remove().map(|()| true),
            Err(why) => why,
        };
        // The entry under the name, kept open so that its number is no other entry's.
        let mut there: Option<PinnedEntry> = None;
        for _ in 0..TRIES {
            match self.exchange() {
                Ok(()) => {}
                // The entry under the name was removed.
                Err(Errno::NOENT) => {
                    match self.folder.rename(&self.temporary, self.name, RenameFlags::NOREPLACE) {
                        Ok(()) => return Err(why),
                        Err(Errno::EXIST) => continue,
                        Err(e) => return Err(stays_because(e)),
                    }
                }
                Err(e) => return Err(stays_because(e)),
            }
            let Some(now) = self.folder.find(&self.temporary)? else { return Err(why) };
            match &there {
                None if now.inode() == new => {
                    self.remove()?;
                    return Err(why);
                }
                // Nothing came between the last two exchanges: the entry under the name is the last
                // one that another program has put there.
                Some(there) if now.inode() == there.inode() => return Err(self.stays()),
                _ => (there, out) = (Some(out), now),
            }
        }
        Err(self.stays())
    }

    fn exchange(&self) -> std::result::Result<(), Errno> {
        self.folder.rename(&self.temporary, self.name, RenameFlags::EXCHANGE)
    }

    fn remove(&self) -> Result<()> {
        remove(self.folder, &self.temporary)
    }

    fn stays(&self) -> Error {
        stays(self.folder, &self.temporary, self.name)
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = self.folder.remove(&self.temporary);
        }
    }
}

/// Removes an entry, if its name leads to it still. Returns false when the name is gone.
///
/// Fails with `Busy` when the name leads to another one, which keeps it.
pub(super) fn remove_entry(
    folder: &TreeFolder,
    name: &[u8],
    temporary: &[u8],
    entry: &PinnedEntry,
) -> Result<bool> {
    match folder.rename(name, temporary, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(false),
        // A filesystem that has no such call.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if !folder.pin(name)?.is_same(entry) {
                return Err(entry.swapped());
            }
            return remove(folder, name).map(|()| true);
        }
        Err(e) => return Err(Error::io(entry.path(), "cannot be removed", e)),
    }
    let Some(out) = folder.find(temporary)? else { return Ok(true) };
    if out.is_same(entry) {
        return remove(folder, temporary).map(|()| true);
    }
    Err(give_back(folder, temporary, name, entry))
}

/// Renames an entry to a name that nothing has.
///
/// Fails with `Busy` when another one had its name by then, which keeps it.
pub(super) fn rename_entry(folder: &TreeFolder, name: &[u8], new: &[u8], entry: &PinnedEntry) -> Result<()> {
    let renamed = folder.rename(name, new, RenameFlags::NOREPLACE);
    renamed.map_err(|e| Error::io(entry.path(), "cannot be renamed", e))?;
    match folder.find(new)? {
        Some(out) if !out.is_same(entry) => Err(give_back(folder, new, name, entry)),
        _ => Ok(()),
    }
}

/// Gives an entry its name back, and returns why.
fn give_back(folder: &TreeFolder, from: &[u8], name: &[u8], entry: &PinnedEntry) -> Error {
    match folder.rename(from, name, RenameFlags::NOREPLACE) {
        Ok(()) => entry.swapped(),
        Err(e) => stays(folder, from, name).with_source(std::io::Error::from(e)),
    }
}

fn remove(folder: &TreeFolder, name: &[u8]) -> Result<()> {
    match folder.remove(name) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(Error::io(&folder.path_of(name), "cannot be removed", e)),
    }
}

fn stays(folder: &TreeFolder, temporary: &[u8], name: &[u8]) -> Error {
    let context = format!(
        "other files were put in its place meanwhile, and one of them is {} now: compare the two",
        folder.path_of(temporary).display()
    );
    Error::new(ErrorKind::Busy, context).in_file(&folder.path_of(name))
}
