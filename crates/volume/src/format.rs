//! Making new headers.

use std::fs::File;
use std::path::Path;

use underseal_cipher::{CipherSpec, Key, SectorSize};
use uuid::Uuid;

use crate::kdf::benchmark::Pbkdf;
use crate::lock::HeaderLock;
use crate::storage::Target;
use crate::{Error, ErrorKind, Hash, Header, Result, VolumeKey, luks1, luks2, storage, unlock};

/// Which LUKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Version 1: PBKDF2 and 512-byte sectors only, eight keyslots, one copy of the header.
    Luks1,
    /// Version 2.
    Luks2,
}

/// What a new header says. [`FormatOptions::luks2`] and [`FormatOptions::luks1`] give cryptsetup's defaults.
#[derive(Debug)]
pub struct FormatOptions {
    /// Which LUKS.
    pub version: Version,
    /// The cipher of the data.
    pub cipher: CipherSpec,
    /// The length of the volume key in bytes; none takes the cipher's largest.
    pub key_size: Option<usize>,
    /// Bytes a sector, in LUKS2; none takes 4096 where the data's size allows it, else 512.
    pub sector_size: Option<SectorSize>,
    /// The hash of anti-forensic splitter and digest.
    pub hash: Hash,
    /// How the passphrase becomes a key.
    pub pbkdf: Pbkdf,
    /// The UUID; none makes a random one.
    pub uuid: Option<Uuid>,
    /// LUKS2: up to 47 bytes.
    pub label: String,
    /// LUKS2: up to 47 bytes.
    pub subsystem: String,
    /// The header gets a file of its own. That file is made as long as it must be.
    pub detached: bool,
    /// Where the data begins on its device, in bytes: a multiple of 4096 (LUKS1: of 512). None leaves room for the
    /// header, 16 MiB (LUKS1: what it needs, in whole MiB); when detached, none is 0.
    pub data_offset: Option<u64>,
    /// LUKS2: the size of one header copy: a power of two from 16 KiB to 4 MiB.
    pub metadata_size: u64,
    /// LUKS2: the size of the area for keyslots; none takes what is left before the data.
    pub keyslots_size: Option<u64>,
    /// The volume key; none makes a random one.
    pub volume_key: Option<Key>,
    /// Accepts `cipher_null`, which encrypts nothing.
    pub allow_null: bool,
}

impl FormatOptions {
    /// LUKS2: aes-xts-plain64 with a key of 64 bytes, Argon2id.
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
            volume_key: None,
            allow_null: false,
        }
    }

    /// LUKS1: aes-xts-plain64 with a key of 64 bytes, PBKDF2.
    pub fn luks1() -> Self {
        Self { version: Version::Luks1, pbkdf: Pbkdf::pbkdf2(), ..Self::luks2() }
    }

    /// The volume key: the given one, or a new one of the chosen or best length.
    pub(crate) fn key(&mut self) -> Result<Key> {
        unlock::allow_null(&self.cipher, self.allow_null)?;
        let sizes = underseal_cipher::key_sizes(&self.cipher)
            .map_err(|e| bad(format!("cannot use cipher {}", self.cipher)).with_source(e))?;
        // A volume key of no bytes could not be told from another by any digest.
        let best = sizes.iter().copied().rfind(|&size| size > 0);
        let given = self.volume_key.take();
        let len = given.as_ref().map(Key::len).or(self.key_size).or(best).unwrap_or(0);
        if !sizes.contains(&len) || len == 0 || self.key_size.is_some_and(|size| size != len) {
            let sizes = sizes.iter().filter(|&&size| size > 0).map(|size| (size * 8).to_string());
            let sizes = sizes.collect::<Vec<_>>().join(", ");
            return Err(bad(format!("a key of {} bits does not fit {}: {sizes}", len * 8, self.cipher)));
        }
        given.map_or_else(|| crate::random::key(len), Ok)
    }

    /// The UUID's text.
    pub(crate) fn uuid_text(&self) -> Result<String> {
        let uuid = match self.uuid {
            Some(uuid) => uuid,
            None => uuid::Builder::from_random_bytes(crate::random::bytes()?).into_uuid(),
        };
        Ok(uuid.hyphenated().to_string())
    }
}

/// Writes a new header with one keyslot, and gives back what it wrote and the volume key.
///
/// `file` holds the header, and unless `options.detached` the data too; `data_size` is the size in bytes of the file
/// or device that holds the data. Whatever header was there before is gone; the data is left alone. A crash on the way
/// leaves no header or a whole one: keyslots are on disk before the header is.
///
/// # Errors
/// `BadOption` when the options do not fit each other, `TooSmall` when the header does not fit before the data's
/// end, `NullCipher`, `Io`, `Memory`.
pub fn format(
    file: &File,
    name: &Path,
    data_size: u64,
    passphrase: &Key,
    options: FormatOptions,
) -> Result<(Header, VolumeKey)> {
    let made = || {
        let _lock = HeaderLock::exclusive(file)?;
        let key = format_unlocked(file, data_size, passphrase, options)?;
        Ok((Header::parse(file)?, key))
    };
    made().map_err(|e: Error| e.in_file(name))
}

/// As [`format`](fn@format), on what nobody else can lock: a device that is no file.
///
/// # Errors
/// As [`format`](fn@format), without the name.
pub fn format_on(
    to: &impl Target,
    data_size: u64,
    passphrase: &Key,
    options: FormatOptions,
) -> Result<(Header, VolumeKey)> {
    let key = format_unlocked(to, data_size, passphrase, options)?;
    Ok((Header::parse(to)?, key))
}

fn format_unlocked(
    to: &impl Target,
    data_size: u64,
    passphrase: &Key,
    options: FormatOptions,
) -> Result<VolumeKey> {
    match options.version {
        Version::Luks1 => luks1::format(to, data_size, passphrase, options),
        Version::Luks2 => luks2::format(to, data_size, passphrase, options),
    }
}

pub(crate) fn bad(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, why)
}

/// Checks that the data begins before its device ends; grows a detached header's file to `header_end`.
pub(crate) fn make_room(
    to: &impl Target,
    header_end: u64,
    data_offset: u64,
    data_size: u64,
    detached: bool,
) -> Result<()> {
    if data_size <= data_offset {
        return Err(Error::new(
            ErrorKind::TooSmall,
            format!(
                "{data_size} bytes leave no data after byte {data_offset}; make the image larger or the data offset smaller"
            ),
        ));
    }
    let size = storage::size(to)?;
    if size < header_end && detached {
        to.set_len(header_end)
            .map_err(|e| Error::new(ErrorKind::Io, "cannot make room for the header").with_source(e))?;
    } else if size < header_end {
        let context = format!("a header of {header_end} bytes does not fit {size}");
        return Err(Error::new(ErrorKind::TooSmall, context));
    }
    Ok(())
}

/// Wipes the headers that stand before `end`, one after the other, before anything that they need is touched.
pub(crate) fn forget_old_headers(target: &impl Target, end: u64) -> Result<()> {
    let forget = |place| {
        storage::write(target, place, &[0; luks2::BINARY_LEN])?;
        storage::sync(target)
    };
    forget(0)?;
    let end = end.min(storage::size(target)?);
    for place in luks2::SECOND_PLACES.into_iter().filter(|place| place + luks2::BINARY_LEN as u64 <= end) {
        let mut magic = [0; 6];
        storage::read_into(target, place, &mut magic)?;
        if magic == luks2::SECOND_MAGIC {
            forget(place)?;
        }
    }
    Ok(())
}

/// Overwrites a range with random bytes, so that keyslots that were there before are gone.
pub(crate) fn scrub(target: &impl Target, from: u64, to: u64) -> Result<()> {
    let mut noise = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let left = usize::try_from(to - at).unwrap_or(usize::MAX).min(noise.len());
        crate::random::fill(&mut noise[..left])?;
        storage::write(target, at, &noise[..left])?;
        at += left as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
