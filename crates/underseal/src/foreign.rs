//! Volumes of other systems: from options and secrets to an unlocked volume.

mod tcrypt;

use std::ops::Range;
use std::path::Path;

use underseal_cipher::Key;
use underseal_export::control::status;
use underseal_formats::bitlk::{self, Bitlk};
use underseal_formats::fvault2::{self, Fvault2};
use underseal_formats::loopaes::{self, KeyFile};
use underseal_formats::{ErrorKind, Facts, Format, GuardRule, OpenedFormat, moved};

pub(crate) use tcrypt::{new_password, new_password_of, unlock_header, with_password};

use crate::cli::{PlainArgs, SecretArgs, SecretSource, TcryptArgs, TrustArgs, VolumeArgs, VolumeType};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::part;
use crate::passphrase::{Secret, secret_file, volume_key_file};
use crate::reencryption::Bytes;

/// A command's arguments for a volume of another system.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) image: &'a Path,
    pub(crate) secret: &'a SecretArgs,
    pub(crate) tcrypt: &'a TcryptArgs,
    pub(crate) plain: &'a PlainArgs,
    pub(crate) trust: &'a TrustArgs,
    volume_key: (Option<&'a Path>, Option<usize>),
}

impl<'a> Request<'a> {
    pub(crate) fn of(args: &'a VolumeArgs) -> Self {
        let VolumeArgs { image, secret, tcrypt, plain, trust, .. } = args;
        let volume_key = (args.volume_key_file.as_deref(), args.volume_key_size);
        Self { image, secret, tcrypt, plain, trust, volume_key }
    }

    /// The key of a volume, where a file with it is named; of a device, which never ends, so many bytes.
    fn volume_key(&self, len: usize) -> Result<Option<Key>> {
        self.volume_key.0.map(|file| volume_key_file(file, self.volume_key.1, len)).transpose()
    }

    /// The bytes of the only key file.
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

/// The format of another system that the image has: the one that is named, or the one whose mark is there.
///
/// # Errors
/// `Failed` when the image cannot be read; where its first sector cannot, it has no mark.
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

/// The name of a format in `status`.
pub(crate) fn called(format: Format) -> status::Format {
    match format {
        Format::Tcrypt => status::Format::Tcrypt,
        Format::Bitlk => status::Format::Bitlk,
        Format::Fvault2 => status::Format::Fvault2,
        Format::Loopaes => status::Format::Loopaes,
    }
}

/// Unlocks a volume on an image, or on a part of it. Its segments count from the image's beginning.
///
/// # Errors
/// `NoKey` for a secret that opens nothing; those of the format.
pub(crate) fn open(
    of: Request<'_>,
    format: Format,
    image: &Bytes,
    part: Option<Range<u64>>,
) -> Result<OpenedFormat> {
    if of.trust.is_asked() {
        let what = format!(
            "--require-cipher, --require-integrity and --header-digest are for LUKS, not {}",
            format.title()
        );
        return Err(Error::usage(what));
    }
    let on = part::window(image, part.as_ref());
    let opened = match format {
        Format::Tcrypt => tcrypt::open(of, image, part.clone()),
        Format::Bitlk => bitlk(of, &on),
        Format::Fvault2 => fvault2(of, &on),
        Format::Loopaes => loopaes(of, &on),
    };
    let mut opened = opened.map_err(|e| e.within(of.image.display()))?;
    // A system's partition counts from the disk's beginning anyway.
    let base = if format == Format::Tcrypt && of.tcrypt.system { None } else { part };
    if let Some(base) = base {
        opened.volume = moved(&opened.volume, base.start)?;
    }
    Ok(opened)
}

/// The facts of a header that needs no secret; none where a secret opens it first.
///
/// # Errors
/// Those of the format.
pub(crate) fn described(format: Format, on: &Bytes) -> Result<Option<Facts>> {
    match format {
        Format::Bitlk => Ok(Some(Bitlk::read(&**on)?.facts())),
        Format::Fvault2 => Ok(Some(Fvault2::read(&[&**on], None)?.facts())),
        Format::Tcrypt | Format::Loopaes => Ok(None),
    }
}

/// By the volume key, the clear key, a startup key or a passphrase, whichever there is.
fn bitlk(of: Request<'_>, on: &Bytes) -> Result<OpenedFormat> {
    use bitlk::Secret as With;
    let volume = Bitlk::read(&**on)?;
    let limits = of.trust.limits();
    let unlock = |secret: &With<'_>| volume.unlock(secret, &limits);
    let unlocked = if let Some(key) = of.volume_key(64)? {
        unlock(&With::VolumeKey(&key))?
    } else if let Some(bytes) = of.key_file()? {
        // A file that is no startup key holds the password, as for cryptsetup.
        match unlock(&With::StartupKey(&bytes)) {
            Err(e) if e.kind() == ErrorKind::BadOption => unlock(&With::Passphrase(&bytes))?,
            told => told?,
        }
    } else if volume.has_clear_key() || !volume.takes_passphrase() {
        // Without protectors that take a passphrase nobody is asked for one: the error says which there are.
        unlock(&With::Clear)?
    } else {
        of.with_passphrase(|passphrase| Ok(unlock(&With::Passphrase(passphrase))?))?
    };
    Ok(volume.activate(unlocked.key)?)
}

/// The longest key file that is a passphrase; `EncryptedRoot.plist.wipekey` is longer.
const PASSPHRASE: usize = 512;

/// By the volume key or a passphrase; a key file holds the passphrase, or is `EncryptedRoot.plist.wipekey`.
fn fvault2(of: Request<'_>, on: &Bytes) -> Result<OpenedFormat> {
    use fvault2::Secret as With;
    let file = of.key_file()?;
    let wipekey = file.as_ref().filter(|file| file.len() > PASSPHRASE);
    let volume = Fvault2::read(&[&**on], wipekey)?;
    let limits = of.trust.limits();
    let key = match (of.volume_key(32)?, &file) {
        (Some(key), _) => volume.unlock(&With::VolumeKey(&key), &limits)?,
        (None, Some(file)) if wipekey.is_none() => volume.unlock(&With::Passphrase(file), &limits)?,
        _ => of.with_passphrase(|key| Ok(volume.unlock(&With::Passphrase(key), &limits)?))?,
    };
    Ok(volume.activate(key)?)
}

/// By a key file; nothing can tell whether it is the right one.
fn loopaes(of: Request<'_>, on: &Bytes) -> Result<OpenedFormat> {
    let Some(bytes) = of.key_file()? else {
        return Err(Error::usage("loop-AES volumes open with a key file").with_remedy("--key-file FILE"));
    };
    if !matches!(of.secret.passphrase(), SecretSource::Asked) {
        return Err(Error::usage("a key file of loop-AES has no passphrase here")
            .with_remedy("gpg --decrypt FILE | underseal open IMAGE --type loopaes --key-file -"));
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

fn size(of: &Bytes) -> Result<u64> {
    of.size().map_err(|e| Error::new(Exit::Failed, "the image's size").because(&e))
}

/// Puts what the format says about writes into a mapping of the volume.
pub(crate) fn guarded(
    mut mapping: underseal_datapath::Mapping,
    opened: &OpenedFormat,
    image: &Path,
    read_only: bool,
) -> underseal_datapath::Mapping {
    for guard in &opened.guards {
        mapping = mapping.with_guard(guard.range.clone(), guard.rule == GuardRule::RefuseAll);
    }
    match opened.read_only {
        Some(why) if !read_only => {
            log::warn!("{}: it is read-only: {why}", image.display());
            mapping.without_writes().with_fixed_size()
        }
        _ => mapping.with_fixed_size(),
    }
}
