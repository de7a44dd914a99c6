//! LUKS headers of either version.

use std::ops::Range;
use std::path::Path;

use uuid::Uuid;

use crate::lock::LockTo;
use crate::{
    ActivateOptions, Error, ErrorKind, Info, IntegrityLayer, Key, KeyCheck, ReadAt, Result, Target,
    UnlockOptions, Unlocked, Volume, VolumeKey, luks1, luks2, storage,
};

/// A LUKS header as read from disk.
#[derive(Debug)]
#[non_exhaustive]
pub enum Header {
    /// Version 1.
    Luks1(Box<luks1::Header>),
    /// Version 2.
    Luks2(Box<luks2::Header>),
}

/// The magic that librbd writes in place of LUKS's for a clone with another key than its parent's.
const LAYERED: &[u8; 6] = b"RBDL\xba\xbe";

fn begins_with(from: &(impl ReadAt + ?Sized), magic: &[u8; 6]) -> Result<bool> {
    if storage::size(from)? < magic.len() as u64 {
        return Ok(false);
    }
    Ok(storage::read(from, 0, magic.len())? == magic)
}

impl Header {
    /// Reads the header of an image, a block device, a detached header's file or bytes.
    ///
    /// # Errors
    /// `NoHeader` without a LUKS header, `UnfinishedStart` when an encryption of plain data was
    /// interrupted at its start, `BadHeader` when it is damaged, `Ambiguous` when only a second
    /// copy is left beside another format's signature, `TooSmall` when the file ends within it,
    /// `Unsupported` for a cipher or hash that this build lacks (LUKS1), or a header of librbd's,
    /// `Busy` when another program keeps the header locked, `Io`.
    pub fn read(from: &(impl ReadAt + ?Sized)) -> Result<Self> {
        let _lock = from.lock(LockTo::Read)?;
        Self::parse(from)
    }

    /// Reads the header in front of data that are to be decrypted. Returns `None` where there is
    /// none, and where a start that was cut off has moved it to `file` already: with the header of
    /// the file, [`luks2::Header::begin_decryption`] takes the rest away.
    ///
    /// # Errors
    /// The errors of [`Header::read`], except `NoHeader`.
    pub fn in_front(data: &(impl ReadAt + ?Sized), file: Option<&Path>) -> Result<Option<Self>> {
        let header = match Self::read(data) {
            Err(e) if e.kind() == ErrorKind::NoHeader => return Ok(None),
            header => header?,
        };
        let moved_to = |luks2: &luks2::Header, file: &Path| {
            std::fs::File::open(file).is_ok_and(|file| luks2.was_moved_to(&file))
        };
        match (&header, file) {
            (Self::Luks2(luks2), Some(file)) if moved_to(luks2, file) => Ok(None),
            _ => Ok(Some(header)),
        }
    }

    /// Reads as [`Header::read`], for a caller that holds the lock.
    pub(crate) fn parse(from: &(impl ReadAt + ?Sized)) -> Result<Self> {
        if luks2::UnfinishedStart::find(from)?.is_some() {
            let context = "an encryption of this device was cut off as it began; nothing is encrypted yet, and nothing is lost";
            return Err(Error::new(ErrorKind::UnfinishedStart, context));
        }
        if let Some(header) = luks1::Header::read(from)? {
            return Ok(Self::Luks1(Box::new(header)));
        }
        if let Some(header) = luks2::Header::read(from)? {
            return Ok(Self::Luks2(Box::new(header)));
        }
        if begins_with(from, LAYERED)? {
            let context = "a clone that librbd has formatted anew (RBDL): what it still has of its parent is encrypted with the parent's key, \
                           and librbd alone knows what that is; `rbd flatten` with --encryption-passphrase-file makes a LUKS volume of it";
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let context = "no LUKS header; is it a plain volume, or is the header in another file?";
        Err(Error::new(ErrorKind::NoHeader, context))
    }

    /// Tries a passphrase on the chosen keyslot, or on all of them by priority. `from` is the file
    /// or device that the header was read from.
    ///
    /// A recovery key that opens none as typed is also tried as printed: see
    /// [`crate::recovery_key`]. The limits apply to both attempts together.
    ///
    /// # Errors
    /// `WrongPassphrase` when no keyslot opens; `NoKeyslot` when the header has none to try;
    /// `TooCostly`, `NullCipher` or `Unsupported` when none could be tried, for the first one's
    /// reason; `Io`, `Memory`.
    pub fn unlock(
        &self,
        from: &(impl ReadAt + ?Sized),
        passphrase: &Key,
        options: &UnlockOptions,
    ) -> Result<Unlocked> {
        match self {
            Self::Luks1(header) => header.unlock(from, passphrase, options),
            Self::Luks2(header) => header.unlock(from, passphrase, options),
        }
    }

    /// Accepts a given volume key, if the header's digest confirms it.
    ///
    /// # Errors
    /// `WrongKey` when it does not, `TooCostly` beyond the limits.
    pub fn volume_key(&self, key: Key, options: &UnlockOptions) -> Result<VolumeKey> {
        match self {
            Self::Luks1(header) => header.volume_key(key, options),
            Self::Luks2(header) => header.volume_key(key, options),
        }
    }

    /// Returns the key of a volume whose reencryption has ended since it was unlocked, without the
    /// key of before; every other key as it is.
    #[must_use]
    pub fn known_key(&self, key: VolumeKey) -> VolumeKey {
        match self {
            Self::Luks1(_) => key,
            Self::Luks2(header) => key.known_to(|digest| header.metadata().digests.contains_key(&digest)),
        }
    }

    /// Returns the digest for a later check of the same key, without the header.
    ///
    /// # Errors
    /// `WrongKey` when the key is another header's.
    pub fn key_check(&self, key: &VolumeKey) -> Result<KeyCheck> {
        match self {
            Self::Luks1(header) => Ok(header.key_check(key)),
            Self::Luks2(header) => header.key_check(key),
        }
    }

    /// Returns the size of the data in bytes, if the header has it; otherwise the data extend to
    /// the end of their device.
    pub fn data_size(&self) -> Option<u64> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(header) => header.data_size(),
        }
    }

    /// Builds the volume over a data device of `data_size` bytes.
    ///
    /// # Errors
    /// `TooSmall` when the device ends before the data, `Unsupported` for ciphers and requirements
    /// that this build lacks, `NullCipher` unless permitted, `BadLayout` when the segments or their
    /// sectors do not fit, `BadHeader` when the cipher has no keys of this length.
    pub fn activate(&self, key: &VolumeKey, data_size: u64, options: &ActivateOptions) -> Result<Volume> {
        match self {
            Self::Luks1(header) => header.activate(key, data_size, options),
            Self::Luks2(header) => header.activate(key, data_size, options),
        }
    }

    /// Returns the layer below an authenticated volume; `None` for other volumes. After opening it,
    /// call [`Header::activate`] with [`ActivateOptions::over_integrity`], and with the layer's
    /// size in place of the device's.
    ///
    /// # Errors
    /// `Unsupported` for several segments.
    pub fn integrity_layer(&self) -> Result<Option<IntegrityLayer>> {
        match self {
            Self::Luks1(_) => Ok(None),
            Self::Luks2(header) => header.integrity_layer(),
        }
    }

    /// Returns the salts and digests of the data's keys: equal ones in two headers mean the same
    /// key.
    pub(crate) fn data_digests(&self) -> Vec<(String, String)> {
        let of_data = |digest: &crate::info::DigestInfo| !digest.segments.is_empty();
        let digests = self.info().digests.into_iter().filter(of_data);
        digests.filter_map(|digest| Some((digest.kdf?.salt, digest.digest?))).collect()
    }

    /// Describes the fault of one of LUKS2's two copies while the other is sound.
    pub fn damage(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(header) => header.damage(),
        }
    }

    /// Rewrites a bad copy from the good one; has no effect without damage.
    ///
    /// # Errors
    /// `Ambiguous` when the bad copy's place may have another format's bytes; `Busy` when another
    /// program has changed the header since it was read, `Io`.
    pub fn repair(&mut self, to: &(impl Target + ?Sized)) -> Result<()> {
        match self {
            Self::Luks1(_) => Ok(()),
            Self::Luks2(header) => header.repair(to),
        }
    }

    /// Wipes the areas that an interrupted change of a LUKS2 header left unwiped; see
    /// [`luks2::Header::wipe_unwiped`].
    pub fn wipe_unwiped(&mut self, on: &(impl Target + ?Sized)) -> Result<bool> {
        match self {
            Self::Luks1(_) => Ok(false),
            Self::Luks2(header) => header.wipe_unwiped(on),
        }
    }

    /// Puts the header and the key material of its keyslots on stable storage, once before a
    /// program depends on them: after a sync that failed they may be in the page cache only. Bytes
    /// stay as they are.
    ///
    /// Where this user cannot lock the header, nothing is written: another program may change it
    /// just now.
    ///
    /// # Errors
    /// `Busy` when another program changed the header since it was read; `Locked` while another
    /// program holds its lock; `Io`.
    pub fn secure(&mut self, on: &(impl Target + ?Sized)) -> Result<()> {
        let _lock = match on.lock(LockTo::Change) {
            Err(e) if e.kind() == ErrorKind::Busy => return Ok(()),
            lock => lock?,
        };
        match self {
            Self::Luks1(header) => header.secure(on),
            Self::Luks2(header) => header.secure(on),
        }
    }

    /// The UUID, if the header holds one.
    pub fn uuid(&self) -> Option<Uuid> {
        match self {
            Self::Luks1(header) => header.uuid(),
            Self::Luks2(header) => header.uuid(),
        }
    }

    /// Returns the first byte of the data on their device.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Luks1(header) => header.data_offset(),
            Self::Luks2(header) => header.data_offset(),
        }
    }

    /// Returns the length of the header with all of its keyslots.
    pub(crate) fn keyslots_end(&self) -> u64 {
        match self {
            Self::Luks1(header) => header.keyslots_end(),
            Self::Luks2(header) => header.keyslots_end(),
        }
    }

    /// Returns the area of each keyslot in use.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        match self {
            Self::Luks1(header) => header.areas(),
            Self::Luks2(header) => header.areas(),
        }
    }

    /// Returns all facts that need no key.
    pub fn info(&self) -> Info {
        match self {
            Self::Luks1(header) => header.info(),
            Self::Luks2(header) => header.info(),
        }
    }
}
