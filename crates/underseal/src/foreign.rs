//! Volumes of other systems: from options and secrets to an unlocked volume.

use std::ops::Range;
use std::path::{Path, PathBuf};

use underseal_cipher::Key;
use underseal_export::control::status;
use underseal_formats::tcrypt::{KeyFiles, Password, Place, Unlocked, unlock};
use underseal_formats::{Format, GuardRule, OpenedFormat, moved, partitions};

use crate::cli::{PlainArgs, SecretArgs, SecretSource, TcryptArgs, TrustArgs, VolumeArgs, VolumeType};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::part;
use crate::passphrase::{Secret, terminal_is_there};
use crate::reencryption::Bytes;

/// What a command says of a volume of another system.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) image: &'a Path,
    pub(crate) secret: &'a SecretArgs,
    pub(crate) tcrypt: &'a TcryptArgs,
    pub(crate) plain: &'a PlainArgs,
    pub(crate) trust: &'a TrustArgs,
}

impl<'a> Request<'a> {
    pub(crate) fn of(args: &'a VolumeArgs) -> Self {
        let VolumeArgs { image, secret, tcrypt, plain, trust, .. } = args;
        Self { image, secret, tcrypt, plain, trust }
    }
}

/// The format of another system that the image has: the one that is named, or the one whose mark is there.
///
/// # Errors
/// `Failed` when the image cannot be read.
pub(crate) fn format(kind: VolumeType, on: &Bytes) -> Result<Option<Format>> {
    match (kind.format(), kind) {
        (Some(format), _) => Ok(Some(format)),
        (None, VolumeType::Luks) => Ok(Format::detect(&**on)?),
        (None, _) => Ok(None),
    }
}

/// What `status` calls a format.
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
    let opened = match format {
        Format::Tcrypt => tcrypt(of, image, part.clone()),
        other => {
            Err(Error::new(Exit::Unsupported, format!("{} is not opened by this version", other.title())))
        }
    };
    let mut opened = opened.map_err(|e| e.within(of.image.display()))?;
    // A system's partition counts from the disk's beginning anyway.
    let base = if format == Format::Tcrypt && of.tcrypt.system { None } else { part };
    if let Some(base) = base {
        opened.volume = moved(&opened.volume, base.start)?;
    }
    Ok(opened)
}

fn tcrypt(of: Request<'_>, image: &Bytes, part: Option<Range<u64>>) -> Result<OpenedFormat> {
    let unlocked = unlock_tcrypt(of, image, part.as_ref())?;
    let size = |of: &Bytes| of.size().map_err(|e| Error::new(Exit::Failed, "the image's size").because(&e));
    if of.tcrypt.system {
        let partition = match part {
            Some(partition) => Some(partition),
            None => only_partition(&unlocked, image)?,
        };
        return Ok(unlocked.open(size(image)?, partition.as_ref())?);
    }
    let host = part::window(image, part.as_ref());
    if !of.tcrypt.protect_hidden {
        return Ok(unlocked.open(size(&host)?, None)?);
    }
    let source = match &of.tcrypt.hidden_passphrase_file {
        Some(file) => SecretSource::File(file),
        None => SecretSource::Asked,
    };
    let options = of.tcrypt.hidden_options(of.trust);
    let name = PathBuf::from(format!("the hidden volume in {}", of.image.display()));
    let hidden = with_password(source, &of.tcrypt.hidden_key_file, &name, |password| {
        Ok(unlock(&*host, password, &options)?)
    });
    let hidden = hidden.map_err(|e| e.within("--protect-hidden"))?;
    Ok(unlocked.open_around(&hidden, size(&host)?)?)
}

/// Unlocks a header of TrueCrypt or VeraCrypt with the passphrase and the key files of the options.
///
/// # Errors
/// As [`open`].
pub(crate) fn unlock_tcrypt(of: Request<'_>, image: &Bytes, part: Option<&Range<u64>>) -> Result<Unlocked> {
    let options = of.tcrypt.options(of.plain, of.trust)?;
    // The header of a system is the disk's, not its partition's.
    let host = part::window(image, part.filter(|_| options.place != Place::System));
    with_password(of.secret.passphrase(), of.secret.key_files(), of.image, |password| {
        Ok(unlock(&*host, password, &options)?)
    })
}

/// The partition of the disk that lies in the area of an encrypted system, where there is exactly one.
fn only_partition(unlocked: &Unlocked, image: &Bytes) -> Result<Option<Range<u64>>> {
    let header = &unlocked.header;
    let area = header.start..header.start.saturating_add(header.size);
    let all = partitions(&**image)?;
    let inside: Vec<_> = all.into_iter().filter(|of| area.contains(&of.range.start)).collect();
    match &inside[..] {
        [] => {
            log::warn!("no partition begins in the encrypted area: all of the area is opened");
            Ok(None)
        }
        [only] => Ok(Some(only.range.clone())),
        several => {
            let numbers: Vec<String> = several.iter().map(|of| of.number.to_string()).collect();
            let numbers = numbers.join(", ");
            let what = format!("partitions {numbers} lie in the encrypted area, and one is opened at a time");
            Err(Error::usage(what).with_remedy("--partition N"))
        }
    }
}

/// Calls `open` with the password that a passphrase and key files make. With key files the passphrase may be empty: where none is
/// given and there is no terminal, it is. Whoever typed a wrong one may try again.
///
/// # Errors
/// Those of getting it, and of `open`.
pub(crate) fn with_password<T>(
    source: SecretSource<'_>,
    files: &[PathBuf],
    image: &Path,
    open: impl Fn(&Password) -> Result<T>,
) -> Result<T> {
    let mut pool = KeyFiles::new()?;
    files.iter().try_for_each(|file| pool.add(file))?;
    let with = |passphrase: &Key| open(&Password::new(passphrase, &pool)?);
    if matches!(source, SecretSource::Asked) && pool.count() > 0 && !terminal_is_there() {
        return with(&Key::zeroed(0)?);
    }
    Secret::new(source, image).try_with(with)
}

/// A new password of a passphrase and key files, and the passphrase's length in bytes. A passphrase is typed twice.
///
/// # Errors
/// `Usage` for a passphrase that VeraCrypt does not take; those of getting it.
pub(crate) fn new_password(secret: &SecretArgs, image: &Path) -> Result<(Password, usize)> {
    let mut pool = KeyFiles::new()?;
    secret.key_files().iter().try_for_each(|file| pool.add(file))?;
    let source = secret.passphrase();
    let passphrase = match source {
        SecretSource::Asked if pool.count() > 0 && !terminal_is_there() => Key::zeroed(0)?,
        _ => Secret::new(source, image).get_new()?,
    };
    let password = Password::new(&passphrase, &pool).map_err(|e| Error::from(e).into_usage())?;
    Ok((password, if pool.count() > 0 { usize::MAX } else { passphrase.len() }))
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
