//! Making new headers.

use underseal_cipher::{CipherSpec, InOutBuf, Key, SectorSize};
use uuid::Uuid;

use crate::kdf::benchmark::Pbkdf;
use crate::{CipherParameters, Error, ErrorKind, Hash, Header, IntegrityLayer, Result, Target, VolumeKey};
use crate::{luks1, luks2, unlock};

mod write;

pub use write::NewHeader;
pub(crate) use write::{Copies, Parts, forget_old_headers, forget_second_copies};

/// The version of LUKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 1: PBKDF2 and 512-byte sectors only, eight keyslots, one copy of the header.
    Luks1,
    /// Version 2.
    Luks2,
}

/// The parameters of a new header. [`FormatOptions::luks2`] and [`FormatOptions::luks1`] return
/// cryptsetup's defaults.
#[derive(Debug)]
pub struct FormatOptions {
    /// The version of LUKS.
    pub version: Version,
    /// The cipher of the data.
    pub cipher: CipherSpec,
    /// The length of the volume key in bytes; `None` for the cipher's largest.
    pub key_size: Option<usize>,
    /// The sector size, in LUKS2; `None` for 4096 where the data's size and the cipher permit it,
    /// else 512.
    pub sector_size: Option<SectorSize>,
    /// The hash of anti-forensic splitter and digest.
    pub hash: Hash,
    /// The key derivation of the passphrase.
    pub pbkdf: Pbkdf,
    /// The UUID; `None` for a random one.
    pub uuid: Option<Uuid>,
    /// The label of LUKS2: up to 47 bytes.
    pub label: String,
    /// The subsystem of LUKS2: up to 47 bytes.
    pub subsystem: String,
    /// True for a detached header. Its file is extended as needed.
    pub detached: bool,
    /// The start of the data on their device, in bytes: a multiple of 4096 (LUKS1: of 512). `None`
    /// leaves room for the header, 16 MiB (LUKS1: its size, in whole MiB); with a detached header,
    /// `None` is 0.
    pub data_offset: Option<u64>,
    /// LUKS2: the size of one header copy: a power of two from 16 KiB to 4 MiB.
    pub metadata_size: u64,
    /// LUKS2: the size of the area for keyslots; `None` takes all the room before the data.
    pub keyslots_size: Option<u64>,
    /// The number of the keyslot.
    pub keyslot: u32,
    /// LUKS2: the cipher of the keyslot's area, and the length of its key; `None` takes the data's
    /// cipher.
    pub keyslot_cipher: Option<(CipherSpec, Option<usize>)>,
    /// The volume key; `None` for a random one.
    pub volume_key: Option<Key>,
    /// Accepts `cipher_null`, which encrypts nothing.
    pub allow_null: bool,
    /// LUKS2: the tags or IVs that are kept beside each sector.
    pub integrity: Option<NewIntegrity>,
}

/// The tags or IVs of a new volume. They need [a layer](Header::integrity_layer) below the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewIntegrity {
    /// The type, as LUKS2 names it: `aead`, `poly1305`, `hmac(sha256)`, .., or `none` for IVs only.
    pub kind: String,
    /// The bytes of the key that belong to the MAC; `None` for its digest's size.
    pub key_size: Option<usize>,
    /// True when writes go through the layer's journal, unless an open chooses otherwise.
    pub has_journal: bool,
}

impl FormatOptions {
    /// The defaults of LUKS2: aes-xts-plain64 with a key of 64 bytes, Argon2id.
    pub fn luks2() -> Self {
        Self {
            version: Version::Luks2,
            cipher: "aes-xts-plain64".parse().expect("a constant that parses"),
            key_size: None,
            sector_size: None,
            hash: Hash::Sha256,
            pbkdf: Pbkdf::argon2id(),
            uuid: None,
            label: String::new(),
            subsystem: String::new(),
            detached: false,
            data_offset: None,
            metadata_size: 16 << 10,
            keyslots_size: None,
            keyslot: 0,
            keyslot_cipher: None,
            volume_key: None,
            allow_null: false,
            integrity: None,
        }
    }

    /// The defaults of LUKS1: aes-xts-plain64 with a key of 64 bytes, PBKDF2.
    pub fn luks1() -> Self {
        Self { version: Version::Luks1, pbkdf: Pbkdf::pbkdf2(), ..Self::luks2() }
    }

    /// Returns the length of the volume key in bytes: the cipher's part, then the MAC's.
    ///
    /// # Errors
    /// `BadOption` for an impossible cipher or integrity.
    pub fn key_len(&self) -> Result<usize> {
        let (spec, mac) = match &self.integrity {
            Some(wanted) => luks2::mac_key(&self.cipher, wanted)?,
            None => (self.cipher.clone(), 0),
        };
        let sizes = underseal_cipher::key_sizes(&spec)
            .map_err(|e| bad(format!("cannot use cipher {}", self.cipher)).with_source(e))?;
        let best = sizes.last().copied();
        Ok(self.key_size.or(best).unwrap_or(0) + mac)
    }

    /// Returns the start of the data on their device, in bytes.
    ///
    /// # Errors
    /// `BadOption` for an impossible layout.
    pub fn data_begins(&self) -> Result<u64> {
        let len = self.volume_key.as_ref().map_or_else(|| self.key_len(), |key| Ok(key.len()))?;
        match self.version {
            Version::Luks1 => luks1::data_begins(self, len),
            Version::Luks2 => luks2::data_begins(self, len),
        }
    }

    /// Returns the layer that the volume needs below it.
    ///
    /// # Errors
    /// `BadOption` for an impossible layout or integrity.
    pub fn integrity_layer(&self) -> Result<Option<IntegrityLayer>> {
        let Some(wanted) = self.integrity.as_ref().filter(|_| self.version == Version::Luks2) else {
            return Ok(None);
        };
        Ok(Some(IntegrityLayer {
            offset: self.data_begins()?,
            tag_size: luks2::tag_size(&self.cipher, wanted)?,
            sector_size: self.sector_size.unwrap_or(SectorSize::S4096),
            has_journal: wanted.has_journal,
        }))
    }

    /// Returns the volume key: the given one, or a new one of the chosen or largest length.
    pub(crate) fn key(&mut self) -> Result<Key> {
        self.key_of(&self.cipher.clone(), 0)
    }

    /// Returns the key for this cipher, with `mac` bytes for a MAC at its end.
    pub(crate) fn key_of(&mut self, cipher: &CipherSpec, mac: usize) -> Result<Key> {
        unlock::allow_null(cipher, self.allow_null)?;
        let sizes = underseal_cipher::key_sizes(cipher)
            .map_err(|e| bad(format!("cannot use cipher {}", self.cipher)).with_source(e))?;
        // All volume keys of length 0 have the same digest.
        let best = sizes.iter().copied().rfind(|&size| size > 0);
        let given = self.volume_key.take();
        let own = given.as_ref().map(|key| key.len().saturating_sub(mac));
        let wanted = self.key_size.or(best).unwrap_or(0);
        if let Some(given) = given.as_ref().filter(|_| self.integrity.is_some())
            && given.len() != wanted + mac
        {
            // Only the length tells where the MAC's part begins: a shorter key would silently
            // weaken the cipher.
            let (bits, own, mac) = (given.len() * 8, wanted * 8, mac * 8);
            let why = format!(
                "a key of {bits} bits does not fit {}: want {own} bits and {mac} for the MAC",
                self.cipher
            );
            return Err(bad(why));
        }
        let len = own.or(self.key_size).or(best).unwrap_or(0);
        if !sizes.contains(&len) || len == 0 || self.key_size.is_some_and(|size| size != len) {
            let sizes = sizes.iter().filter(|&&size| size > 0).map(|size| (size * 8).to_string());
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            return Err(bad(format!("a key of {} bits does not fit {}: {sizes}", len * 8, self.cipher)));
        }
        given.map_or_else(|| crate::random::key(len + mac), Ok)
    }

    /// Returns the UUID's text.
    pub(crate) fn uuid_text(&self) -> Result<String> {
        let uuid = match self.uuid {
            Some(uuid) => uuid,
            None => uuid::Builder::from_random_bytes(crate::random::bytes()?).into_uuid(),
        };
        Ok(uuid.hyphenated().to_string())
    }
}

/// Makes a new header with one keyslot and writes it: [`NewHeader::prepare`], then
/// [`NewHeader::write`].
///
/// `to` holds the header, and unless `options.detached` the data, too; `data_size` is the size in
/// bytes of the data's file or device.
///
/// # Errors
/// The kinds of both. After an error of the first, nothing is changed.
pub fn format(
    to: &(impl Target + ?Sized),
    data_size: u64,
    passphrase: &Key,
    options: FormatOptions,
) -> Result<(Header, VolumeKey)> {
    let new = NewHeader::prepare(data_size, passphrase, options)?;
    let header = new.write(to)?;
    Ok((header, new.into_key()))
}

pub(crate) fn bad(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, why)
}

/// Builds a cipher as an open will, and tests it on one sector: a cipher that could not be opened,
/// or would read noise, is refused now.
pub(crate) fn try_cipher(spec: &CipherSpec, key: &Key, sector_size: SectorSize) -> Result<()> {
    try_recipe(&CipherParameters::new(spec, sector_size, key.len()), key)
}

/// Tests a cipher that may keep tags or IVs beside its sectors.
pub(crate) fn try_recipe(cipher_parameters: &CipherParameters, key: &Key) -> Result<()> {
    let CipherParameters { cipher: spec, sector_size, .. } = cipher_parameters;
    let context = format!("cannot use cipher {spec} with sectors of {} bytes", sector_size.bytes());
    let built = match cipher_parameters.integrity {
        None => underseal_cipher::build(spec, key, *sector_size),
        Some(_) => underseal_cipher::build_with(&cipher_parameters.options(key)),
    };
    let cipher = built.map_err(|e| {
        let kind = match e.kind() {
            underseal_cipher::ErrorKind::Memory => ErrorKind::Memory,
            _ => ErrorKind::BadOption,
        };
        Error::new(kind, &context).with_source(e)
    })?;
    let plain: Vec<u8> = (0..=u8::MAX).cycle().take(sector_size.bytes()).collect();
    let (mut sector, mut tag) = (plain.clone(), vec![0; cipher.tag_size()]);
    let tried = cipher
        .seal(8, InOutBuf::from(&mut sector[..]), &mut tag)
        .and_then(|()| cipher.open(8, InOutBuf::from(&mut sector[..]), &tag));
    // Some ciphers that the kernel accepts fail: lmk in modes other than cbc, for example.
    if tried.is_ok() && sector == plain {
        return Ok(());
    }
    Err(bad(format!("{context}: it does not read back what it wrote")))
}

/// Checks that the data begin before their device ends.
pub(crate) fn leaves_data(data_size: u64, data_offset: u64) -> Result<()> {
    if data_size > data_offset {
        return Ok(());
    }
    let context = format!("{data_size} bytes leave no data after byte {data_offset}");
    Err(Error::new(ErrorKind::TooSmall, context))
}

#[cfg(test)]
mod tests;
