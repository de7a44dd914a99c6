//! The lower form of a plain tree.

mod acl;
mod archive;
mod tar;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::attributes::TreeAttributes;
use super::links::CopiedLinks;
use super::maker::{LookAlikes, placed};
use super::tree::{PinnedEntry, TreeFolder, within_itself};
use super::walk::{EntryKind, join};
use super::{ProgressWatch, Summary, sink};
use crate::{AuthToken, Cipher, HeaderLocation, NameCipher, Result};

pub use tar::import_tar;

/// How new lower files are made.
#[derive(Debug)]
pub struct ImportOptions {
    /// The keys that open the files.
    pub tokens: Vec<Arc<AuthToken>>,
    /// The cipher of the files.
    pub cipher: Cipher,
    /// The place of the headers.
    pub place: HeaderLocation,
    /// The cipher of names. With `None` names stay plain.
    pub names: Option<NameCipher>,
    /// Allows encrypted names of 144 to 255 bytes, too, which the kernel does not show.
    pub long_names: bool,
}

/// Encrypts a plain folder into a lower folder, which must not exist or must be empty.
///
/// # Errors
/// `BadOption` when the lower folder is not empty, or is in the plain folder; `Busy`; `Io`, also
/// when the output cannot be made durable. Failures in the tree are reported to the watch.
pub fn import(
    plain: &Path,
    lower: &Path,
    how: &ImportOptions,
    watch: &mut dyn ProgressWatch,
) -> Result<Summary> {
    crate::fs::raise_descriptor_limit();
    let plain = TreeFolder::open(plain)?;
    if plain.contains(lower)? {
        return Err(within_itself(lower));
    }
    let (root, _claim) = sink::empty(lower)?;
    let (target, linked) = (root.itself()?.inode(), CopiedLinks::new());
    let alike = LookAlikes::default();
    let mut run = Run { how, watch, root: &root, target, linked, alike, summary: Summary::default() };
    run.folder(&plain, &root, Path::new(""));
    run.alike.finish(root.path(), run.watch);
    root.sync()?;
    Ok(run.summary)
}

struct Run<'r> {
    how: &'r ImportOptions,
    watch: &'r mut dyn ProgressWatch,
    root: &'r TreeFolder,
    /// The device and inode number of `root`.
    target: (u64, u64),
    /// The copies of files with several names, by their paths from the root on.
    linked: CopiedLinks,
    alike: LookAlikes,
    summary: Summary,
}

impl Run<'_> {
    /// Imports the contents of a folder whose lower folder exists. `inside` is the lower folder's
    /// path from the root on.
    fn folder(&mut self, plain: &TreeFolder, lower: &TreeFolder, inside: &Path) {
        let done = plain.names().and_then(|names| {
            for name in names {
                self.note(&plain.path_of(&name), |run| run.entry(plain, &name, lower, inside));
            }
            TreeAttributes::of(&plain.itself()?)?.apply(lower, lower.path())?;
            lower.sync_entries()
        });
        self.summary.folders += 1;
        self.note(plain.path(), |_| done);
    }

    /// Reports a failure.
    fn note(&mut self, plain: &Path, entry: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = entry(self) {
            self.summary.failed += 1;
            self.watch.failed(plain, error);
        }
    }

    fn entry(&mut self, plain: &TreeFolder, name: &[u8], folder: &TreeFolder, inside: &Path) -> Result<()> {
        let entry = plain.pin(name)?;
        self.alike.look(self.how, name, entry.path(), self.watch);
        let lower = self.how.name(name).map_err(|e| e.in_file(entry.path()))?;
        let owner = (entry.about().uid(), entry.about().gid());
        placed(folder, &lower, owner, |lower| self.make(&entry, folder, lower, join(inside, lower.to_vec())))
    }

    fn make(&mut self, plain: &PinnedEntry, folder: &TreeFolder, name: &[u8], inside: PathBuf) -> Result<()> {
        match plain.kind() {
            EntryKind::Folder if plain.inode() == self.target => return Err(within_itself(plain.path())),
            EntryKind::Folder => {
                let opened = plain.folder()?;
                let made = folder.make_folder(name)?;
                self.folder(&opened, &made, &inside);
                return Ok(());
            }
            EntryKind::Symlink => {
                let (target, attributes) = (plain.target()?, TreeAttributes::to_copy(plain)?);
                self.alike.look(self.how, &target, plain.path(), self.watch);
                self.how
                    .make_symlink(folder, name, &target, &attributes)
                    .map_err(|e| e.in_file(plain.path()))?;
            }
            EntryKind::Special => TreeAttributes::to_copy(plain)?.make_special(folder, name)?,
            EntryKind::File => {
                if let Some(first) = self.linked.copy_of(plain) {
                    folder.link(&self.root.beneath(&first)?, name)?;
                } else {
                    self.file(plain, folder, name)?;
                    self.linked.remember(plain, &inside);
                    return Ok(());
                }
            }
        }
        self.summary.others += 1;
        Ok(())
    }

    fn file(&mut self, plain: &PinnedEntry, folder: &TreeFolder, name: &[u8]) -> Result<()> {
        let attributes = TreeAttributes::to_copy(plain)?;
        let size = self.how.make_file(folder, name, &attributes, &mut plain.open(false)?, self.watch)?;
        self.summary.files += 1;
        self.summary.bytes += size;
        Ok(())
    }
}
