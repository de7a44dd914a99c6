//! From a passphrase and key files to the password of the key derivation.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use underseal_cipher::Key;

use crate::{Error, ErrorKind, Result};

/// The longest passphrase of TrueCrypt, and of VeraCrypt before 1.24, and the size of the key file
/// pool for passphrases of up to this length.
const SHORT: usize = 64;
/// The longest passphrase of VeraCrypt; the pool of key files for longer ones.
const LONG: usize = 128;
/// The bytes of a key file that count.
const USED: u64 = 1 << 20;
/// The most files that a folder of key files may have.
const MOST_FILES: usize = 10_000;

/// Key files, added up. Their order does not matter.
#[derive(Debug)]
pub struct KeyFiles {
    short: Key,
    long: Key,
    count: usize,
}

impl KeyFiles {
    /// No key file yet.
    ///
    /// # Errors
    /// `Memory`.
    pub fn new() -> Result<Self> {
        Ok(Self { short: Key::zeroed(SHORT)?, long: Key::zeroed(LONG)?, count: 0 })
    }

    /// Adds a file, or every file of a folder whose name does not begin with a dot, as VeraCrypt
    /// does.
    ///
    /// # Errors
    /// `BadOption` for an empty file and a folder without files, `Io`.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        let failed = |e: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot read the key file {}", path.display())).with_source(e)
        };
        if !fs::metadata(path).map_err(failed)?.is_dir() {
            return self.add_bytes(path, File::open(path).map_err(failed)?.take(USED));
        }
        let refused = |why| Err(Error::new(ErrorKind::BadOption, format!("{}: {why}", path.display())));
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !hidden && fs::metadata(entry.path()).is_ok_and(|about| about.is_file()) {
                files.push(entry.path());
            }
            if files.len() > MOST_FILES {
                return refused("more files than key files would be");
            }
        }
        if files.is_empty() {
            return refused("the folder of key files has no files");
        }
        files.iter().try_for_each(|file| self.add(file))
    }

    /// Adds the bytes of a reader.
    ///
    /// Returns the errors of [`KeyFiles::add`].
    fn add_bytes(&mut self, path: &Path, mut from: impl Read) -> Result<()> {
        // A key file is a secret: its bytes stay on locked pages.
        let mut piece = Key::zeroed(4096)?;
        let (mut crc, mut at) = (u32::MAX, 0);
        loop {
            let read = match from.read(piece.as_mut_bytes()) {
                Ok(0) => break,
                Ok(read) => read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    let context = format!("cannot read the key file {}", path.display());
                    return Err(Error::new(ErrorKind::Io, context).with_source(e));
                }
            };
            for &byte in &piece.as_bytes()[..read] {
                crc = step(crc, byte);
                for part in crc.to_be_bytes() {
                    for pool in [&mut self.short, &mut self.long] {
                        let len = pool.len();
                        let cell = &mut pool.as_mut_bytes()[at % len];
                        *cell = cell.wrapping_add(part);
                    }
                    at = (at + 1) % LONG;
                }
            }
        }
        if crc == u32::MAX && at == 0 {
            let context = format!("the key file {} is empty", path.display());
            return Err(Error::new(ErrorKind::BadOption, context));
        }
        self.count += 1;
        Ok(())
    }

    /// How many files were added.
    pub fn count(&self) -> usize {
        self.count
    }
}

/// CRC-32 of one byte more, without the usual inversions at both ends.
fn step(crc: u32, byte: u8) -> u32 {
    let mut crc = crc ^ u32::from(byte);
    for _ in 0..8 {
        crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
    }
    crc
}

/// The password of the key derivation.
#[derive(Debug)]
pub struct Password {
    bytes: Key,
    /// Whether TrueCrypt takes it too: a passphrase of at most 64 bytes.
    pub(super) short: bool,
}

impl Password {
    /// The passphrase's bytes; with key files the pool that passphrase and files are added up in.
    ///
    /// # Errors
    /// `WrongPassphrase` for a passphrase that no volume can have: longer than 128 bytes, or empty
    /// without key files; `Memory`.
    pub fn new(passphrase: &Key, files: &KeyFiles) -> Result<Self> {
        let wrong = |why: String| Err(Error::new(ErrorKind::WrongPassphrase, why));
        let short = passphrase.len() <= SHORT;
        if passphrase.len() > LONG {
            let len = passphrase.len();
            return wrong(format!("the passphrase has {len} bytes, and VeraCrypt takes at most {LONG}"));
        }
        if files.count == 0 {
            if passphrase.is_empty() {
                return wrong("an empty passphrase and no key file open no volume".into());
            }
            return Ok(Self { bytes: Key::new(passphrase.as_bytes())?, short });
        }
        let mut bytes = Key::new(if short { &files.short } else { &files.long }.as_bytes())?;
        for (cell, byte) in bytes.as_mut_bytes().iter_mut().zip(passphrase.as_bytes()) {
            *cell = cell.wrapping_add(*byte);
        }
        Ok(Self { bytes, short })
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.bytes.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(files: &[&[u8]], passphrase: &[u8]) -> Vec<u8> {
        let mut pool = KeyFiles::new().unwrap();
        for bytes in files {
            pool.add_bytes(Path::new("key"), *bytes).unwrap();
        }
        Password::new(&Key::new(passphrase).unwrap(), &pool).unwrap().as_bytes().to_vec()
    }

    #[test]
    fn key_files_make_the_pool_of_the_known_answers() {
        let mut want = vec![0x8f, 0xc1, 0xbb, 0xbc, 0x61, 0x7c, 0xb7, 0x92, 0xca, 0xdb, 0xbe, 0x3d];
        want.resize(64, 0);
        assert_eq!(pool(&[b"abc"], b"xyz"), want);
        let all: Vec<u8> = (0..=255).collect();
        let long = pool(&[&all], &[b'a'; 65]);
        assert_eq!(long.len(), 128);
        let digest = underseal_volume::Hash::Sha256.digest(&[&long]);
        assert_eq!(digest[..16], 0x6df7_5e9d_1171_c5a3_ef98_22fb_2623_2cba_u128.to_be_bytes());
        assert_eq!(pool(&[b"abc", &all], b"x"), pool(&[&all, b"abc"], b"x"));
    }

    #[test]
    fn a_folder_is_its_files_but_hidden_ones() {
        let folder = tempfile::tempdir().unwrap();
        let names = [("b", &b"second"[..]), ("a", b"first"), (".c", b"hidden")];
        names.iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
        fs::create_dir(folder.path().join("inner")).unwrap();
        let mut files = KeyFiles::new().unwrap();
        files.add(folder.path()).unwrap();
        assert_eq!(files.count(), 2);
        assert_eq!(
            Password::new(&Key::zeroed(0).unwrap(), &files).unwrap().as_bytes(),
            pool(&[b"first", b"second"], b"")
        );
        for refused in ["inner", "empty"] {
            let path = folder.path().join(refused);
            let _ = if refused == "empty" { fs::write(&path, b"") } else { Ok(()) };
            assert_eq!(files.add(&path).unwrap_err().kind(), ErrorKind::BadOption, "{refused}");
        }
        assert_eq!(files.add(&folder.path().join("none")).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn what_no_volume_can_have_is_a_wrong_passphrase() {
        let none = KeyFiles::new().unwrap();
        for len in [0, 129] {
            let error = Password::new(&Key::new(&vec![7; len]).unwrap(), &none).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongPassphrase);
        }
        assert!(!Password::new(&Key::new(&[7; 65]).unwrap(), &none).unwrap().short);
    }
}
