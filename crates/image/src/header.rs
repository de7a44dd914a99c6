//! A header that is read or changed: keyslots, backups, facts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_cipher::Key;
use underseal_volume::{
    Backup, Check, Cost, NamedFile, Pbkdf, PbkdfKind, ReadAt, Replace, RestoreOptions, UnlockOptions,
};

use crate::lower::{Lower, LowerDevice};
use crate::open::{Secret, unlock};
use crate::setters::setters;
use crate::traces::without_traces;
use crate::{Error, ErrorKind, Result};

/// A LUKS1 or LUKS2 header on an image or in a separate file.
///
/// Each change locks the header while it runs, is synced when the call returns, and after a crash
/// has happened or has not.
pub struct Header {
    on: Lower,
    header: underseal_volume::Header,
    path: PathBuf,
}

/// A volume key in locked memory.
pub struct VolumeKey(underseal_volume::VolumeKey);

impl VolumeKey {
    /// The bytes of the key. Copies of them are the caller's to wipe.
    pub fn reveal(&self) -> &[u8] {
        self.0.key().as_bytes()
    }
}

impl std::fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VolumeKey([redacted])")
    }
}

/// The cost of a new keyslot.
#[derive(Debug, Clone)]
pub struct KeyslotOptions {
    pub(crate) number: Option<u32>,
    pub(crate) pbkdf: Option<Pbkdf>,
}

impl Default for KeyslotOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl KeyslotOptions {
    /// The first free keyslot, at cryptsetup's default cost for the header's version.
    pub fn new() -> Self {
        Self { number: None, pbkdf: None }
    }

    setters! {
        /// The number of the new keyslot.
        number(options, number: u32) options.number = Some(number);

        /// PBKDF2 with a number of rounds, at least 1000.
        pbkdf2(options, rounds: u32) options.pbkdf = Some(pbkdf2(rounds));

        /// Argon2id with a number of passes, memory in KiB and threads.
        argon2id(options, passes: u32, memory_kib: u32, threads: u32)
            options.pbkdf = Some(argon2id(passes, memory_kib, threads));
    }
}

pub(crate) fn pbkdf2(rounds: u32) -> Pbkdf {
    Pbkdf { cost: Cost::Iterations(rounds.max(1000)), ..Pbkdf::pbkdf2() }
}

pub(crate) fn argon2id(passes: u32, memory_kib: u32, lanes: u32) -> Pbkdf {
    let cost = Cost::Iterations(passes.max(4));
    Pbkdf { kind: PbkdfKind::Argon2id, cost, memory_kib: memory_kib.max(32), lanes: lanes.max(1) }
}

/// The passphrase of a new keyslot. Fails with `BadOption` for an empty one.
pub(crate) fn new_passphrase(passphrase: &[u8]) -> Result<Key> {
    if passphrase.is_empty() {
        return Err(Error::new(ErrorKind::BadOption, "an empty passphrase protects nothing"));
    }
    Ok(Key::new(passphrase)?)
}

impl Header {
    /// Opens the header of an image, or a detached header, to look at it.
    ///
    /// # Errors
    /// `NoHeader`, `BadHeader`, `Unsupported`, `Busy`, `Io`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::of(path.as_ref(), false)
    }

    /// Opens the header of an image, or a detached header, to change it.
    ///
    /// # Errors
    /// As [`Header::open`].
    pub fn open_writable(path: impl AsRef<Path>) -> Result<Self> {
        Self::of(path.as_ref(), true)
    }

    /// Opens the header of an image on a program's own device.
    ///
    /// # Errors
    /// As [`Header::open`].
    pub fn open_on(device: Arc<dyn LowerDevice>) -> Result<Self> {
        let on = Lower::custom_header(device);
        Ok(Self { header: underseal_volume::Header::read(&on)?, on, path: PathBuf::new() })
    }

    /// Opens the header on a file or block device that is open already, to look at it, and to
    /// change it if the file is open for writing. The locks of changes are locks of this open file:
    /// one that no other user shares is needed.
    ///
    /// # Errors
    /// As [`Header::open`].
    pub fn open_file(file: std::fs::File) -> Result<Self> {
        let on = Lower::of_header(NamedFile::opened(file));
        Ok(Self { header: underseal_volume::Header::read(&on)?, on, path: PathBuf::new() })
    }

    fn of(path: &Path, writable: bool) -> Result<Self> {
        Self::read(Lower::open_header(path, writable).map_err(|e| e.in_file(path))?, path)
    }

    /// Reads the header of a file that is open already.
    pub(crate) fn read(on: Lower, path: &Path) -> Result<Self> {
        let header = underseal_volume::Header::read(&on);
        let header = header.map_err(|e| Error::from(e).in_file(path))?;
        Ok(Self { header, on, path: path.to_owned() })
    }

    /// Describes the header as a JSON object.
    ///
    /// # Errors
    /// `BadHeader` when it cannot be described.
    pub fn info_json(&self) -> Result<String> {
        info(&self.header)
    }

    /// The numbers of the keyslots in use.
    pub fn keyslots(&self) -> Vec<u32> {
        self.header.info().keyslots.iter().map(|slot| slot.number).collect()
    }

    /// The volume key that a passphrase opens; `keyslot` tries one keyslot only.
    ///
    /// # Errors
    /// `WrongPassphrase`, `Keyslot`, `TooCostly`, `Io`, `Memory`.
    pub fn unlock(&self, passphrase: &[u8], keyslot: Option<u32>) -> Result<VolumeKey> {
        let secret = Secret::Passphrase(Key::new(passphrase)?);
        let unlocked = without_traces(|| unlock(&self.header, &self.on, &secret, keyslot, false));
        unlocked.map(|(key, _)| VolumeKey(key)).map_err(|e| self.say(e))
    }

    /// Adds a keyslot for a new passphrase and returns its number.
    ///
    /// # Errors
    /// `WrongPassphrase` when the key is another volume's; `Keyslot` when there is no room;
    /// `BadOption` when the number is taken, and for an empty passphrase; `Unsupported` while the
    /// volume is being reencrypted; `Busy`, `Io`, `Memory`.
    pub fn add_keyslot(
        &mut self,
        key: &VolumeKey,
        passphrase: &[u8],
        options: &KeyslotOptions,
    ) -> Result<u32> {
        let (passphrase, new) = (new_passphrase(passphrase)?, self.new_keyslot(options));
        let added = without_traces(|| self.header.add_keyslot(&self.on, &key.0, &passphrase, &new));
        added.map_err(|e| self.say(e.into()))
    }

    /// Removes a keyslot and wipes its key material. `last` allows to remove the last one, which
    /// makes the data unreadable.
    ///
    /// # Errors
    /// `Keyslot` when it does not exist or is the last one; `Busy`, `Io`.
    pub fn remove_keyslot(&mut self, number: u32, last: bool) -> Result<()> {
        let removed = self.header.remove_keyslot(&self.on, number, last);
        removed.map_err(|e| self.say(e.into()))
    }

    /// Replaces the keyslot that `old` opens by one for the passphrase `new`, and returns its
    /// number.
    ///
    /// # Errors
    /// `WrongPassphrase`; `BadOption` for an empty new passphrase; `Keyslot` when the header has no
    /// room for both keyslots during the replacement; `Busy`, `Io`, `Memory`.
    pub fn change_keyslot(
        &mut self,
        old: &[u8],
        new: &[u8],
        keyslot: Option<u32>,
        options: &KeyslotOptions,
    ) -> Result<u32> {
        let (old, new) = (Key::new(old)?, new_passphrase(new)?);
        let unlock = UnlockOptions { slot: keyslot, ..UnlockOptions::default() };
        let wanted = self.new_keyslot(options);
        let changed = without_traces(|| {
            let opened = self.header.unlock(&self.on, &old, &unlock)?;
            self.header.change_keyslot(&self.on, &opened, &new, &wanted, Replace::Beside)
        });
        changed.map_err(|e| self.say(e.into()))
    }

    /// The header and its keyslots as bytes: the format of cryptsetup's `luksHeaderBackup`.
    ///
    /// # Errors
    /// `Busy`, `Io`, and the errors of the header.
    pub fn backup(&self) -> Result<Vec<u8>> {
        let backup = Backup::take(&self.on).map_err(|e| self.say(e.into()))?;
        Ok(backup.bytes().to_vec())
    }

    /// Puts a backup back onto an image. Without `force` only over the same volume's header, or
    /// over zeros, of an image that no program has open.
    ///
    /// # Errors
    /// `BadOption` when something else is there; `TooSmall`, `Keyslot` when it does not fit;
    /// `Busy`, `Io`.
    pub fn restore(path: impl AsRef<Path>, backup: &[u8], force: bool) -> Result<()> {
        use underseal_volume::Found;
        let path = path.as_ref();
        let restore = || -> Result<()> {
            let backup = Backup::read(backup)?;
            let on = Lower::open_header(path, true)?;
            let found = backup.found_on(&on)?;
            if !force && !matches!(found, Found::Same | Found::Nothing) {
                let what = "something else than this volume's header is there; pass force to overwrite it";
                return Err(Error::new(ErrorKind::BadOption, what));
            }
            let is_free = found.may_be_in_use(force);
            let _locks = if is_free { None } else { Some(on.lock_image()?) };
            backup.restore(&on, &found, &RestoreOptions::default())?;
            Ok(())
        };
        restore().map_err(|e| e.in_file(path))
    }

    /// Looks at a header and its keyslots: `{"format": .., "sound": .., "findings": [..]}`.
    ///
    /// # Errors
    /// `Busy`, `Io`. Damage of the header is a finding.
    pub fn check(path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        let check = || -> Result<String> {
            let on = Lower::open_header(path, false)?;
            let size = ReadAt::size(&on).map_err(|e| Error::new(ErrorKind::Io, "no size").with_source(e))?;
            json(&Check::of(&on, Some(size))?)
        };
        check().map_err(|e| e.in_file(path))
    }

    fn new_keyslot(&self, options: &KeyslotOptions) -> underseal_volume::NewKeyslot {
        let default = match self.header {
            underseal_volume::Header::Luks1(_) => Pbkdf::pbkdf2(),
            _ => Pbkdf::argon2id(),
        };
        let mut new = underseal_volume::NewKeyslot::new(options.pbkdf.unwrap_or(default));
        new.number = options.number;
        new
    }

    fn say(&self, e: Error) -> Error {
        if self.path.as_os_str().is_empty() { e } else { e.in_file(&self.path) }
    }
}

/// Describes the header of an image as a JSON object, for LUKS1, LUKS2, BitLocker and FileVault 2.
/// Headers of other formats show nothing until they are unlocked.
///
/// # Errors
/// `NoHeader` for an image without a header that can be read; as [`Header::open`].
pub fn info_json(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let described = Lower::open_header(path, false).and_then(|on| described(&on));
    described.map_err(|e| e.in_file(path))
}

/// As [`info_json`], on a program's own device.
///
/// # Errors
/// As [`info_json`].
pub fn info_json_on(device: Arc<dyn LowerDevice>) -> Result<String> {
    described(&Lower::custom_header(device))
}

/// As [`info_json`], of a file or block device that is open already.
///
/// # Errors
/// As [`info_json`].
pub fn info_json_file(file: std::fs::File) -> Result<String> {
    described(&Lower::of_header(NamedFile::opened(file)))
}

fn described(on: &Lower) -> Result<String> {
    use underseal_formats::{Format, bitlk::Bitlk, fvault2::Fvault2};
    match Format::detect(on) {
        Ok(Some(Format::Bitlk)) => json(&Bitlk::read(on)?.facts()),
        Ok(Some(Format::Fvault2)) => json(&Fvault2::read(&[on], None)?.facts()),
        // A LUKS2 header has a second copy, which may be whole where the first sector cannot be
        // read.
        _ => info(&underseal_volume::Header::read(on)?),
    }
}

/// Describes a header as a JSON object.
pub(crate) fn info(header: &underseal_volume::Header) -> Result<String> {
    let mut info = header.info();
    info.metadata = None;
    json(&info)
}

pub(crate) fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|e| Error::new(ErrorKind::BadHeader, "cannot describe it").with_source(e))
}
