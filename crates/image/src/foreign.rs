//! Volumes of other systems: VeraCrypt and TrueCrypt, BitLocker, FileVault 2, loop-AES.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use underseal_cipher::Key;
use underseal_formats::bitlk::{self, Bitlk};
use underseal_formats::fvault2::{self, Fvault2};
use underseal_formats::loopaes::{self, KeyFile};
use underseal_formats::tcrypt::{self, ChainFilter, KeyFiles, Password, Pim, Place, Prf};
use underseal_formats::{Format, OpenedFormat, partitions};
use underseal_volume::{KdfLimits, ReadAt};

use crate::lower::Lower;
use crate::open::{HeaderlessLayout, OpenOptions};
use crate::setters::setters;
use crate::{Error, ErrorKind, Result};

/// The options for a volume of TrueCrypt or VeraCrypt. Without hints every key derivation and
/// cipher of both programs is tried, which takes seconds; the threads of the search end with the
/// call.
#[derive(Debug, Clone, Default)]
pub struct TcryptOptions {
    pim: Pim,
    prf: Option<Prf>,
    chains: ChainFilter,
    pub(crate) hidden: bool,
    pub(crate) backup_header: bool,
    pub(crate) system: bool,
    pub(crate) key_files: Vec<PathBuf>,
    protected: Option<Arc<Protected>>,
}

/// The secrets of a hidden volume that writes to the outer volume must not reach.
#[derive(Debug)]
struct Protected {
    passphrase: Key,
    pim: Pim,
    key_files: Vec<PathBuf>,
}

impl TcryptOptions {
    /// The normal volume, with any key derivation and ciphers.
    pub fn new() -> Self {
        Self::default()
    }

    /// VeraCrypt's Personal Iterations Multiplier; 0 for none.
    ///
    /// # Errors
    /// `BadOption` for a PIM that VeraCrypt does not take.
    pub fn pim(mut self, pim: u32) -> Result<Self> {
        self.pim = Pim::new(pim)?;
        Ok(self)
    }

    /// The function under the key derivation, if known: `sha512`, `whirlpool`, `argon2id`.
    ///
    /// # Errors
    /// `BadOption` for another name.
    pub fn prf(mut self, name: &str) -> Result<Self> {
        self.prf = Some(name.parse()?);
        Ok(self)
    }

    /// The ciphers, if known: `serpent-twofish-aes`, `AES(Twofish(Serpent))`.
    ///
    /// # Errors
    /// `BadOption` for ciphers that no volume has.
    pub fn cipher(mut self, name: &str) -> Result<Self> {
        self.chains = name.parse()?;
        Ok(self)
    }

    setters! {
        /// Opens the hidden volume.
        hidden(options, hidden: bool) options.hidden = hidden;

        /// Opens by the backup header at the volume's end.
        backup_header(options, backup: bool) options.backup_header = backup;

        /// Opens an encrypted system: the image is the whole disk.
        system(options, system: bool) options.system = system;

        /// Adds a key file, or all files of a folder. Their order does not matter; with key files
        /// the passphrase may be missing. They are read when the image is opened.
        key_file(options, path: impl Into<PathBuf>) options.key_files.push(path.into());
    }

    /// Protects the hidden volume, which opens with this passphrase and PIM: a write to the outer
    /// volume that would reach the hidden one fails, and so does every later write.
    ///
    /// # Errors
    /// `BadOption` for a PIM that VeraCrypt does not take, `Memory`.
    pub fn protect_hidden(
        mut self,
        passphrase: &[u8],
        pim: u32,
        key_files: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Self> {
        let key_files = key_files.into_iter().collect();
        let protected = Protected { passphrase: Key::new(passphrase)?, pim: Pim::new(pim)?, key_files };
        self.protected = Some(Arc::new(protected));
        Ok(self)
    }

    pub(crate) fn protects(&self) -> bool {
        self.protected.is_some()
    }

    /// Returns the trials of the search. Ciphers and function may have been set by name.
    fn unlock_options(&self, named: &HeaderlessLayout) -> Result<tcrypt::UnlockOptions> {
        let place = Place::named(self.hidden, self.backup_header, self.system).ok_or_else(|| {
            Error::new(
                ErrorKind::BadOption,
                "an encrypted system has neither hidden volume nor backup header",
            )
        })?;
        Ok(tcrypt::UnlockOptions {
            place,
            pim: self.pim,
            prfs: match &named.hash {
                Some(name) => vec![name.parse()?],
                None => self.prf.into_iter().collect(),
            },
            chains: named.cipher.as_deref().map_or_else(|| Ok(self.chains.clone()), str::parse)?,
            ..Default::default()
        })
    }
}

/// Returns the layout of a volume of loop-AES, with cryptsetup's defaults.
fn loop_aes_options(named: &HeaderlessLayout) -> Result<loopaes::Options> {
    let HeaderlessLayout { cipher, key_size, hash, offset, skip, .. } = named;
    let mut options = loopaes::Options::default();
    if let Some(cipher) = cipher {
        options.cipher.clone_from(cipher);
    }
    if let Some(bytes) = key_size {
        options.key_bits = u32::try_from(bytes.saturating_mul(8)).unwrap_or(u32::MAX);
    }
    if let Some(hash) = hash {
        options.hash = Some(hash.parse()?);
    }
    options.offset = offset.unwrap_or(options.offset);
    options.skip = skip.or(options.skip);
    Ok(options)
}

/// The secrets that open a volume; the key file was read.
struct Secrets<'a> {
    passphrase: Option<&'a Key>,
    volume_key: Option<&'a Key>,
    key_file: Option<Key>,
}

impl Secrets<'_> {
    fn passphrase(&self) -> Result<&Key> {
        self.passphrase.ok_or_else(crate::open::no_secret)
    }
}

/// Unlocks a volume on a disk or on a partition of it, and on others. Segments count from the
/// partition's beginning, except a system's, which count from the disk's.
pub(crate) fn open(
    options: &OpenOptions,
    format: Format,
    (disk, part): (&Lower, Option<Range<u64>>),
    others: &[Lower],
) -> Result<OpenedFormat> {
    if format == Format::Tcrypt {
        return open_tcrypt(options, disk, part);
    }
    let on = on_part(disk, part);
    let secrets = Secrets {
        passphrase: options.passphrase.as_ref(),
        volume_key: options.volume_key.as_ref(),
        key_file: options.key_file_bytes()?,
    };
    match format {
        Format::Bitlk => open_bitlk(&secrets, &on),
        Format::Fvault2 => open_fvault2(&secrets, &on, others),
        _ => open_loop_aes(&secrets, &on, &loop_aes_options(&options.layout)?),
    }
}

pub(crate) fn on_part(disk: &Lower, part: Option<Range<u64>>) -> Lower {
    part.map_or_else(|| disk.clone(), |range| disk.clone().part(range))
}

fn size(of: &Lower) -> Result<u64> {
    ReadAt::size(of).map_err(|e| Error::new(ErrorKind::Io, "cannot find the size").with_source(e))
}

fn open_tcrypt(options: &OpenOptions, disk: &Lower, part: Option<Range<u64>>) -> Result<OpenedFormat> {
    let of = &options.tcrypt;
    let bad = |what: &str| Error::new(ErrorKind::BadOption, what);
    if options.volume_key.is_some() {
        return Err(bad("a volume of TrueCrypt or VeraCrypt opens with a passphrase and key files"));
    }
    let files = || options.key_files.iter().chain(&of.key_files);
    if options.passphrase.is_none() && files().next().is_none() {
        return Err(crate::open::no_secret());
    }
    let password = password(options.passphrase.as_ref(), files())?;
    let unlock = of.unlock_options(&options.layout)?;
    // The header of a system is the disk's, not its partition's.
    let host = if of.system { disk.clone() } else { on_part(disk, part.clone()) };
    let unlocked = tcrypt::unlock(&host, &password, &unlock)?;
    if of.system {
        let partition = part.map_or_else(|| only_partition(&unlocked, disk), |range| Ok(Some(range)))?;
        return Ok(unlocked.open(size(disk)?, partition.as_ref())?);
    }
    let Some(protected) = &of.protected else { return Ok(unlocked.open(size(&host)?, None)?) };
    let password = self::password(Some(&protected.passphrase), protected.key_files.iter())?;
    let place = if of.backup_header { Place::BackupHidden } else { Place::Hidden };
    let of_hidden = tcrypt::UnlockOptions { place, pim: protected.pim, ..Default::default() };
    let hidden = tcrypt::unlock(&host, &password, &of_hidden)
        .map_err(|e| Error::from(e).within("the protected hidden volume"))?;
    Ok(unlocked.open_around(&hidden, size(&host)?)?)
}

pub(crate) fn password<'p>(
    passphrase: Option<&Key>,
    files: impl Iterator<Item = &'p PathBuf>,
) -> Result<Password> {
    let mut pool = KeyFiles::new()?;
    for file in files {
        pool.add(file)?;
    }
    let none = Key::zeroed(0)?;
    Ok(Password::new(passphrase.unwrap_or(&none), &pool)?)
}

/// Returns the only partition that begins in the area of an encrypted system, or `None` without a
/// partition, when all of the area is opened.
fn only_partition(unlocked: &tcrypt::Unlocked, disk: &Lower) -> Result<Option<Range<u64>>> {
    let area = unlocked.header.start..unlocked.header.start.saturating_add(unlocked.header.size);
    let all = partitions(disk)?;
    let mut inside = all.into_iter().filter(|of| area.contains(&of.range.start));
    match (inside.next(), inside.next()) {
        (first, None) => Ok(first.map(|of| of.range)),
        _ => Err(Error::new(ErrorKind::BadOption, "several partitions lie in the encrypted area: name one")),
    }
}

/// Opens by the volume key, the clear key, a startup key or a passphrase, whichever there is.
fn open_bitlk(secrets: &Secrets<'_>, on: &Lower) -> Result<OpenedFormat> {
    use bitlk::Secret;
    let volume = Bitlk::read(on)?;
    let limits = KdfLimits::default();
    let unlock = |secret: &Secret<'_>| volume.unlock(secret, &limits);
    let unlocked = if let Some(key) = secrets.volume_key {
        unlock(&Secret::VolumeKey(key))?
    } else if let Some(bytes) = &secrets.key_file {
        // A file that is no startup key holds the password, as for cryptsetup.
        match unlock(&Secret::StartupKey(bytes)) {
            Err(e) if e.kind() == underseal_formats::ErrorKind::BadOption => {
                unlock(&Secret::Passphrase(bytes))?
            }
            opened => opened?,
        }
    } else if volume.has_clear_key() || !volume.takes_passphrase() {
        unlock(&Secret::Clear)?
    } else {
        unlock(&Secret::Passphrase(secrets.passphrase()?))?
    };
    Ok(volume.activate(unlocked.key)?)
}

/// The longest key file that is a passphrase; `EncryptedRoot.plist.wipekey` is longer.
const PASSPHRASE: usize = 512;

/// Opens by the volume key or a passphrase; a key file holds the passphrase, or is
/// `EncryptedRoot.plist.wipekey`.
fn open_fvault2(secrets: &Secrets<'_>, on: &Lower, others: &[Lower]) -> Result<OpenedFormat> {
    use fvault2::Secret;
    let wipekey = secrets.key_file.as_ref().filter(|file| file.len() > PASSPHRASE);
    let images: Vec<&dyn ReadAt> = [on].into_iter().chain(others).map(|of| -> &dyn ReadAt { of }).collect();
    let volume = Fvault2::read(&images, wipekey)?;
    let limits = KdfLimits::default();
    let key = match (secrets.volume_key, &secrets.key_file) {
        (Some(key), _) => volume.unlock(&Secret::VolumeKey(key), &limits)?,
        (None, Some(file)) if wipekey.is_none() => volume.unlock(&Secret::Passphrase(file), &limits)?,
        _ => volume.unlock(&Secret::Passphrase(secrets.passphrase()?), &limits)?,
    };
    Ok(volume.activate(key)?)
}

fn open_loop_aes(secrets: &Secrets<'_>, on: &Lower, options: &loopaes::Options) -> Result<OpenedFormat> {
    let bad = |what: &str| Error::new(ErrorKind::BadOption, what);
    let (Some(file), None, None) = (&secrets.key_file, secrets.passphrase, secrets.volume_key) else {
        return Err(bad("a volume of loop-AES opens with a key file alone"));
    };
    Ok(loopaes::open(&KeyFile::parse(file)?, size(on)?, options)?)
}
