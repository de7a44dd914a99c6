//! Volumes of other systems: from options and secrets to an unlocked volume.

mod tcrypt;

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use underseal_cipher::Key;
use underseal_export::control::status;
use underseal_formats::bitlk::{self, Bitlk};
use underseal_formats::fvault2::{self, Fvault2};
use underseal_formats::loopaes::{self, KeyFile};
use underseal_formats::{ErrorKind, Facts, Format, OpenedFormat, moved};

pub(crate) use tcrypt::{new_password, new_password_of, unlock_header, with_password};

use crate::cli::{
    PartArgs, PlainArgs, SecretArgs, SecretSource, TcryptArgs, TrustArgs, VolumeArgs, VolumeType,
};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::lower::open_header;
use crate::part;
use crate::passphrase::{Secret, secret_file, volume_key_file};
use crate::reencryption::Bytes;

/// The arguments for a volume of another system.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) image: &'a Path,
    pub(crate) secret: &'a SecretArgs,
    pub(crate) tcrypt: &'a TcryptArgs,
    pub(crate) plain: &'a PlainArgs,
    pub(crate) trust: &'a TrustArgs,
    /// The paths of the volume's other images.
    pub(crate) devices: &'a [OsString],
    volume_key: (Option<&'a Path>, Option<usize>),
}

impl<'a> Request<'a> {
    pub(crate) fn of(args: &'a VolumeArgs) -> Self {
        let VolumeArgs { image, secret, tcrypt, plain, trust, other_device: devices, .. } = args;
        let volume_key = (args.volume_key_file.as_deref(), args.volume_key_size);
        Self { image, secret, tcrypt, plain, trust, devices, volume_key }
    }

    /// Returns the volume key, if a file with it is named; a device, which never ends, gives `len`
    /// bytes.
    fn volume_key(&self, len: usize) -> Result<Option<Key>> {
        self.volume_key.0.map(|file| volume_key_file(file, self.volume_key.1, len)).transpose()
    }

    /// Returns the bytes of the only key file.
    fn key_file(&self) -> Result<Option<Key>> {
        match self.secret.key_files() {
            [] => Ok(None),
            [file] => secret_file(file, 0, None).map(Some),
            _ => Err(Error::usage("several key files are for TrueCrypt and VeraCrypt volumes")),
        }
    }

    /// Calls `open` with the passphrase.
    fn with_passphrase<T>(&self, open: impl Fn(&Key) -> Result<T>) -> Result<T> {
        Secret::new(self.secret.passphrase(), self.image).try_with(open)
    }
}

/// An image, and the used part of it.
pub(crate) type On = (Bytes, Option<Range<u64>>);

/// Opens the other images of a volume, for reading.
pub(crate) fn others(devices: &[OsString], part: PartArgs) -> Result<Vec<On>> {
    let open = |path: &OsString| {
        let path = Path::new(path);
        let image = open_header(path, true)?;
        let part = part::range(part, &*image).map_err(|e| e.within(path.display()))?;
        Ok((image, part))
    };
    devices.iter().map(open).collect()
}

/// Returns the format of another system that the image has: the one that is named, or the one with
/// a signature on the image. Fails with `Failed` when the image cannot be read; an unreadable first
/// sector has no signature.
pub(crate) fn format(kind: VolumeType, on: &Bytes) -> Result<Option<Format>> {
    match (kind.format(), kind) {
        (Some(format), _) => Ok(Some(format)),
        (None, VolumeType::Luks) => match Format::detect(&**on) {
            // A LUKS2 header has a second copy elsewhere.
            Err(e) if e.kind() == ErrorKind::Io => Ok(None),
            detected => Ok(detected?),
        },
        (None, _) => Ok(None),
    }
}

/// Returns the name of a format in `status`.
pub(crate) fn called(format: Format) -> status::Format {
    match format {
        Format::Tcrypt => status::Format::Tcrypt,
        Format::Bitlk => status::Format::Bitlk,
        Format::Fvault2 => status::Format::Fvault2,
        Format::Loopaes => status::Format::Loopaes,
    }
}

/// Unlocks a volume on an image, or on a part of it, and on others. Its segments count from the
/// images' beginnings. Fails with `NoKey` for a secret that opens none; with the format's errors.
pub(crate) fn open(
    of: Request<'_>,
    format: Format,
    (image, part): On,
    others: &[On],
) -> Result<OpenedFormat> {
    check_devices(of.devices, Some(format))?;
    if of.trust.is_asked() {
        let what = format!(
            "--require-cipher, --require-integrity and --header-digest are for LUKS, not {}",
            format.title()
        );
        return Err(Error::usage(what));
    }
    let on = part::window(&image, part.as_ref());
    let opened = match format {
        Format::Tcrypt => tcrypt::open(of, &image, part.clone()),
        Format::Bitlk => bitlk(of, &on),
        Format::Fvault2 => fvault2(of, &on, &windows(others)),
        Format::Loopaes => loopaes(of, &on),
    };
    let mut opened = opened.map_err(|e| e.within(of.image.display()))?;
    // A system's partition counts from the disk's beginning anyway.
    if format != Format::Tcrypt || !of.tcrypt.system {
        let parts = [&part].into_iter().chain(others.iter().map(|(_, part)| part));
        let bases: Vec<u64> = parts.map(|part| part.as_ref().map_or(0, |part| part.start)).collect();
        opened.volume = moved(&opened.volume, &bases)?;
    }
    Ok(opened)
}

/// Refuses several images for a volume that has one.
pub(crate) fn check_devices(devices: &[OsString], format: Option<Format>) -> Result<()> {
    if devices.is_empty() || format == Some(Format::Fvault2) {
        return Ok(());
    }
    Err(Error::usage("several images are for FileVault 2 volumes").with_remedy("without --other-device"))
}

fn windows(others: &[On]) -> Vec<Bytes> {
    others.iter().map(|(image, part)| part::window(image, part.as_ref())).collect()
}

/// Returns the facts of a header that needs no secret; `None` where a secret opens it first.
pub(crate) fn described(format: Format, on: &Bytes, others: &[On]) -> Result<Option<Facts>> {
    match format {
        Format::Bitlk => Ok(Some(Bitlk::read(&**on)?.facts())),
        Format::Fvault2 => Ok(Some(corestorage(on, &windows(others), None)?.facts())),
        Format::Tcrypt | Format::Loopaes => Ok(None),
    }
}

/// Returns the volume key, even of a volume that this program does not open: one that is being
/// converted, or of another kind.
pub(crate) fn volume_key(of: Request<'_>, format: Format, on: &Bytes) -> Result<Key> {
    let key = match format {
        Format::Bitlk => bitlk_key(of, &Bitlk::read(&**on)?),
        Format::Fvault2 => fvault2_key(of, on, &[]).map(|(_, key)| key),
        Format::Tcrypt | Format::Loopaes => Err(Error::usage("its header is found with the secret only")),
    };
    key.map_err(|e| e.within(of.image.display()))
}

fn bitlk(of: Request<'_>, on: &Bytes) -> Result<OpenedFormat> {
    let volume = Bitlk::read(&**on)?;
    let key = bitlk_key(of, &volume)?;
    Ok(volume.activate(key)?)
}

/// Unlocks with the volume key, the clear key, a startup key or a passphrase, whichever is
/// available.
fn bitlk_key(of: Request<'_>, volume: &Bitlk) -> Result<Key> {
    use bitlk::Secret as With;
    let limits = of.trust.limits();
    let unlock = |secret: &With<'_>| volume.unlock(secret, &limits);
    let unlocked = if let Some(key) = of.volume_key(64)? {
        unlock(&With::VolumeKey(&key))?
    } else if let Some(bytes) = of.key_file()? {
        // A file that is no startup key has the password, as in cryptsetup.
        match unlock(&With::StartupKey(&bytes)) {
            Err(e) if e.kind() == ErrorKind::BadOption => unlock(&With::Passphrase(&bytes))?,
            told => told?,
        }
    } else if volume.has_clear_key() || !volume.takes_passphrase() {
        // Without protectors for a passphrase none is asked for: the error lists the protectors.
        unlock(&With::Clear)?
    } else {
        of.with_passphrase(|passphrase| Ok(unlock(&With::Passphrase(passphrase))?))?
    };
    Ok(unlocked.key)
}

/// The longest key file that is a passphrase; `EncryptedRoot.plist.wipekey` is longer.
const PASSPHRASE: usize = 512;

fn fvault2(of: Request<'_>, on: &Bytes, others: &[Bytes]) -> Result<OpenedFormat> {
    let (volume, key) = fvault2_key(of, on, others)?;
    Ok(volume.activate(key)?)
}

/// Unlocks with the volume key or a passphrase; a key file has the passphrase, or is
/// `EncryptedRoot.plist.wipekey`.
fn fvault2_key(of: Request<'_>, on: &Bytes, others: &[Bytes]) -> Result<(Fvault2, Key)> {
    use fvault2::Secret as With;
    let file = of.key_file()?;
    let wipekey = file.as_ref().filter(|file| file.len() > PASSPHRASE);
    let volume = corestorage(on, others, wipekey)?;
    let limits = of.trust.limits();
    let key = match (of.volume_key(32)?, &file) {
        (Some(key), _) => volume.unlock(&With::VolumeKey(&key), &limits)?,
        (None, Some(file)) if wipekey.is_none() => volume.unlock(&With::Passphrase(file), &limits)?,
        _ => of.with_passphrase(|key| Ok(volume.unlock(&With::Passphrase(key), &limits)?))?,
    };
    Ok((volume, key))
}

/// Reads the metadata on all images.
fn corestorage(on: &Bytes, others: &[Bytes], wipekey: Option<&Key>) -> Result<Fvault2> {
    // A trait object of a subtrait does not convert to one of the supertrait by itself.
    let images: Vec<&dyn underseal_volume::ReadAt> =
        [on].into_iter().chain(others).map(|image| -> &dyn underseal_volume::ReadAt { &**image }).collect();
    Ok(Fvault2::read(&images, wipekey)?)
}

/// Opens with a key file; a wrong one cannot be detected.
fn loopaes(of: Request<'_>, on: &Bytes) -> Result<OpenedFormat> {
    let Some(mut bytes) = of.key_file()? else {
        return Err(Error::usage("loop-AES volumes open with a key file").with_remedy("--key-file FILE"));
    };
    if loopaes::is_pgp(bytes.as_bytes()) {
        bytes = by_gpg(of, &bytes)?;
    } else if !matches!(of.secret.passphrase(), SecretSource::Asked) {
        return Err(Error::usage("this key file is not encrypted, and has no passphrase")
            .with_remedy("--key-file alone"));
    }
    let plain = of.plain;
    if !plain.data_offset.is_multiple_of(512) {
        return Err(Error::usage(format!("--data-offset {} is no multiple of 512", plain.data_offset)));
    }
    let hash = match plain.named_hash() {
        Some(named) if named.len.is_none() && named.hash.is_some() => named.hash,
        None => None,
        Some(_) => return Err(Error::usage("--hash: loop-AES hashes each line as a whole")),
    };
    let options = loopaes::Options {
        cipher: plain.cipher.as_ref().map_or_else(|| "aes".to_owned(), |cipher| cipher.0.clone()),
        key_bits: u32::try_from(plain.key_size).unwrap_or(u32::MAX),
        hash,
        offset: plain.data_offset >> 9,
        skip: plain.skip,
    };
    Ok(loopaes::open(&KeyFile::parse(&bytes)?, size(on)?, &options)?)
}

/// How long gpg may take: it stretches the passphrase.
const GPG: std::time::Duration = std::time::Duration::from_secs(120);

/// Decrypts a key file that GPG encrypted with a passphrase.
fn by_gpg(of: Request<'_>, bytes: &Key) -> Result<Key> {
    let file = of.secret.key_files().first().map_or(of.image, PathBuf::as_path);
    let elsewhere = format!(
        "the key file's passphrase; where GPG wants a key of your keyring: \
         gpg --decrypt {} | underseal open {} --type loopaes --key-file -",
        file.display(),
        of.image.display()
    );
    Secret::new(of.secret.passphrase(), file).try_with(|passphrase| {
        let decrypted = underseal_tokens::decrypt_by_gpg(bytes.as_bytes(), passphrase, GPG);
        decrypted.map_err(|e| Error::from(e).within(file.display()).with_remedy(&*elsewhere))
    })
}

fn size(of: &Bytes) -> Result<u64> {
    of.size().map_err(|e| Error::new(Exit::Failed, "the image's size").because(&e))
}

/// Applies the format's rules about writes to a mapping of the volume.
pub(crate) fn guarded(
    mut mapping: underseal_datapath::Mapping,
    opened: &OpenedFormat,
    image: &Path,
    read_only: bool,
) -> underseal_datapath::Mapping {
    for guard in &opened.guards {
        mapping = mapping.with_guard(guard.clone());
    }
    match opened.read_only {
        Some(why) if !read_only => {
            log::warn!("{}: it is read-only: {why}", image.display());
            mapping.without_writes().with_fixed_size()
        }
        _ => mapping.with_fixed_size(),
    }
}
