//! A plain tree's lower form.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::attributes::Attributes;
use super::sink::make_empty;
use super::walk::{Kind, join};
use super::{Summary, Watch, writer};
use crate::{AuthToken, Cipher, Error, FileKey, Header, NameCipher, Place, Result};

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
}

/// Encrypts a plain folder into a lower one, which does not exist or is empty.
///
/// # Errors
/// `BadOption` when there is something in the lower folder; `Io`. What fails in the tree is told to the watch.
pub fn import(plain: &Path, lower: &Path, how: &Import, watch: &mut dyn Watch) -> Result<Summary> {
    fs::read_dir(plain).map_err(|e| Error::io(plain, "cannot be listed", e))?;
    make_empty(lower)?;
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
        let about = fs::symlink_metadata(plain).map_err(|e| Error::io(plain, "cannot be looked at", e))?;
        let name = plain.file_name().unwrap_or_default().as_bytes();
        let lower = match &self.how.names {
            None => folder.join(OsStr::from_bytes(name)),
            Some(names) => join(folder, names.encode(name).map_err(|e| e.in_file(plain))?),
        };
        let made = |e: std::io::Error| Error::io(&lower, "cannot be made", e);
        match Kind::of(&about) {
            Kind::Folder => {
                DirBuilder::new().mode(0o700).create(&lower).map_err(made)?;
                self.folder(plain, &lower);
                return Ok(());
            }
            Kind::Symlink => {
                let target = fs::read_link(plain).map_err(|e| Error::io(plain, "cannot be read", e))?;
                let target = target.as_os_str().as_bytes();
                match &self.how.names {
                    None => symlink(OsStr::from_bytes(target), &lower).map_err(made)?,
                    Some(names) => {
                        let target = names.encode_target(target).map_err(|e| e.in_file(plain))?;
                        symlink(OsStr::from_bytes(&target), &lower).map_err(made)?;
                    }
                }
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
        let key = FileKey::random(self.how.cipher)?;
        let tokens: Vec<_> = self.how.tokens.iter().map(AsRef::as_ref).collect();
        let mut header = Header::new(&key, &tokens, self.how.place)?;
        header.set_encrypted_names(self.how.names.is_some());
        let contents = key.contents()?;
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(lower);
        let file = file.map_err(|e| Error::io(lower, "cannot be made", e))?;
        let watch = &mut *self.watch;
        let written = writer::write(&file, &mut header, &contents, &mut from, |bytes| watch.advance(bytes));
        let size = written.map_err(|e| {
            // Without its header it would be a plain file of noise.
            let _ = fs::remove_file(lower);
            Error::io(lower, "cannot be written", e)
        })?;
        attributes.apply(lower)?;
        self.summary.files += 1;
        self.summary.bytes += size;
        Ok(())
    }
}
