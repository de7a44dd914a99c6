//! Names of a tree under another key, under another cipher, or in plaintext. Contents stay
//! unchanged.
//!
//! The entries of a folder are renamed before the folder, each name in one step that replaces
//! nothing. A second run completes an interrupted run, if both keys are available: names that need
//! no change are left alone.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::RenameFlags;
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::attributes::{TreeAttributes, keep_times};
use super::maker::placed;
use super::tree::{PinnedEntry, TreeFolder};
use super::walk::EntryKind;
use super::{ProgressWatch, Summary, TreeKeys, unfinished};
use crate::lock::{LockMode, RootLock};
use crate::name::long;
use crate::{Error, ErrorKind, LowerName, NameCipher, Result};

/// Changes all names and symlink targets in a folder to the forms of `new`, or to plaintext without
/// `new`. Names of more than 143 bytes are accepted only with `long_names`.
///
/// # Errors
/// Only when the folder does not exist, or is in use (`Busy`). Failures in it are reported to the
/// watch.
pub fn rename(
    root: &Path,
    keys: &mut TreeKeys,
    new: Option<&NameCipher>,
    long_names: bool,
    watch: &mut dyn ProgressWatch,
) -> Result<Summary> {
    crate::fs::raise_descriptor_limit();
    let folder = TreeFolder::open(root)?;
    let _claim = RootLock::on(&folder, root, LockMode::Alone)?;
    let mut run = Run { keys, new, long_names, watch, summary: Summary::default() };
    run.folder(&folder);
    folder.sync()?;
    Ok(run.summary)
}

struct Run<'r> {
    keys: &'r mut TreeKeys,
    new: Option<&'r NameCipher>,
    long_names: bool,
    watch: &'r mut dyn ProgressWatch,
    summary: Summary,
}

impl Run<'_> {
    fn folder(&mut self, folder: &TreeFolder) {
        let before = folder.itself();
        let names = match folder.names() {
            Ok(names) => names,
            Err(e) => return self.tell(folder.path(), e),
        };
        // A symlink that a run has left over goes with the one that it was to replace.
        let (temporary, names): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| unfinished::is_temporary(name));
        for name in names.into_iter().chain(temporary) {
            // A name file is moved with its name.
            if long::is_beside(&name).is_some() {
                continue;
            }
            if let Err(error) = self.entry(folder, &name) {
                self.tell(&folder.path_of(&name), error);
            }
        }
        self.summary.folders += 1;
        let kept = before.and_then(|before| keep_times(&before));
        if let Err(error) = kept.and_then(|()| folder.sync_entries()) {
            self.tell(folder.path(), error);
        }
    }

    fn tell(&mut self, lower: &Path, error: Error) {
        self.summary.failed += 1;
        self.watch.failed(lower, error);
    }

    fn entry(&mut self, folder: &TreeFolder, name: &[u8]) -> Result<()> {
        let Some(entry) = folder.find(name)? else { return Ok(()) };
        let in_file = |e: Error| e.in_file(entry.path());
        if entry.kind() == EntryKind::Folder {
            self.folder(&entry.folder()?);
        }
        if entry.kind() == EntryKind::File && unfinished::is_of_conversion(name, &entry) {
            let context = "a conversion that was interrupted has left it: convert the tree again first";
            return Err(in_file(Error::new(ErrorKind::Busy, context)));
        }
        let plain = self.keys.decode_entry(folder, name).map_err(in_file)?;
        let lower = match self.new {
            Some(names) => names.lower(&plain, self.long_names).map_err(in_file)?,
            None => LowerName::short(plain),
        };
        let owner = (entry.about().uid(), entry.about().gid());
        let placed = placed(folder, &lower, owner, |new| self.place(folder, name, &entry, new));
        if placed.is_ok() && *lower != *name && long::is_long(name) {
            long::tidy(folder, name);
        }
        placed
    }

    /// Changes an entry's name.
    fn place(&mut self, folder: &TreeFolder, name: &[u8], entry: &PinnedEntry, new: &[u8]) -> Result<()> {
        if entry.kind() == EntryKind::Symlink && self.target(folder, name, entry, new)? {
            return Ok(());
        }
        if new == name {
            self.summary.unchanged += 1;
            return Ok(());
        }
        let renamed = folder.rename(name, new, RenameFlags::NOREPLACE);
        renamed.map_err(|e| Error::io(entry.path(), "cannot be renamed", e))?;
        self.count(entry.kind());
        Ok(())
    }

    /// Replaces a symlink whose target changes by a new symlink. Returns true when it did.
    fn target(&mut self, folder: &TreeFolder, name: &[u8], entry: &PinnedEntry, to: &[u8]) -> Result<bool> {
        let (old, attributes, path) = (entry.target()?, TreeAttributes::of(entry)?, entry.path());
        let plain = self.keys.decode_target(&old).map_err(|e| e.in_file(path))?;
        let new = match self.new {
            Some(names) => names.encode_target(&plain).map_err(|e| e.in_file(path))?,
            None => plain,
        };
        if new == old {
            return Ok(false);
        }
        // In two steps, so that the old symlink exists until the new one does. A run may have been
        // cut off between them.
        let place = if to == name { temporary_name(name) } else { to.to_vec() };
        let (made, is_new) = match folder.find(&place)? {
            Some(there) if is_symlink_to(&there, &new)? => (there, false),
            Some(_) => return Err(Error::io(path, "cannot be renamed", Errno::EXIST)),
            None => (folder.make_symlink(&place, &new)?, true),
        };
        let placed = attributes.apply(&made, made.path()).and_then(|()| {
            match to == name {
                true => {
                    folder.rename(&place, name, RenameFlags::empty()).map_err(|e| ("cannot be replaced", e))
                }
                false => folder.remove(name).map_err(|e| ("cannot be removed", e)),
            }
            .map_err(|(doing, e)| Error::io(path, doing, e))
        });
        if let Err(error) = placed {
            if is_new {
                let _ = folder.remove(&place);
            }
            return Err(error);
        }
        self.count(EntryKind::Symlink);
        Ok(true)
    }

    fn count(&mut self, kind: EntryKind) {
        match kind {
            EntryKind::File => self.summary.files += 1,
            EntryKind::Folder => {}
            _ => self.summary.others += 1,
        }
    }
}

/// The name of a new symlink until it takes the place of an old one. A later run finds it.
fn temporary_name(name: &[u8]) -> Vec<u8> {
    let mut number = [0; 8];
    number.copy_from_slice(&Sha256::digest(name)[..8]);
    unfinished::temporary_name(u64::from_be_bytes(number))
}

fn is_symlink_to(entry: &PinnedEntry, target: &[u8]) -> Result<bool> {
    Ok(entry.kind() == EntryKind::Symlink && entry.target()? == target)
}
