//! Whether keys are those of a tree: its first headers and names are asked, before a mount makes
//! more with them.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;

use super::LowerFile;
use super::walk::EntryKind;
use crate::name::{self, long};
use crate::{Keyring, NameCipher, Signature};

/// What a tree says of keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fit {
    /// There is nothing that needs one.
    #[default]
    Nothing,
    /// A key opens something in it.
    Opens,
    /// No key opens anything that was looked at. This one would.
    Other(Signature),
}

/// What is looked at until a key fits: entries, and files among them. So much is there for a disk
/// in a few seconds.
const ENTRIES: usize = 10_000;
const FILES: usize = 1000;

/// Looks at headers until one is for a key of the ring, and, where names are encrypted, at names
/// until one is for that key. What cannot be looked at is passed over.
pub fn fit(root: &Path, keyring: &Keyring, names: Option<&NameCipher>) -> (Fit, Fit) {
    let names = names.map(|names| names.token().signature());
    let mut look = Look { keyring, names, files: 0, folders: VecDeque::new(), fit: Default::default() };
    look.folders.push_back(root.into());
    let mut entries = 0;
    while let Some(folder) = look.folders.pop_front() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            entries += 1;
            if look.is_over() || entries > ENTRIES {
                return look.fit;
            }
            look.entry(&entry.path());
        }
    }
    look.fit
}

struct Look<'k> {
    keyring: &'k Keyring,
    names: Option<Signature>,
    files: usize,
    folders: VecDeque<PathBuf>,
    /// Of contents, of names.
    fit: (Fit, Fit),
}

impl Look<'_> {
    fn is_over(&self) -> bool {
        let contents = self.fit.0 == Fit::Opens || self.files >= FILES;
        contents && (self.names.is_none() || self.fit.1 == Fit::Opens)
    }

    fn entry(&mut self, path: &Path) {
        if let Some(ours) = self.names
            && self.fit.1 != Fit::Opens
            && let Some(signature) = name_signature(path)
        {
            self.fit.1 = if signature == ours { Fit::Opens } else { Fit::Other(signature) };
        }
        match fs::symlink_metadata(path).map(|about| EntryKind::of(&about)) {
            Ok(EntryKind::Folder) => self.folders.push_back(path.into()),
            Ok(EntryKind::File) if self.fit.0 != Fit::Opens && self.files < FILES => {
                self.files += 1;
                self.file(path);
            }
            _ => {}
        }
    }

    fn file(&mut self, path: &Path) {
        let Ok(lower) = LowerFile::open(path) else { return };
        for packet in lower.header.packets() {
            match self.keyring.find(packet.signature()) {
                Some(_) => return self.fit.0 = Fit::Opens,
                None => self.fit.0 = Fit::Other(packet.signature()),
            }
        }
    }
}

/// Whose key an entry's name is encrypted with, if it is.
fn name_signature(path: &Path) -> Option<Signature> {
    let name = path.file_name()?.as_bytes();
    let encoded = match long::is_long(name) {
        true => long::read(CWD, path.as_os_str().as_bytes()).ok()?,
        false => name.to_vec(),
    };
    name::is_encoded(&encoded).then(|| name::signature(&encoded).ok())?
}
