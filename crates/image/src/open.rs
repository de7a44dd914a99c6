//! How an image is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_cipher::{CipherSpec, Key, SectorSize};
use underseal_volume::plain::{self, PassphraseHash, PlainOptions};
use underseal_volume::{ActivateOptions, LockTo, ReadAt, ReencryptionLock, UnlockOptions, Volume};

use crate::layer::Layer;
use crate::lower::{Lower, LowerDevice};
use crate::traces::without_traces;
use crate::{Error, ErrorKind, Image, Result};

/// The secret that opens the volume.
pub(crate) enum Secret {
    Passphrase(Key),
    VolumeKey(Key),
}

/// A volume without a header.
struct Plain {
    options: PlainOptions,
    hash: PassphraseHash,
    key_size: usize,
}

/// How an image is opened. Passphrases and keys are copied into locked memory and wiped when the options are dropped.
#[derive(Default)]
pub struct OpenOptions {
    secret: Option<Secret>,
    header: Option<PathBuf>,
    keyslot: Option<u32>,
    writable: bool,
    allow_null: bool,
    allow_discards: bool,
    plain: Option<Plain>,
}

impl OpenOptions {
    /// Options that open an image for reading.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens with a passphrase.
    ///
    /// # Errors
    /// `Memory` when there is no locked memory for it.
    pub fn passphrase(mut self, passphrase: &[u8]) -> Result<Self> {
        self.secret = Some(Secret::Passphrase(Key::new(passphrase)?));
        Ok(self)
    }

    /// Opens with the contents of a key file, which stand for the passphrase.
    ///
    /// # Errors
    /// `Io` when the file cannot be read; `BadOption` when it is longer than 8 MiB; `Memory`.
    pub fn key_file(self, path: &Path) -> Result<Self> {
        let bytes = zeroize::Zeroizing::new(read_key_file(path)?);
        self.passphrase(&bytes)
    }

    /// Opens with the volume key itself.
    ///
    /// # Errors
    /// `Memory`.
    pub fn volume_key(mut self, key: &[u8]) -> Result<Self> {
        self.secret = Some(Secret::VolumeKey(Key::new(key)?));
        Ok(self)
    }

    /// Reads the header from another file than the data.
    #[must_use]
    pub fn header(mut self, path: impl Into<PathBuf>) -> Self {
        self.header = Some(path.into());
        self
    }

    /// Tries one keyslot only.
    #[must_use]
    pub fn keyslot(mut self, number: u32) -> Self {
        self.keyslot = Some(number);
        self
    }

    /// Allows writes. The image is locked for this program alone.
    #[must_use]
    pub fn writable(mut self, writable: bool) -> Self {
        self.writable = writable;
        self
    }

    /// Accepts a header that names `cipher_null`, which encrypts nothing.
    #[must_use]
    pub fn allow_null(mut self, allowed: bool) -> Self {
        self.allow_null = allowed;
        self
    }

    /// Passes discards to the lower device, which then shows which sectors are in use.
    #[must_use]
    pub fn allow_discards(mut self, allowed: bool) -> Self {
        self.allow_discards = allowed;
        self
    }

    /// Opens a plain volume, which has no header: a wrong cipher or key gives noise, not an error.
    ///
    /// `hash` is cryptsetup's `--hash` (`sha256`, `ripemd160:20`, `plain`), `key_size` and `sector_size` are in bytes.
    ///
    /// # Errors
    /// `BadOption`, `Unsupported` for values that are none.
    pub fn plain(mut self, cipher: &str, key_size: usize, hash: &str, sector_size: u32) -> Result<Self> {
        let cipher: CipherSpec = cipher.parse()?;
        let options =
            PlainOptions { cipher, sector_size: SectorSize::new(sector_size)?, ..Default::default() };
        if key_size > 512 {
            return Err(Error::new(ErrorKind::BadOption, format!("a key of {key_size} bytes is too long")));
        }
        self.plain = Some(Plain { options, hash: hash.parse()?, key_size });
        Ok(self)
    }

    /// Opens the image at a path, an `nbd:` or `nbds:` URI, or an `rbd:` address.
    ///
    /// # Errors
    /// `NoHeader`, `BadHeader`, `TooSmall`, `Unsupported`, `NullCipher`, `TooCostly` for the header; `WrongPassphrase`; `Busy` when
    /// another program uses the image; `BadOption` without a secret; `Io`, `Memory`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Image> {
        let path = path.as_ref();
        let open = || self.open_lower(Lower::open(path, self.writable)?);
        without_traces(open).map_err(|e| e.in_file(path))
    }

    /// Opens an image on a file or block device that is open already. The file is locked as one that is opened by its path.
    ///
    /// # Errors
    /// As [`OpenOptions::open`]; `Io` when the file is not open for writing and the image is to be.
    pub fn open_file(&self, file: std::fs::File) -> Result<Image> {
        without_traces(|| self.open_lower(Lower::file(file, self.writable)?))
    }

    /// Opens an image on a program's own device.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open_on(&self, device: Arc<dyn LowerDevice>) -> Result<Image> {
        without_traces(|| self.open_lower(Lower::custom(device)))
    }

    fn open_lower(&self, lower: Lower) -> Result<Image> {
        let secret = self
            .secret
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::BadOption, "neither a passphrase nor a key was given"))?;
        if let Some(plain) = &self.plain {
            let volume = self.open_plain(plain, secret, &lower)?;
            return Ok(Image::new(volume, lower, None, self.writable, "{\"format\":\"plain\"}".into(), None));
        }
        let on = match &self.header {
            Some(path) => Lower::open_header(path, false)?,
            None => lower.clone(),
        };
        let mut header = underseal_volume::Header::read(&on)?;
        let mut lock = None;
        if let underseal_volume::Header::Luks2(_) = header {
            // No program reencrypts the volume as if it were closed, or goes on with its reencryption, while it is
            // open here. Until now one may have.
            let take = match is_being_reencrypted(&header) {
                true => ReencryptionLock::take_turn,
                false => ReencryptionLock::take,
            };
            lock = take(header.uuid(), LockTo::Read)?;
            header = underseal_volume::Header::read(&on)?;
        }
        if self.writable && is_being_reencrypted(&header) {
            let what = "the volume is being reencrypted: finish that first (underseal reencrypt IMAGE)";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let key = unlock(&header, &on, secret, self.keyslot, self.allow_null)?;
        let layer = header.integrity_layer()?;
        if layer.is_some() && self.writable {
            let what =
                "authenticated volumes are opened here for reading only: write through `underseal open`";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let layer = layer.map(|layer| Layer::open(lower.clone(), &layer)).transpose()?;
        let options = ActivateOptions {
            detached: self.header.is_some(),
            allow_discards: self.allow_discards,
            allow_null: self.allow_null,
            over_integrity: layer.is_some(),
        };
        let size = layer.as_ref().map_or_else(|| size_of(&lower), |layer| Ok(layer.size()))?;
        let volume = header.activate(&key, size, &options)?;
        Ok(Image::new(volume, lower, layer, self.writable, crate::header::info(&header)?, lock))
    }

    fn open_plain(&self, plain: &Plain, secret: &Secret, lower: &Lower) -> Result<Volume> {
        let options = PlainOptions {
            allow_null: self.allow_null,
            allow_discards: self.allow_discards,
            ..plain.options.clone()
        };
        let size = size_of(lower)?;
        match secret {
            Secret::VolumeKey(key) => Ok(plain::activate(key, size, &options)?),
            Secret::Passphrase(passphrase) => {
                let key = plain::key_from_passphrase(passphrase, &plain.hash, plain.key_size)?;
                Ok(plain::activate(&key, size, &options)?)
            }
        }
    }
}

/// The most bytes of a key file: cryptsetup's limit.
const MAX_KEY_FILE: u64 = 8 << 20;

fn read_key_file(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let failed =
        |e| Error::new(ErrorKind::Io, format!("{}: cannot read the key file", path.display())).with_source(e);
    let file = std::fs::File::open(path).map_err(failed)?;
    let expected = file.metadata().map_err(failed)?.len().min(MAX_KEY_FILE);
    // Room for all of it at once: a vector that grows leaves copies behind.
    let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0) + 4096);
    file.take(MAX_KEY_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_KEY_FILE {
        zeroize::Zeroize::zeroize(&mut bytes);
        let what = format!("{}: a key file has at most {MAX_KEY_FILE} bytes", path.display());
        return Err(Error::new(ErrorKind::BadOption, what));
    }
    Ok(bytes)
}

fn size_of(lower: &Lower) -> Result<u64> {
    ReadAt::size(lower).map_err(|e| Error::new(ErrorKind::Io, "cannot find the size").with_source(e))
}

fn is_being_reencrypted(header: &underseal_volume::Header) -> bool {
    header.info().requirements.iter().any(|name| name.contains("reencrypt"))
}

/// The volume key that a secret opens.
pub(crate) fn unlock(
    header: &underseal_volume::Header,
    on: &Lower,
    secret: &Secret,
    slot: Option<u32>,
    allow_null: bool,
) -> Result<underseal_volume::VolumeKey> {
    let options = UnlockOptions { slot, allow_null, ..UnlockOptions::default() };
    match secret {
        Secret::Passphrase(passphrase) => Ok(header.unlock(on, passphrase, &options)?.key),
        Secret::VolumeKey(key) => Ok(header.volume_key(Key::new(key.as_bytes())?, &options)?),
    }
}
