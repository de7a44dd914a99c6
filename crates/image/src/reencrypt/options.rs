//! The options of a reencryption.

use std::path::PathBuf;

use underseal_cipher::{CipherSpec, Key, SectorSize};
use underseal_volume::reencrypt::{Mode, WantedProtection};
use underseal_volume::{Hash, Pbkdf};

use crate::header::{argon2id, pbkdf2};
use crate::setters::setters;
use crate::{Error, ErrorKind, Result};

/// The change that is made to a closed volume, or to plain data, and how. Passphrases are copied
/// into locked memory and wiped when the options are dropped.
#[derive(Debug)]
pub struct ReencryptionOptions {
    /// The kind of change; none begins nothing.
    pub(super) mode: Option<Mode>,
    pub(super) cipher: Option<String>,
    /// In bytes.
    pub(super) key_size: Option<usize>,
    /// In bytes.
    pub(super) sector_size: Option<u32>,
    pub(super) keep_key: bool,
    pub(super) protection: WantedProtection,
    pub(super) resilience_hash: Option<Hash>,
    pub(super) hotzone_size: Option<u64>,
    pub(super) reduce: Option<u64>,
    pub(super) header: Option<PathBuf>,
    pub(super) others: Vec<Key>,
    pub(super) lose_keyslots: bool,
    pub(super) force: bool,
    pub(super) pbkdf: Pbkdf,
    pub(super) label: String,
}

impl Default for ReencryptionOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ReencryptionOptions {
    /// Gives a LUKS2 volume a new random key, and the cipher and sector size that are named. A
    /// reencryption that is under way is resumed.
    pub fn new() -> Self {
        Self::to(Some(Mode::Reencrypt))
    }

    /// Encrypts plain data in place under a new LUKS2 header, with aes-xts-plain64, sectors of 512
    /// bytes and Argon2id by default. The header needs room: [`ReencryptionOptions::reduce`], or
    /// [`ReencryptionOptions::header`] with a new file. An encryption that is under way is resumed;
    /// one that was cut off before its header was there is undone first, and begins again.
    pub fn encrypt() -> Self {
        Self::to(Some(Mode::Encrypt))
    }

    /// Decrypts a LUKS2 volume in place: afterwards the image holds the plain data from its first
    /// byte on. A header in front of the data is moved to the new file that
    /// [`ReencryptionOptions::header`] names; until all is decrypted that file is the volume's
    /// header. A decryption that is under way is resumed with the same file.
    ///
    /// A start that was cut off has changed nothing yet, or has moved the header. While
    /// [`Header::open`](crate::Header::open) of the image finds a whole header, the new file is of
    /// no use: remove it, and begin again. Afterwards begin again with the file and
    /// [`ReencryptionOptions::force`].
    pub fn decrypt() -> Self {
        Self::to(Some(Mode::Decrypt))
    }

    /// Resumes what is under way, of any kind, and begins nothing. Of the other options only the
    /// header, further passphrases and the hot zone's size mean something.
    pub fn resume() -> Self {
        Self::to(None)
    }

    fn to(mode: Option<Mode>) -> Self {
        Self {
            mode,
            cipher: None,
            key_size: None,
            sector_size: None,
            keep_key: false,
            protection: WantedProtection::Enough,
            resilience_hash: None,
            hotzone_size: None,
            reduce: None,
            header: None,
            others: vec![],
            lose_keyslots: false,
            force: false,
            pbkdf: Pbkdf::argon2id(),
            label: String::new(),
        }
    }

    setters! {
        /// The new cipher in dm-crypt's form: `aes-xts-plain64`.
        cipher(options, cipher: impl Into<String>) options.cipher = Some(cipher.into());

        /// The length of the new volume key in bytes; the old one's by default, or the cipher's
        /// largest.
        key_size(options, bytes: usize) options.key_size = Some(bytes);

        /// The new size of an encryption sector, 512 to 4096 bytes. Larger sectors than the blocks
        /// of the file system on the volume are refused; where that is not known, unless forced.
        sector_size(options, bytes: u32) options.sector_size = Some(bytes);

        /// Keeps the volume's key: only the cipher or the sector size changes.
        keep_key(options, keep: bool) options.keep_key = keep;
    }

    /// The protection of a step that a crash interrupts: `checksum`, `journal`, or `none`, with
    /// which a crash loses data. By default checksums where they are enough. Data that move are
    /// protected by their source.
    ///
    /// # Errors
    /// `BadOption` for another name.
    pub fn resilience(mut self, name: &str) -> Result<Self> {
        self.protection = match name {
            "checksum" => WantedProtection::Checksum,
            "journal" => WantedProtection::Journal,
            "none" => WantedProtection::None,
            _ => return Err(bad(format!("resilience {name:?} is none of checksum, journal and none"))),
        };
        Ok(self)
    }

    /// The hash of the checksums: `sha256` by default.
    ///
    /// # Errors
    /// `Unsupported` for another name.
    pub fn resilience_hash(mut self, name: &str) -> Result<Self> {
        self.resilience_hash = Some(name.parse()?);
        Ok(self)
    }

    setters! {
        /// The most bytes of a step: 64 MiB by default, or as many as the header has room to
        /// protect.
        hotzone_size(options, bytes: u64) options.hotzone_size = Some(bytes);

        /// Gives up the last bytes of the image for a header in front of the data, which move by
        /// half of that: what lies there is lost, so make the file system smaller before. One that
        /// reaches into them by its superblock is refused without [`ReencryptionOptions::force`].
        /// Of a volume that has a header it gives the header more room.
        reduce(options, bytes: u64) options.reduce = Some(bytes);

        /// The header is in this file; for an encryption, or the decryption of a volume with a
        /// header in front, a new one.
        header(options, path: impl Into<PathBuf>) options.header = Some(path.into());
    }

    /// Keeps another keyslot, which this passphrase opens. A new key needs the passphrase of each
    /// keyslot that is to open the volume afterwards.
    ///
    /// # Errors
    /// `Memory`.
    pub fn keep_passphrase(mut self, passphrase: &[u8]) -> Result<Self> {
        self.others.push(Key::new(passphrase)?);
        Ok(self)
    }

    setters! {
        /// Gives up the keyslots whose passphrases are not given: they open nothing afterwards.
        lose_keyslots(options, lose: bool) options.lose_keyslots = lose;

        /// Makes sectors larger although nothing is known of what is on the volume, decrypts over
        /// the start of an image that has no header any more, and encrypts data that are a
        /// BitLocker or FileVault 2 volume, or a whole disk with a partition table.
        force(options, force: bool) options.force = force;

        /// The keyslot of [`ReencryptionOptions::encrypt`]: PBKDF2 with a number of rounds, at
        /// least 1000.
        pbkdf2(options, rounds: u32) options.pbkdf = pbkdf2(rounds);

        /// The keyslot of [`ReencryptionOptions::encrypt`]: Argon2id with a number of passes,
        /// memory in KiB and threads.
        argon2id(options, passes: u32, memory_kib: u32, threads: u32)
            options.pbkdf = argon2id(passes, memory_kib, threads);

        /// The label of the header of [`ReencryptionOptions::encrypt`], of up to 47 bytes.
        label(options, label: impl Into<String>) options.label = label.into();
    }

    /// Refuses options that do not fit each other.
    pub(super) fn check(&self) -> Result<()> {
        let changes = self.cipher.is_some() || self.key_size.is_some() || self.sector_size.is_some();
        let why = match self.mode {
            Some(Mode::Decrypt) if changes || self.keep_key || self.reduce.is_some() => {
                "decrypted data have no cipher, key, sector size or header"
            }
            Some(Mode::Encrypt) if self.keep_key => "plain data have no key that could be kept",
            Some(Mode::Encrypt) if self.header.is_some() && self.reduce.is_some() => {
                "a header in a file of its own takes no room from the data"
            }
            Some(Mode::Reencrypt) if self.keep_key && self.key_size.is_some() => {
                "the key that is kept has the size that it has"
            }
            _ => return Ok(()),
        };
        Err(bad(why.into()))
    }

    pub(super) fn new_cipher(&self) -> Result<Option<CipherSpec>> {
        Ok(self.cipher.as_deref().map(str::parse).transpose()?)
    }

    pub(super) fn new_sectors(&self) -> Result<Option<SectorSize>> {
        Ok(self.sector_size.map(SectorSize::new).transpose()?)
    }
}

pub(super) fn bad(what: String) -> Error {
    Error::new(ErrorKind::BadOption, what)
}
