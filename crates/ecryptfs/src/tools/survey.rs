//! A summary of a tree's headers and names, without any key.

use std::collections::BTreeMap;
use std::path::Path;

use super::tree::{PinnedEntry, TreeFolder};
use super::walk::EntryKind;
use super::{LowerFile, ProgressWatch};
use crate::name::{self, long};
use crate::{HeaderLocation, Result, Signature};

/// Counts of a tree.
#[derive(Debug, Default)]
pub struct Survey {
    /// Encrypted files.
    pub files: u64,
    /// Encrypted files with their header in an xattr.
    pub in_xattrs: u64,
    /// Files without a header.
    pub plain: u64,
    /// Encrypted names.
    pub names: u64,
    /// Long encrypted names.
    pub long_names: u64,
    /// Plain bytes of encrypted files.
    pub bytes: u64,
    /// Entries that failed.
    pub failed: u64,
    /// The signatures of files' keys, and the number of files of each.
    pub signatures: BTreeMap<Signature, u64>,
    /// The signatures of names' keys, and the number of names of each.
    pub name_signatures: BTreeMap<Signature, u64>,
    /// The ciphers by name and key bytes, and the number of files of each.
    pub ciphers: BTreeMap<(&'static str, usize), u64>,
}

/// A limit above the number of keys in any real tree.
const MOST: usize = 1024;

impl Survey {
    /// Surveys a tree or a file.
    ///
    /// # Errors
    /// Only when nothing exists at that path. Failures below it are reported to the watch.
    pub fn of(root: &Path, watch: &mut dyn ProgressWatch) -> Result<Self> {
        let (folder, name) = match root.file_name() {
            Some(name) => (TreeFolder::above(root)?, name.as_encoded_bytes()),
            None => (TreeFolder::open(root)?, &b"."[..]),
        };
        let mut survey = Self::default();
        survey.entry(&folder.pin(name)?, watch);
        Ok(survey)
    }

    fn entry(&mut self, entry: &PinnedEntry, watch: &mut dyn ProgressWatch) {
        let done = match entry.kind() {
            EntryKind::Folder => entry.folder().and_then(|folder| self.folder(&folder, watch)),
            EntryKind::File => self.file(entry),
            _ => Ok(()),
        };
        if let Err(error) = done {
            self.failed += 1;
            watch.failed(entry.path(), error);
        }
    }

    fn folder(&mut self, folder: &TreeFolder, watch: &mut dyn ProgressWatch) -> Result<()> {
        for name in folder.names()? {
            if long::name_file_of(folder, &name).is_some() {
                continue;
            }
            let encoded = match long::is_long(&name) {
                true => long::read(folder, &name).unwrap_or_default(),
                false => name.clone(),
            };
            self.long_names += u64::from(long::is_long(&name));
            if name::is_encoded(&encoded)
                && let Ok(signature) = name::signature(&encoded)
            {
                self.names += 1;
                count(&mut self.name_signatures, signature);
            }
            // Removed since it was listed.
            if let Ok(Some(entry)) = folder.find(&name) {
                self.entry(&entry, watch);
            }
        }
        Ok(())
    }

    fn file(&mut self, entry: &PinnedEntry) -> Result<()> {
        let lower = match LowerFile::of_entry(entry) {
            Err(e) if e.has_no_header() => {
                self.plain += 1;
                return Ok(());
            }
            lower => lower?,
        };
        self.files += 1;
        self.bytes = self.bytes.saturating_add(lower.header.size());
        self.in_xattrs += u64::from(lower.header.place() == HeaderLocation::Xattr);
        for packet in lower.header.packets() {
            count(&mut self.signatures, packet.signature());
        }
        let cipher = lower.header.packets().iter().find_map(|packet| packet.cipher().ok());
        if let Some(cipher) = cipher {
            count(&mut self.ciphers, (cipher.name(), cipher.key_bytes()));
        }
        Ok(())
    }

    /// Returns the mount options that fit most of its files.
    pub fn options(&self) -> Option<String> {
        let (signature, _) = self.signatures.iter().max_by_key(|(_, files)| **files)?;
        let ((cipher, key_bytes), _) = self.ciphers.iter().max_by_key(|(_, files)| **files)?;
        let mut options =
            format!("ecryptfs_sig={signature},ecryptfs_cipher={cipher},ecryptfs_key_bytes={key_bytes}");
        if let Some((names, _)) = self.name_signatures.iter().max_by_key(|(_, names)| **names) {
            options += &format!(",ecryptfs_fnek_sig={names}");
        }
        if self.long_names > 0 {
            options += ",long_names";
        }
        if self.in_xattrs > self.files / 2 {
            options += ",ecryptfs_xattr_metadata";
        }
        if self.plain > 0 {
            options += ",ecryptfs_passthrough";
        }
        Some(options)
    }
}

fn count<K: Ord>(all: &mut BTreeMap<K, u64>, key: K) {
    if all.len() < MOST || all.contains_key(&key) {
        *all.entry(key).or_default() += 1;
    }
}
