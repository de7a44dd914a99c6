//! Any LUKS header, whichever its version.

use std::ops::Range;

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

/// What librbd writes in place of LUKS's magic where a clone has another key than its parent.
const LAYERED: &[u8; 6] = b"RBDL\xba\xbe";

fn begins_with(from: &(impl ReadAt + ?Sized), magic: &[u8; 6]) -> Result<bool> {
    if storage::size(from)? < magic.len() as u64 {
        return Ok(false);
    }
    Ok(storage::read(from, 0, magic.len())? == magic)
}

impl Header {
    /// Finds out what is there and reads it: from an image, a block device, a detached header or
    /// bytes.
    ///
    /// # Errors
    /// `NoHeader` when there is no LUKS header, `UnfinishedStart` when one was on its way in front
    /// of plain data, `BadHeader` when it is damaged, `Ambiguous` when only a second copy is left
    /// beside another format's signature, `TooSmall` when the file ends within it, `Unsupported`
    /// for a cipher or hash that this build cannot name (LUKS1), or a header of librbd's own,
    /// `Busy` when somebody else keeps the header locked, `Io`.
    pub fn read(from: &(impl ReadAt + ?Sized)) -> Result<Self> {
        let _lock = from.lock(LockTo::Read)?;
        Self::parse(from)
    }

    /// As [`Header::read`], for who has the lock.
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

    /// Tries a passphrase on the chosen keyslot, or on all of them by priority. `from` is what the
    /// header was read from.
    ///
    /// A recovery key that opens none as it was typed is tried as it was printed, too: see
    /// [`crate::recovery_key`]. The limits are those of both tries together.
    ///
    /// # Errors
    /// `WrongPassphrase` when no keyslot opens; `NoKeyslot` when there is none to try; `TooCostly`,
    /// `NullCipher` or `Unsupported` when none could be tried, for the first one's reason; `Io`,
    /// `Memory`.
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

    /// Takes a volume key from elsewhere, if the header's digest confirms it.
    ///
    /// # Errors
    /// `WrongKey` when it does not, `TooCostly` beyond the limits.
    pub fn volume_key(&self, key: Key, options: &UnlockOptions) -> Result<VolumeKey> {
        match self {
            Self::Luks1(header) => header.volume_key(key, options),
            Self::Luks2(header) => header.volume_key(key, options),
        }
    }

    /// What confirms the same key later, when the header is not at hand any more.
    ///
    /// # Errors
    /// `WrongKey` when the key is another header's.
    pub fn key_check(&self, key: &VolumeKey) -> Result<KeyCheck> {
        match self {
            Self::Luks1(header) => Ok(header.key_check(key)),
            Self::Luks2(header) => header.key_check(key),
        }
    }

    /// What tells the key that all of a LUKS2 volume's data has from others; none in the middle of
    /// a reencryption, where it has two.
    pub fn data_key_check(&self) -> Option<KeyCheck> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(header) => header.data_key_check(),
        }
    }

    /// The size of the data in bytes, where the header says it; where not, the data takes all of
    /// its device.
    pub fn data_size(&self) -> Option<u64> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(header) => header.data_size(),
        }
    }

    /// Puts the volume together over a data device of `data_size` bytes.
    ///
    /// # Errors
    /// `TooSmall` when the device ends before the data does, `Unsupported` for ciphers and
    /// requirements that this build does not know, `NullCipher` unless allowed, `BadLayout` when
    /// the segments or their sectors do not fit, `BadHeader` when the key's length is not one of
    /// the cipher's.
    pub fn activate(&self, key: &VolumeKey, data_size: u64, options: &ActivateOptions) -> Result<Volume> {
        match self {
            Self::Luks1(header) => header.activate(key, data_size, options),
            Self::Luks2(header) => header.activate(key, data_size, options),
        }
    }

    /// What has to be opened below an authenticated volume; none for others. [`Header::activate`]
    /// then wants to be told that it is there ([`ActivateOptions::over_integrity`]), and its size
    /// in place of the device's.
    ///
    /// # Errors
    /// `Unsupported` for several segments.
    pub fn integrity_layer(&self) -> Result<Option<IntegrityLayer>> {
        match self {
            Self::Luks1(_) => Ok(None),
            Self::Luks2(header) => header.integrity_layer(),
        }
    }

    /// What tells whether two headers have the same key for the data: salts and digests.
    pub(crate) fn data_digests(&self) -> Vec<(String, String)> {
        let of_data = |digest: &crate::info::DigestInfo| !digest.segments.is_empty();
        let digests = self.info().digests.into_iter().filter(of_data);
        digests.filter_map(|digest| Some((digest.kdf?.salt, digest.digest?))).collect()
    }

    /// What is wrong with one of LUKS2's two copies while the other is sound, if anything is.
    pub fn damage(&self) -> Option<&str> {
        match self {
            Self::Luks1(_) => None,
            Self::Luks2(header) => header.damage(),
        }
    }

    /// Writes a bad copy again from the good one. Does nothing where there is no damage.
    ///
    /// # Errors
    /// `Ambiguous` when what stands in the bad one's place may be something else than a header;
    /// `Busy` when somebody changed the header since it was read, `Io`.
    pub fn repair(&mut self, to: &(impl Target + ?Sized)) -> Result<()> {
        match self {
            Self::Luks1(_) => Ok(()),
            Self::Luks2(header) => header.repair(to),
        }
    }

    /// Wipes what an earlier change of a LUKS2 header was cut off before wiping; see
    /// [`luks2::Header::wipe_unwiped`].
    ///
    /// # Errors
    /// Its.
    pub fn wipe_unwiped(&mut self, on: &(impl Target + ?Sized)) -> Result<bool> {
        match self {
            Self::Luks1(_) => Ok(false),
            Self::Luks2(header) => header.wipe_unwiped(on),
        }
    }

    /// The UUID, if the header holds one.
    pub fn uuid(&self) -> Option<Uuid> {
        match self {
            Self::Luks1(header) => header.uuid(),
            Self::Luks2(header) => header.uuid(),
        }
    }

    /// The first byte of data on its device.
    pub fn data_offset(&self) -> u64 {
        match self {
            Self::Luks1(header) => header.data_offset(),
            Self::Luks2(header) => header.data_offset(),
        }
    }

    /// The bytes that the header takes from the start of its device on, with all of its keyslots.
    pub(crate) fn keyslots_end(&self) -> u64 {
        match self {
            Self::Luks1(header) => header.keyslots_end(),
            Self::Luks2(header) => header.keyslots_end(),
        }
    }

    /// Where the key material of each keyslot in use lies.
    pub(crate) fn areas(&self) -> Vec<(u32, Range<u64>)> {
        match self {
            Self::Luks1(header) => header.areas(),
            Self::Luks2(header) => header.areas(),
        }
    }

    /// Everything there is to tell, without any key.
    pub fn info(&self) -> Info {
        match self {
            Self::Luks1(header) => header.info(),
            Self::Luks2(header) => header.info(),
        }
    }
}
