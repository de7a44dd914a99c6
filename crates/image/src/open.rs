//! How an image is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_cipher::{CipherSpec, Key, SectorSize};
use underseal_device::lock_header;
use underseal_formats::{Format, partition};
use underseal_volume::plain::{self, PassphraseHash, PlainOptions};
use underseal_volume::{ActivateOptions, LockTo, ReadAt, ReencryptionLock, UnlockOptions, Volume};

use crate::foreign::{self, TcryptOptions};
use crate::layer::Layer;
use crate::lower::{Lower, LowerDevice};
use crate::setters::setters;
use crate::traces::without_traces;
use crate::{Error, ErrorKind, Image, Result};

/// The secret that opens the volume.
pub(crate) enum Secret {
    Passphrase(Key),
    VolumeKey(Key),
}

/// The type of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Type {
    /// The format whose header the image has.
    #[default]
    Any,
    Luks,
    Plain,
    Tcrypt,
    Bitlk,
    Fvault2,
    LoopAes,
}

impl Type {
    const NAMED: [(Self, &'static str); 6] = [
        (Self::Luks, "luks"),
        (Self::Plain, "plain"),
        (Self::Tcrypt, "tcrypt"),
        (Self::Bitlk, "bitlk"),
        (Self::Fvault2, "fvault2"),
        (Self::LoopAes, "loopaes"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::NAMED.into_iter().find(|(kind, _)| *kind == self).map_or("luks", |(_, name)| name)
    }

    pub(crate) fn named(name: &str) -> Result<Self> {
        let found = Self::NAMED.into_iter().find(|(_, known)| *known == name);
        let none = || Error::new(ErrorKind::BadOption, format!("no type of volumes has the name {name:?}"));
        found.map(|(kind, _)| kind).ok_or_else(none)
    }
}

/// How a volume without a header lies on its device.
#[derive(Debug, Default)]
pub(crate) struct HeaderlessLayout {
    pub(crate) cipher: Option<String>,
    /// In bytes.
    pub(crate) key_size: Option<usize>,
    pub(crate) hash: Option<String>,
    /// In bytes.
    pub(crate) sector_size: Option<u32>,
    /// In sectors of 512 bytes.
    pub(crate) offset: Option<u64>,
    pub(crate) skip: Option<u64>,
}

/// A volume without a header.
struct Plain {
    options: PlainOptions,
    hash: PassphraseHash,
    key_size: usize,
}

/// How an image is opened. Passphrases and keys are copied into locked memory and wiped when the
/// options are dropped.
#[derive(Default)]
pub struct OpenOptions {
    pub(crate) passphrase: Option<Key>,
    pub(crate) volume_key: Option<Key>,
    pub(crate) key_files: Vec<PathBuf>,
    header: Option<PathBuf>,
    keyslot: Option<u32>,
    writable: bool,
    allow_null: bool,
    allow_discards: bool,
    pub(crate) kind: Type,
    pub(crate) partition: Option<u32>,
    pub(crate) others: Vec<PathBuf>,
    pub(crate) layout: HeaderlessLayout,
    pub(crate) tcrypt: TcryptOptions,
    /// The names of the options that were set by name.
    pub(crate) asked: Vec<String>,
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
        self.passphrase = Some(Key::new(passphrase)?);
        Ok(self)
    }

    /// Opens with a key file, which is read when the image is opened.
    ///
    /// Of LUKS and plain volumes its contents stand for the passphrase. Of BitLocker it is a
    /// startup key or holds the password; of FileVault 2 it holds the passphrase, or is
    /// `EncryptedRoot.plist.wipekey` and goes with one; of loop-AES it is the key file; of
    /// TrueCrypt and VeraCrypt it goes with the passphrase, and there may be several.
    ///
    /// # Errors
    /// `Io` when the file is not there.
    pub fn key_file(mut self, path: &Path) -> Result<Self> {
        std::fs::metadata(path).map_err(|e| unread(path, e))?;
        self.key_files.push(path.to_owned());
        Ok(self)
    }

    /// Opens with the volume key itself.
    ///
    /// # Errors
    /// `Memory`.
    pub fn volume_key(mut self, key: &[u8]) -> Result<Self> {
        self.volume_key = Some(Key::new(key)?);
        Ok(self)
    }

    setters! {
        /// Reads the header from another file than the data.
        header(options, path: impl Into<PathBuf>) options.header = Some(path.into());

        /// Tries one keyslot only.
        keyslot(options, number: u32) options.keyslot = Some(number);

        /// Allows writes. The image is locked for this program alone.
        writable(options, writable: bool) options.writable = writable;

        /// Accepts a header that names `cipher_null`, which encrypts nothing.
        allow_null(options, allowed: bool) options.allow_null = allowed;

        /// Passes discards to the lower device, which then shows which sectors are in use.
        allow_discards(options, allowed: bool) options.allow_discards = allowed;
    }

    /// Opens a plain volume, which has no header: a wrong cipher or key gives noise, not an error.
    ///
    /// `hash` is cryptsetup's `--hash` (`sha256`, `ripemd160:20`, `plain`), `key_size` and
    /// `sector_size` are in bytes.
    ///
    /// # Errors
    /// `BadOption`, `Unsupported` for values that are none.
    pub fn plain(mut self, cipher: &str, key_size: usize, hash: &str, sector_size: u32) -> Result<Self> {
        self.kind = Type::Plain;
        self.layout = HeaderlessLayout {
            cipher: Some(cipher.into()),
            key_size: Some(key_size),
            hash: Some(hash.into()),
            sector_size: Some(sector_size),
            ..self.layout
        };
        self.plain_layout()?;
        Ok(self)
    }

    /// Opens a volume of TrueCrypt or VeraCrypt, which has no visible header.
    #[must_use]
    pub fn tcrypt(mut self, options: TcryptOptions) -> Self {
        (self.kind, self.tcrypt) = (Type::Tcrypt, options);
        self
    }

    /// Opens a BitLocker volume, and nothing else. Without this a volume is recognised by its
    /// header.
    #[must_use]
    pub fn bitlk(mut self) -> Self {
        self.kind = Type::Bitlk;
        self
    }

    /// Opens a FileVault 2 volume, and nothing else; `others` are its further disks, in any order.
    #[must_use]
    pub fn fvault2(mut self, others: impl IntoIterator<Item = PathBuf>) -> Self {
        (self.kind, self.others) = (Type::Fvault2, others.into_iter().collect());
        self
    }

    /// Opens a volume of loop-AES, which has no header, with its key file. The size of its keys,
    /// and what else is not cryptsetup's default, are options that [`OpenOptions::set`] sets by
    /// name. A wrong key file gives noise, not an error.
    #[must_use]
    pub fn loopaes(mut self) -> Self {
        self.kind = Type::LoopAes;
        self
    }

    setters! {
        /// Opens the volume in a partition of the image, by its number. For an encrypted system of
        /// TrueCrypt or VeraCrypt, whose header is the disk's, opens that partition of it.
        partition(options, number: u32) options.partition = Some(number);
    }

    /// Opens the image at a path, an `nbd:` or `nbds:` URI, or an `rbd:` address.
    ///
    /// # Errors
    /// `NoHeader`, `BadHeader`, `TooSmall`, `Unsupported`, `NullCipher`, `TooCostly` for the
    /// header; `WrongPassphrase`; `Busy` when another program uses the image; `BadOption` without a
    /// secret; `Io`, `Memory`.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Image> {
        let path = path.as_ref();
        without_traces(|| self.open_lower(Lower::open(path, self.writable)?)).map_err(|e| e.in_file(path))
    }

    /// Opens an image on a file or block device that is open already. The file is locked as one
    /// that is opened by its path.
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
        without_traces(|| self.open_lower(Lower::custom(device, self.writable)?))
    }

    fn open_lower(&self, disk: Lower) -> Result<Image> {
        let part = self.partition.map(|number| partition(&disk, number)).transpose()?;
        let kind = self.kind_of(&foreign::on_part(&disk, part.clone()))?;
        self.check_names(kind)?;
        match kind {
            Type::Tcrypt => self.open_foreign(Format::Tcrypt, disk, part),
            Type::Bitlk => self.open_foreign(Format::Bitlk, disk, part),
            Type::Fvault2 => self.open_foreign(Format::Fvault2, disk, part),
            Type::LoopAes => self.open_foreign(Format::Loopaes, disk, part),
            Type::Plain => {
                let lower = foreign::on_part(&disk, part);
                let volume = self.open_plain(&self.plain_layout()?, &self.secret()?, &lower)?;
                let info = "{\"format\":\"plain\"}".into();
                Ok(Image::new(volume, vec![lower], None, self.writable, info, None))
            }
            Type::Any | Type::Luks => self.open_luks(foreign::on_part(&disk, part)),
        }
    }

    /// The requested type, or the type whose mark the image has.
    fn kind_of(&self, on: &Lower) -> Result<Type> {
        if self.kind != Type::Any || self.header.is_some() {
            return Ok(self.kind);
        }
        match Format::detect(on) {
            Ok(Some(Format::Bitlk)) => Ok(Type::Bitlk),
            Ok(Some(Format::Fvault2)) => Ok(Type::Fvault2),
            // Unreadable bytes may lie outside of a LUKS volume's header, which has two copies.
            _ => Ok(Type::Any),
        }
    }

    /// The one secret of a LUKS or plain volume.
    fn secret(&self) -> Result<Secret> {
        let bad = |what: &str| Error::new(ErrorKind::BadOption, what);
        match (&self.passphrase, &self.volume_key, self.key_file_bytes()?) {
            (Some(key), None, None) => Ok(Secret::Passphrase(Key::new(key.as_bytes())?)),
            (None, Some(key), None) => Ok(Secret::VolumeKey(Key::new(key.as_bytes())?)),
            (None, None, Some(bytes)) => Ok(Secret::Passphrase(bytes)),
            (None, None, None) => Err(no_secret()),
            _ => Err(bad("several of passphrase, volume key and key file were given: one opens the volume")),
        }
    }

    /// The contents of the only key file.
    pub(crate) fn key_file_bytes(&self) -> Result<Option<Key>> {
        match &self.key_files[..] {
            [] => Ok(None),
            [path] => {
                let bytes = zeroize::Zeroizing::new(read_key_file(path)?);
                Ok(Some(Key::new(&bytes)?))
            }
            _ => Err(Error::new(ErrorKind::BadOption, "several key files are for TrueCrypt and VeraCrypt")),
        }
    }

    fn open_foreign(&self, format: Format, disk: Lower, part: Option<std::ops::Range<u64>>) -> Result<Image> {
        let bad = |what: &str| Error::new(ErrorKind::BadOption, what);
        if self.header.is_some() || self.keyslot.is_some() {
            return Err(bad("a header apart and keyslots are for LUKS volumes"));
        }
        if self.allow_discards && self.tcrypt.protects() {
            return Err(bad("discards show which parts of the outer volume are in use"));
        }
        if !self.others.is_empty() && format != Format::Fvault2 {
            return Err(bad("several images are for FileVault 2 volumes"));
        }
        let mut lower = vec![];
        for path in &self.others {
            let other = Lower::open(path, self.writable).map_err(|e| e.in_file(path))?;
            let range = self.partition.map(|number| partition(&other, number)).transpose()?;
            lower.push(foreign::on_part(&other, range));
        }
        let opened = foreign::open(self, format, (&disk, part.clone()), &lower)?;
        if let (true, Some(why)) = (self.writable, opened.read_only) {
            return Err(Error::new(ErrorKind::Unsupported, format!("the volume is read-only: {why}")));
        }
        let is_system = format == Format::Tcrypt && self.tcrypt.system;
        let first = if is_system { disk } else { foreign::on_part(&disk, part) };
        lower.insert(0, first);
        let volume = opened.volume.with_discards(self.allow_discards);
        let info = crate::header::json(&opened.facts)?;
        Ok(Image::new(volume, lower, None, self.writable, info, None).with_guards(opened.guards))
    }

    fn open_luks(&self, lower: Lower) -> Result<Image> {
        let secret = &self.secret()?;
        let on = match &self.header {
            Some(path) => match Lower::open_header(path, self.writable) {
                // A header that this user may read only.
                Err(_) if self.writable => Lower::open_header(path, false)?,
                on => on?,
            },
            None => lower.clone(),
        };
        // The lock of the image does not exclude programs that would make another volume of the
        // header alone.
        let is_apart = self.header.is_some() && !on.is_same_file(&lower);
        let detached = on.local().filter(|_| is_apart).map(lock_header).transpose()?;
        let mut header = underseal_volume::Header::read(&on)?;
        let mut lock = None;
        if let underseal_volume::Header::Luks2(_) = header {
            // No program reencrypts the volume as if it were closed, or goes on with its
            // reencryption, while it is open here. Until now one may have.
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
        if let (underseal_volume::Header::Luks2(luks2), true) = (&header, self.writable) {
            // cryptsetup takes the lock only after it has moved data over the header, and by the
            // UUID that the header has then.
            lower.expect_header(luks2.copies(), self.header.as_ref().map(|_| &on))?;
        }
        let (key, slot) = unlock(&header, &on, secret, self.keyslot, self.allow_null)?;
        let layer = header.integrity_layer()?;
        let layer = layer.map(|layer| Layer::open(lower.clone(), &layer, self.writable)).transpose()?;
        let options = ActivateOptions {
            detached: self.header.is_some(),
            allow_discards: self.allow_discards,
            allow_null: self.allow_null,
            over_integrity: layer.is_some(),
        };
        let size = layer.as_ref().map_or_else(|| size_of(&lower), Layer::size)?;
        let volume = header.activate(&key, size, &options)?;
        let info = crate::header::info(&header)?;
        let image = Image::new(volume, vec![lower], layer, self.writable, info, lock);
        Ok(image.with_keyslot(slot).with_header(detached.unwrap_or_default()))
    }

    /// The layout of a plain volume, with the defaults of cryptsetup 2.7.
    fn plain_layout(&self) -> Result<Plain> {
        let HeaderlessLayout { cipher, key_size, hash, sector_size, offset, skip } = &self.layout;
        let cipher: CipherSpec = cipher.as_deref().unwrap_or("aes-xts-plain64").parse()?;
        let (key_size, offset) = (key_size.unwrap_or(32), offset.unwrap_or(0));
        let bad = |what: String| Error::new(ErrorKind::BadOption, what);
        if key_size > 512 {
            return Err(bad(format!("a key of {key_size} bytes is too long")));
        }
        let beyond = || bad(format!("offset {offset} is beyond any device"));
        let options = PlainOptions {
            cipher,
            sector_size: SectorSize::new(sector_size.unwrap_or(512))?,
            offset: offset.checked_mul(512).ok_or_else(beyond)?,
            iv_offset: skip.unwrap_or(0),
            ..Default::default()
        };
        let hash = hash.as_deref().unwrap_or("sha256").parse()?;
        Ok(Plain { options, hash, key_size })
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

pub(crate) fn no_secret() -> Error {
    Error::new(ErrorKind::BadOption, "neither a passphrase nor a key was given")
}

fn unread(path: &Path, e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{}: cannot read the key file", path.display())).with_source(e)
}

/// The most bytes of a key file: cryptsetup's limit.
const MAX_KEY_FILE: u64 = 8 << 20;

fn read_key_file(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let failed = |e| unread(path, e);
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

pub(crate) fn size_of(lower: &Lower) -> Result<u64> {
    ReadAt::size(lower).map_err(|e| Error::new(ErrorKind::Io, "cannot find the size").with_source(e))
}

fn is_being_reencrypted(header: &underseal_volume::Header) -> bool {
    header.info().requirements.iter().any(|name| name.contains("reencrypt"))
}

/// The volume key that a secret opens, and the number of the keyslot that held it.
pub(crate) fn unlock(
    header: &underseal_volume::Header,
    on: &Lower,
    secret: &Secret,
    slot: Option<u32>,
    allow_null: bool,
) -> Result<(underseal_volume::VolumeKey, Option<u32>)> {
    let options = UnlockOptions { slot, allow_null, ..UnlockOptions::default() };
    match secret {
        Secret::Passphrase(passphrase) => {
            let unlocked = header.unlock(on, passphrase, &options)?;
            Ok((unlocked.key, Some(unlocked.slot)))
        }
        Secret::VolumeKey(key) => Ok((header.volume_key(Key::new(key.as_bytes())?, &options)?, None)),
    }
}
