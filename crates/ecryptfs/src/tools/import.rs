//! A plain tree's lower form.

mod archive;
mod tar;

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::attributes::Attributes;
use super::maker::placed;
use super::sink::make_empty;
use super::walk::{Kind, last};
use super::{Summary, Watch};
use crate::lock::{Access, Claim};
use crate::{AuthToken, Cipher, Error, NameCipher, Place, Result};

pub use tar::import_tar;

/// How new lower files are made.
#[derive(Debug)]
pub struct Import {
    /// Who opens them.
    pub tokens: Vec<Arc<AuthToken>>,
    /// Their cipher.
    pub cipher: Cipher,
    /// Where their headers go.
    pub place: Place,
    /// The cipher of names; names stay as they are without.
    pub names: Option<NameCipher>,
    /// Encrypted names may have 144 to 255 bytes, too, which the kernel does not show.
    pub long_names: bool,
}

/// Encrypts a plain folder into a lower one, which does not exist or is empty.
///
/// # Errors
/// `BadOption` when there is something in the lower folder; `Busy`; `Io`. What fails in the tree is told to the watch.
pub fn import(plain: &Path, lower: &Path, how: &Import, watch: &mut dyn Watch) -> Result<Summary> {
    fs::read_dir(plain).map_err(|e| Error::io(plain, "cannot be listed", e))?;
    make_empty(lower)?;
    let _claim = Claim::of(lower, Access::Alone)?;
    let mut run = Run { how, watch, linked: HashMap::new(), summary: Summary::default() };
    run.folder(plain, lower);
    Ok(run.summary)
}

struct Run<'r> {
    how: &'r Import,
    watch: &'r mut dyn Watch,
    /// Files with several names: where the first went.
    linked: HashMap<(u64, u64), PathBuf>,
    summary: Summary,
}

impl Run<'_> {
    /// What is in a folder whose lower folder is made.
    fn folder(&mut self, plain: &Path, lower: &Path) {
        let done =
            fs::read_dir(plain).map_err(|e| Error::io(plain, "cannot be listed", e)).and_then(|entries| {
                for entry in entries {
                    let entry = entry.map_err(|e| Error::io(plain, "cannot be listed", e))?;
                    self.note(&entry.path(), |run| run.entry(&entry.path(), lower));
                }
                let about =
                    fs::symlink_metadata(plain).map_err(|e| Error::io(plain, "cannot be looked at", e))?;
                Attributes::of(plain, &about)?.apply(lower)
            });
        self.summary.folders += 1;
        self.note(plain, |_| done);
    }

    /// Tells of a failure.
    fn note(&mut self, plain: &Path, entry: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = entry(self) {
            self.summary.failed += 1;
            self.watch.failed(plain, error);
        }
    }

    fn entry(&mut self, plain: &Path, folder: &Path) -> Result<()> {
        let name = self.how.name(last(plain)).map_err(|e| e.in_file(plain))?;
        placed(folder, &name, |lower| self.make(plain, lower))
    }

    fn make(&mut self, plain: &Path, lower: PathBuf) -> Result<()> {
        let about = fs::symlink_metadata(plain).map_err(|e| Error::io(plain, "cannot be looked at", e))?;
        match Kind::of(&about) {
            Kind::Folder => {
                self.how.make_folder(&lower)?;
                self.folder(plain, &lower);
                return Ok(());
            }
            Kind::Symlink => {
                let target = fs::read_link(plain).map_err(|e| Error::io(plain, "cannot be read", e))?;
                self.how.make_symlink(&lower, target.as_os_str().as_bytes()).map_err(|e| e.in_file(plain))?;
                Attributes::of(plain, &about)?.apply(&lower)?;
            }
            Kind::Special => Attributes::of(plain, &about)?.make_special(&lower)?,
            Kind::File => {
                let inode = (about.dev(), about.ino());
                if let Some(first) = self.linked.get(&inode) {
                    fs::hard_link(first, &lower).map_err(|e| Error::io(&lower, "cannot be linked", e))?;
                } else {
                    self.file(plain, &lower, &Attributes::of(plain, &about)?)?;
                    if about.nlink() > 1 {
                        self.linked.insert(inode, lower);
                    }
                    return Ok(());
                }
            }
        }
        self.summary.others += 1;
        Ok(())
    }

    fn file(&mut self, plain: &Path, lower: &Path, attributes: &Attributes) -> Result<()> {
        let mut from = File::open(plain).map_err(|e| Error::io(plain, "cannot open", e))?;
        let size = self.how.make_file(lower, &mut from, self.watch)?;
        attributes.apply(lower)?;
        self.summary.files += 1;
        self.summary.bytes += size;
        Ok(())
    }
}
