//! TrueCrypt and VeraCrypt: the choice of the header, and its password.

use std::ops::Range;
use std::path::{Path, PathBuf};

use underseal_cipher::Key;
use underseal_formats::tcrypt::{KeyFiles, Password, Place, Unlocked, unlock};
use underseal_formats::{OpenedFormat, partitions};

use super::{Request, size};
use crate::cli::{SecretArgs, SecretSource};
use crate::error::{Error, Result};
use crate::part;
use crate::passphrase::{Secret, terminal_is_there};
use crate::reencryption::Bytes;

/// Unlocks a volume on an image, or on a part of it. Its segments count from the part's beginning,
/// with --system from the disk's. Fails as [`super::open`].
pub(super) fn open(of: Request<'_>, image: &Bytes, part: Option<Range<u64>>) -> Result<OpenedFormat> {
    let unlocked = unlock_header(of, image, part.as_ref())?;
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
    let files: Vec<PathBuf> = of.tcrypt.hidden_key_file.iter().map(PathBuf::from).collect();
    let options = of.tcrypt.hidden_options(of.trust);
    let name = PathBuf::from(format!("the hidden volume in {}", of.image.display()));
    let hidden = with_password(source, &files, &name, |password| Ok(unlock(&*host, password, &options)?));
    let hidden = hidden.map_err(|e| e.within("--protect-hidden"))?;
    Ok(unlocked.open_around(&hidden, size(&host)?)?)
}

/// Unlocks a header of TrueCrypt or VeraCrypt with the passphrase and the key files of the options.
/// Fails as [`super::open`].
pub(crate) fn unlock_header(of: Request<'_>, image: &Bytes, part: Option<&Range<u64>>) -> Result<Unlocked> {
    let options = of.tcrypt.options(of.plain, of.trust)?;
    // The header of a system is the disk's, not its partition's.
    let host = part::window(image, part.filter(|_| options.place != Place::System));
    with_password(of.secret.passphrase(), of.secret.key_files(), of.image, |password| {
        Ok(unlock(&*host, password, &options)?)
    })
}

/// Returns the partition of the disk in the area of an encrypted system, if the area has exactly
/// one.
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

/// Calls `open` with the password of a passphrase and key files. With key files the passphrase may
/// be empty: without a source and without a terminal, it is empty. A wrong typed passphrase can be
/// retyped. Fails with the errors of the source, and of `open`.
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

/// Returns a new password of a passphrase and key files, and the passphrase's length in bytes. A
/// passphrase is typed twice. Fails with `Usage` for a passphrase that VeraCrypt does not accept;
/// with the errors of the source.
pub(crate) fn new_password(secret: &SecretArgs, image: &Path) -> Result<(Password, usize)> {
    new_password_of(secret.passphrase(), secret.key_files(), image, false)
}

/// Returns a new password from these sources; `another` means that the volume has a passphrase
/// already.
pub(crate) fn new_password_of(
    source: SecretSource<'_>,
    files: &[PathBuf],
    image: &Path,
    another: bool,
) -> Result<(Password, usize)> {
    let mut pool = KeyFiles::new()?;
    files.iter().try_for_each(|file| pool.add(file))?;
    let passphrase = match source {
        SecretSource::Asked if pool.count() > 0 && !terminal_is_there() => Key::zeroed(0)?,
        _ if another => Secret::another_from(source, image).get_new()?,
        _ => Secret::new(source, image).get_new()?,
    };
    let password = Password::new(&passphrase, &pool).map_err(|e| Error::from(e).into_usage())?;
    // Key files replace a long passphrase.
    Ok((password, if pool.count() > 0 { usize::MAX } else { passphrase.len() }))
}
