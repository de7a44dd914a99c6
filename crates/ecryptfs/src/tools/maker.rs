//! Creates entries of a new lower tree.

use std::io::Read;
use std::path::Path;

use super::attributes::TreeAttributes;
use super::sync::sync_new;
use super::tree::TreeFolder;
use super::{ImportOptions, ProgressWatch, writer};
use crate::name::{
    self,
    long::{self, NameOwner},
};
use crate::{Error, FileHeader, FileKey, LowerName, Result};

impl ImportOptions {
    /// Returns a plain name's lower form.
    pub(super) fn name<'a>(&self, plain: &'a [u8]) -> Result<LowerName<'a>> {
        match &self.names {
            None => Ok(LowerName::short(plain)),
            Some(names) => names.lower(plain, self.long_names),
        }
    }

    /// Creates a symlink with these attributes.
    pub(super) fn make_symlink(
        &self,
        folder: &TreeFolder,
        name: &[u8],
        target: &[u8],
        attributes: &TreeAttributes,
    ) -> Result<()> {
        let made = match &self.names {
            None => folder.make_symlink(name, target)?,
            Some(names) => folder.make_symlink(name, &names.encode_target(target)?)?,
        };
        attributes.apply(&made, made.path())
    }

    /// Creates a file with all bytes of `from`, or no file. Returns its size.
    pub(super) fn make_file(
        &self,
        folder: &TreeFolder,
        name: &[u8],
        attributes: &TreeAttributes,
        from: &mut dyn Read,
        watch: &mut dyn ProgressWatch,
    ) -> Result<u64> {
        let key = FileKey::random(self.cipher)?;
        let tokens: Vec<_> = self.tokens.iter().map(AsRef::as_ref).collect();
        let mut header = FileHeader::new(&key, &tokens, self.place)?;
        header.set_encrypted_names(self.names.is_some());
        let contents = key.contents()?;
        let file = folder.make_file(name)?;
        let path = folder.path_of(name);
        let written = writer::write(&file, &mut header, &contents, from, |bytes| watch.advance(bytes));
        let size = written.map_err(|e| {
            // Without its header it would be a plain file of noise.
            let _ = folder.remove(name);
            Error::io(&path, "cannot be written", e)
        })?;
        attributes.apply(&file, &path)?;
        sync_new(&file).map_err(|e| {
            let _ = folder.remove(name);
            Error::io(&path, "cannot be written", e)
        })?;
        Ok(size)
    }
}

/// The plain names and symlink targets of an import that look like encrypted ones.
#[derive(Debug, Default)]
pub(super) struct LookAlikes {
    met: u64,
}

impl LookAlikes {
    /// Looks at a name or target, and warns of the first that tools would decode.
    pub(super) fn look(
        &mut self,
        how: &ImportOptions,
        text: &[u8],
        path: &Path,
        watch: &mut dyn ProgressWatch,
    ) {
        if how.names.is_some() || !(name::is_encoded(text) || long::is_long(text)) {
            return;
        }
        self.met += 1;
        if self.met == 1 {
            let context = "the name, or the symlink's target, looks like an encrypted one, and names stay \
                           plain: export, ls and the others read this tree with --plain-names only; try: \
                           encrypted names (-o ecryptfs_enable_filename_crypto)";
            watch.warned(path, context);
        }
    }

    /// Tells how many there were.
    pub(super) fn finish(&self, root: &Path, watch: &mut dyn ProgressWatch) {
        if self.met > 1 {
            watch.warned(root, &format!("{} names and targets look like encrypted ones", self.met));
        }
    }
}

/// Creates an entry of a folder, which gets this user and group. A long name's file is created
/// first, and removed if the entry cannot be created.
pub(super) fn placed<T>(
    folder: &TreeFolder,
    name: &LowerName<'_>,
    (uid, gid): (u32, u32),
    make: impl FnOnce(&[u8]) -> Result<T>,
) -> Result<T> {
    let Some(encoded) = name.encoded() else { return make(name) };
    let written = long::write(folder, name, encoded, NameOwner::Entry(uid, gid)).map_err(|e| {
        let doing = "the file beside it, which holds its name, cannot be written";
        Error::io(&folder.path_of(name), doing, e)
    });
    let made = written.and_then(|()| make(name));
    if made.is_err() {
        long::tidy(folder, name);
    }
    made
}
