//! Names of a tree under another key, another cipher, or in plain. Contents stay as they are.
//!
//! What is in a folder is renamed before the folder, each name in one step that replaces nothing. A run that was interrupted is
//! taken up by the same again: names that are as they should be stay so, as long as both keys are at hand.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::attributes::{Attributes, keep_times};
use super::maker::placed;
use super::walk::{Kind, join, last};
use super::{Keys, Summary, Watch};
use crate::lock::{Access, Claim};
use crate::name::long;
use crate::{Error, LowerName, NameCipher, Result};

/// Gives everything in a folder the name, and symlinks the target, that `new` makes of them; plain ones without. Names of more
/// than 143 bytes only with `long_names`.
///
/// # Errors
/// Only when there is no such folder, or it is in use (`Busy`); what fails in it is told to the watch.
pub fn rename(
    root: &Path,
    keys: &mut Keys,
    new: Option<&NameCipher>,
    long_names: bool,
    watch: &mut dyn Watch,
) -> Result<Summary> {
    fs::read_dir(root).map_err(|e| Error::io(root, "cannot be listed", e))?;
    let _claim = Claim::of(root, Access::Alone)?;
    let mut run = Run { keys, new, long_names, watch, summary: Summary::default() };
    run.folder(root);
    Ok(run.summary)
}

struct Run<'r> {
    keys: &'r mut Keys,
    new: Option<&'r NameCipher>,
    long_names: bool,
    watch: &'r mut dyn Watch,
    summary: Summary,
}

impl Run<'_> {
    fn folder(&mut self, folder: &Path) {
        let about = fs::symlink_metadata(folder);
        // All names first: a folder that changes may be listed twice over.
        let names =
            fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
        let names: Vec<OsString> = match names {
            Ok(names) => names,
            Err(e) => return self.tell(folder, Error::io(folder, "cannot be listed", e)),
        };
        for name in names {
            // It goes with the name that it is beside.
            if long::is_beside(name.as_bytes()).is_some() {
                continue;
            }
            let path = folder.join(&name);
            if let Err(error) = self.entry(folder, &path, name.as_bytes()) {
                self.tell(&path, error);
            }
        }
        self.summary.folders += 1;
        let about = about.map_err(|e| Error::io(folder, "cannot be looked at", e));
        if let Err(error) = about.and_then(|about| keep_times(folder, &about)) {
            self.tell(folder, error);
        }
    }

    fn tell(&mut self, lower: &Path, error: Error) {
        self.summary.failed += 1;
        self.watch.failed(lower, error);
    }

    fn entry(&mut self, folder: &Path, path: &Path, name: &[u8]) -> Result<()> {
        let about = fs::symlink_metadata(path).map_err(|e| Error::io(path, "cannot be looked at", e))?;
        let kind = Kind::of(&about);
        let in_file = |e: Error| e.in_file(path);
        if kind == Kind::Folder {
            self.folder(path);
        }
        let plain = self.keys.decode_entry(path).map_err(in_file)?;
        let lower = match self.new {
            Some(names) => names.lower(&plain, self.long_names).map_err(in_file)?,
            None => LowerName::short(plain),
        };
        let placed = placed(folder, &lower, |_| self.place(folder, path, kind, &about, &lower));
        if placed.is_ok() && *lower != *name && long::is_long(name) {
            long::tidy(CWD, path.as_os_str().as_bytes());
        }
        placed
    }

    /// Gives an entry its new name.
    fn place(
        &mut self,
        folder: &Path,
        path: &Path,
        kind: Kind,
        about: &fs::Metadata,
        lower: &LowerName<'_>,
    ) -> Result<()> {
        if kind == Kind::Symlink && self.target(folder, path, lower, &Attributes::of(path, about)?)? {
            return Ok(());
        }
        if **lower == *last(path) {
            self.summary.unchanged += 1;
            return Ok(());
        }
        let to = join(folder, lower.to_vec());
        renameat_with(CWD, path, CWD, &to, RenameFlags::NOREPLACE)
            .map_err(|e| Error::io(path, "cannot be renamed", e))?;
        self.count(kind);
        Ok(())
    }

    /// A symlink whose target changes is made anew, and takes the place of the old one. Says whether it was.
    fn target(&mut self, folder: &Path, path: &Path, name: &[u8], attributes: &Attributes) -> Result<bool> {
        let old = fs::read_link(path).map_err(|e| Error::io(path, "cannot be read", e))?;
        let plain = self.keys.decode_target(old.as_os_str().as_bytes()).map_err(|e| e.in_file(path))?;
        let new = match self.new {
            Some(names) => names.encode_target(&plain).map_err(|e| e.in_file(path))?,
            None => plain,
        };
        if new == old.as_os_str().as_bytes() {
            return Ok(false);
        }
        let to = folder.join(OsStr::from_bytes(name));
        if to != path && fs::symlink_metadata(&to).is_ok() {
            let there = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(Error::io(path, "cannot be renamed", there));
        }
        // In two steps, the old one is there until the new one is.
        let made = folder.join(OsString::from_vec(format!(".underseal-{}", std::process::id()).into_bytes()));
        symlink(OsStr::from_bytes(&new), &made).map_err(|e| Error::io(&made, "cannot be made", e))?;
        let placed = attributes
            .apply(&made)
            .and_then(|()| fs::rename(&made, &to).map_err(|e| Error::io(path, "cannot be replaced", e)));
        if let Err(error) = placed {
            let _ = fs::remove_file(&made);
            return Err(error);
        }
        if to != path {
            fs::remove_file(path).map_err(|e| Error::io(path, "cannot be removed", e))?;
        }
        self.count(Kind::Symlink);
        Ok(true)
    }

    fn count(&mut self, kind: Kind) {
        match kind {
            Kind::File => self.summary.files += 1,
            Kind::Folder => {}
            _ => self.summary.others += 1,
        }
    }
}
