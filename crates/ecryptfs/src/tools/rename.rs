//! Names of a tree under another key, under another cipher, or in plaintext. Contents stay
//! unchanged.
//!
//! The entries of a folder are renamed before the folder, each name in one step that replaces
//! nothing. A second run completes an interrupted run, if both keys are available: names that need
//! no change are left alone.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::attributes::{TreeAttributes, keep_times};
use super::maker::placed;
use super::replace::{Replacement, remove_entry, rename_entry};
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
        let of_conversions = match unfinished::of_conversions(folder, &names) {
            Ok(names) => names,
            Err(e) => return self.tell(folder.path(), e),
        };
        // A symlink that a run has left over goes with the one that it was to replace.
        let (temporary, names): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| unfinished::is_temporary(name));
        for name in names.into_iter().chain(temporary) {
            // A name file is moved with its name.
            if long::name_file_of(folder, &name).is_some() {
                continue;
            }
            let renamed = match of_conversions.contains(&name) {
                true => Err(unfinished(&folder.path_of(&name))),
                false => self.entry(folder, &name),
            };
            if let Err(error) = renamed {
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
        rename_entry(folder, name, new, entry)?;
        self.count(entry.kind());
        Ok(())
    }

    /// Replaces a symlink whose target changes by a new symlink. Returns true when it did.
    fn target(&mut self, folder: &TreeFolder, name: &[u8], entry: &PinnedEntry, to: &[u8]) -> Result<bool> {
        let (old, attributes, path) = (entry.target()?, TreeAttributes::of(entry)?, entry.path());
        let plain = self.keys.decode_target(&old).map_err(|e| e.in_file(path))?;
        let new = match self.new {
            Some(names) => names.encode_target(&plain).map_err(|e| e.in_file(path))?,
            None => plain.clone(),
        };
        let temporary = temporary_name(to);
        self.clear(folder, &temporary, &attributes, &plain)?;
        if new == old {
            return Ok(false);
        }
        // In two steps, so that the old symlink exists until the new one does. A run may have been
        // cut off between them.
        let place = if to == name { &temporary } else { to };
        let (made, is_new) = match folder.find(place)? {
            Some(there) if is_symlink_to(&there, &new)? => (there, false),
            Some(_) => return Err(Error::io(path, "cannot be renamed", Errno::EXIST)),
            None => (folder.make_symlink(place, &new)?, true),
        };
        let replacement = (to == name).then(|| Replacement::new(folder, temporary.clone(), name));
        let placed = attributes.apply(&made, made.path()).and_then(|()| match replacement {
            Some(replacement) => replacement
                .put(made.inode(), |there| if there.is_same(entry) { Ok(()) } else { Err(entry.swapped()) }),
            None => remove_entry(folder, name, &temporary, entry),
        });
        if matches!(placed, Ok(true)) {
            self.count(EntryKind::Symlink);
            return Ok(true);
        }
        // The new symlink goes with an old one that is gone, and gives way to what is in its place.
        if is_new && to != name && folder.find(to)?.is_some_and(|there| there.inode() == made.inode()) {
            let _ = folder.remove(to);
        }
        placed.map(|_| true)
    }

    /// Removes what an interrupted run has left of a symlink: the old one, or the one that was to
    /// replace it.
    fn clear(
        &mut self,
        folder: &TreeFolder,
        temporary: &[u8],
        attributes: &TreeAttributes,
        plain: &[u8],
    ) -> Result<()> {
        let Some(left) = folder.find(temporary)?.filter(|left| left.kind() == EntryKind::Symlink) else {
            return Ok(());
        };
        let is_ours = left.about().uid() == attributes.uid || left.about().uid() == euid();
        if is_ours && self.keys.decode_target(&left.target()?).is_ok_and(|target| target == plain) {
            folder.remove(temporary).map_err(|e| Error::io(left.path(), "cannot be removed", e))?;
        }
        Ok(())
    }

    fn count(&mut self, kind: EntryKind) {
        match kind {
            EntryKind::File => self.summary.files += 1,
            EntryKind::Folder => {}
            _ => self.summary.others += 1,
        }
    }
}

fn unfinished(path: &Path) -> Error {
    let context = "a conversion that was interrupted has left it, or a file beside it: convert the tree \
                   again first";
    Error::new(ErrorKind::Busy, context).in_file(path)
}

fn euid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The name of a new symlink until it takes the place of an old one, and then of the old one until
/// it is removed. A later run finds it.
fn temporary_name(name: &[u8]) -> Vec<u8> {
    let mut number = [0; 8];
    number.copy_from_slice(&Sha256::digest(name)[..8]);
    unfinished::temporary_name(u64::from_be_bytes(number))
}

fn is_symlink_to(entry: &PinnedEntry, target: &[u8]) -> Result<bool> {
    Ok(entry.kind() == EntryKind::Symlink && entry.target()? == target)
}
