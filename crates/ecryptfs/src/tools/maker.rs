//! Entries of a new lower tree.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::walk::join;
use super::{Import, Watch, writer};
use crate::name::long;
use crate::{Error, FileKey, Header, LowerName, Result};

impl Import {
    /// What a plain name is in a lower folder.
    pub(super) fn name<'a>(&self, plain: &'a [u8]) -> Result<LowerName<'a>> {
        match &self.names {
            None => Ok(LowerName::short(plain)),
            Some(names) => names.lower(plain, self.long_names),
        }
    }

    pub(super) fn make_folder(&self, lower: &Path) -> Result<()> {
        DirBuilder::new().mode(0o700).create(lower).map_err(|e| Error::io(lower, "cannot be made", e))
    }

    pub(super) fn make_symlink(&self, lower: &Path, target: &[u8]) -> Result<()> {
        let made = match &self.names {
            None => symlink(OsStr::from_bytes(target), lower),
            Some(names) => symlink(OsStr::from_bytes(&names.encode_target(target)?), lower),
        };
        made.map_err(|e| Error::io(lower, "cannot be made", e))
    }

    /// A file of all that `from` gives, or nothing at all. Gives back its size.
    pub(super) fn make_file(&self, lower: &Path, from: &mut dyn Read, watch: &mut dyn Watch) -> Result<u64> {
        let key = FileKey::random(self.cipher)?;
        let tokens: Vec<_> = self.tokens.iter().map(AsRef::as_ref).collect();
        let mut header = Header::new(&key, &tokens, self.place)?;
        header.set_encrypted_names(self.names.is_some());
        let contents = key.contents()?;
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(lower);
        let file = file.map_err(|e| Error::io(lower, "cannot be made", e))?;
        let written = writer::write(&file, &mut header, &contents, from, |bytes| watch.advance(bytes));
        written.map_err(|e| {
            // Without its header it would be a plain file of noise.
            let _ = fs::remove_file(lower);
            Error::io(lower, "cannot be written", e)
        })
    }
}

/// Makes an entry at its path. A long name's file beside it comes first, and goes when the entry cannot be made.
pub(super) fn placed<T>(
    folder: &Path,
    name: &LowerName<'_>,
    make: impl FnOnce(PathBuf) -> Result<T>,
) -> Result<T> {
    let path = join(folder, name.to_vec());
    let Some(encoded) = name.encoded() else { return make(path) };
    let bytes = path.as_os_str().as_bytes().to_vec();
    let written = long::write(CWD, &bytes, encoded)
        .map_err(|e| Error::io(&path, "the file beside it, which holds its name, cannot be written", e));
    let made = written.and_then(|()| make(path));
    if made.is_err() {
        long::tidy(CWD, &bytes);
    }
    made
}
