//! Whether keys belong to a tree: compares them with the first headers and names, before a mount
//! creates more files with them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::LowerFile;
use super::tree::{PinnedEntry, TreeFolder};
use super::walk::{EntryKind, join};
use crate::name::{self, long};
use crate::{Keyring, NameCipher, Signature};

/// The result for a tree's keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fit {
    /// No header or name needs a key.
    #[default]
    Nothing,
    /// A key opens a header or name of the tree.
    Opens,
    /// No key opens any checked header or name. A key with this signature would.
    Other(Signature),
}

/// The number of entries, and of files, that are checked until a key fits. A disk needs a few
/// seconds for them.
const ENTRIES: usize = 10_000;
const FILES: usize = 1000;

/// Checks headers until one has a key of the ring, and, with encrypted names, names until one has
/// that key. Unreadable entries are skipped.
pub fn fit(root: &Path, keyring: &Keyring, names: Option<&NameCipher>) -> (Fit, Fit) {
    let names = names.map(|names| names.token().signature());
    let mut look = Look { keyring, names, files: 0, folders: VecDeque::new(), fit: Default::default() };
    let Ok(root) = TreeFolder::open(root) else { return look.fit };
    look.folders.push_back(PathBuf::new());
    let mut entries = 0;
    while let Some(inside) = look.folders.pop_front() {
        let Ok(folder) = root.beneath(&inside).and_then(|folder| folder.folder()) else { continue };
        for name in folder.names().into_iter().flatten() {
            entries += 1;
            if look.is_over() || entries > ENTRIES {
                return look.fit;
            }
            look.entry(&folder, &inside, name);
        }
    }
    look.fit
}

struct Look<'k> {
    keyring: &'k Keyring,
    names: Option<Signature>,
    files: usize,
    /// The folders that are left, by their paths from the root on.
    folders: VecDeque<PathBuf>,
    /// The results for contents and for names.
    fit: (Fit, Fit),
}

impl Look<'_> {
    fn is_over(&self) -> bool {
        let contents = self.fit.0 == Fit::Opens || self.files >= FILES;
        contents && (self.names.is_none() || self.fit.1 == Fit::Opens)
    }

    fn entry(&mut self, folder: &TreeFolder, inside: &Path, name: Vec<u8>) {
        if let Some(ours) = self.names
            && self.fit.1 != Fit::Opens
            && let Some(signature) = name_signature(folder, &name)
        {
            self.fit.1 = if signature == ours { Fit::Opens } else { Fit::Other(signature) };
        }
        let Ok(entry) = folder.pin(&name) else { return };
        match entry.kind() {
            EntryKind::Folder => self.folders.push_back(join(inside, name)),
            EntryKind::File if self.fit.0 != Fit::Opens && self.files < FILES => {
                self.files += 1;
                self.file(&entry);
            }
            _ => {}
        }
    }

    fn file(&mut self, entry: &PinnedEntry) {
        let Ok(lower) = LowerFile::of_entry(entry) else { return };
        for packet in lower.header.packets() {
            match self.keyring.find(packet.signature()) {
                Some(_) => return self.fit.0 = Fit::Opens,
                None => self.fit.0 = Fit::Other(packet.signature()),
            }
        }
    }
}

/// Returns the signature of an entry's encrypted name, if it is encrypted.
fn name_signature(folder: &TreeFolder, name: &[u8]) -> Option<Signature> {
    let encoded = match long::is_long(name) {
        true => long::read(folder, name).ok()?,
        false => name.to_vec(),
    };
    name::is_encoded(&encoded).then(|| name::signature(&encoded).ok())?
}
