//! Whether keys belong to a tree: compares them with the first headers and names, before a mount
//! creates more files with them.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::LowerFile;
use super::tree::{PinnedEntry, TreeFolder};
use super::walk::{EntryKind, join};
use crate::fs::LowerFolder;
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
/// that key. Unreadable entries are skipped. All entries are those of the open folder: its owner
/// may put links in their places.
pub fn fit(root: &LowerFolder, keyring: &Keyring, names: Option<&NameCipher>) -> (Fit, Fit) {
    let names = names.map(|names| names.token().signature());
    let mut look = Look { keyring, names, files: 0, folders: VecDeque::new(), fit: Default::default() };
    let Ok(root) = TreeFolder::of(root, Path::new("")) else { return look.fit };
    look.folders.push_back(PathBuf::new());
    let mut entries = 0;
    while let Some(path) = look.folders.pop_front() {
        let folder = root.beneath(&path).and_then(|entry| entry.folder());
        let names = folder.as_ref().map(|folder| folder.names().unwrap_or_default());
        let Ok((folder, names)) = folder.as_ref().and_then(|folder| Ok((folder, names?))) else { continue };
        for name in names {
            entries += 1;
            if look.is_over() || entries > ENTRIES {
                return look.fit;
            }
            look.entry(folder, &path, name);
        }
    }
    look.fit
}

struct Look<'k> {
    keyring: &'k Keyring,
    names: Option<Signature>,
    files: usize,
    /// Paths from the root. Descriptors of all of them might be too many.
    folders: VecDeque<PathBuf>,
    /// The results for contents and for names.
    fit: (Fit, Fit),
}

impl Look<'_> {
    fn is_over(&self) -> bool {
        let contents = self.fit.0 == Fit::Opens || self.files >= FILES;
        contents && (self.names.is_none() || self.fit.1 == Fit::Opens)
    }

    /// Checks an entry of the folder with this path.
    fn entry(&mut self, folder: &TreeFolder, path: &Path, name: Vec<u8>) {
        if let Some(ours) = self.names
            && self.fit.1 != Fit::Opens
            && let Some(signature) = name_signature(folder, &name)
        {
            self.fit.1 = if signature == ours { Fit::Opens } else { Fit::Other(signature) };
        }
        let Ok(entry) = folder.pin(&name) else { return };
        match entry.kind() {
            EntryKind::Folder => self.folders.push_back(join(path, name)),
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    use super::*;
    use crate::{AuthToken, Cipher, FileHeader, FileKey, HeaderLocation};

    fn token(passphrase: &[u8]) -> AuthToken {
        AuthToken::from_passphrase(passphrase, AuthToken::DEFAULT_SALT).unwrap()
    }

    /// Creates a folder with a file for the key.
    fn folder(path: &Path, token: &AuthToken) {
        fs::create_dir(path).unwrap();
        let key = FileKey::random(Cipher::DEFAULT).unwrap();
        let header = FileHeader::new(&key, &[token], HeaderLocation::File).unwrap();
        fs::write(path.join("file"), header.to_file()).unwrap();
    }

    #[test]
    fn only_files_of_the_open_folder_are_compared() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let (theirs, ours) = (token(b"theirs"), token(b"ours"));
        fs::create_dir(at("root")).unwrap();
        folder(&at("root/inner"), &theirs);
        folder(&at("outside"), &ours);
        symlink(at("outside"), at("link")).unwrap();
        let root = LowerFolder::open(&at("root")).unwrap();
        let (other, ours) = (Fit::Other(theirs.signature()), Keyring::from(ours));
        assert_eq!(fit(&root, &ours, None).0, other);
        assert_eq!(fit(&root, &Keyring::from(theirs), None).0, Fit::Opens);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (inner, link) = (at("root/inner"), at("link"));
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &inner, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                }
            });
            let found = (0..3000).map(|_| fit(&root, &ours, None).0).find(|found| *found == Fit::Opens);
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(found, None, "a file of another folder was compared");
        });
        // The folder's path leads elsewhere by now.
        fs::rename(at("root"), at("moved")).unwrap();
        symlink(at("outside"), at("root")).unwrap();
        assert_ne!(fit(&root, &ours, None).0, Fit::Opens);
    }
}
