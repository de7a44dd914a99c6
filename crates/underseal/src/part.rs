//! A volume in a part of an image: a partition of a whole disk.

use std::ops::Range;
use std::sync::Arc;

use underseal_formats::{Window, partition};
use underseal_volume::{ActivateOptions, Header, LockTo, ReencryptionLock, Target, UnlockOptions, Volume};

use crate::cli::{PartArgs, VolumeArgs, VolumeType};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::passphrase::{Secret, volume_key_file};
use crate::persona::{Keyslot, persona};
use crate::reencryption::{Bytes, Where, status_of};
use crate::tokens;
use crate::volume::{Access, key_len};

/// Returns the bytes of the image that `--partition` or `--offset-bytes` name; `None` without these
/// options. Fails with `Usage` when the partition does not exist, or the volume would begin beyond
/// the image's end.
pub(crate) fn range(args: PartArgs, image: &dyn Target) -> Result<Option<Range<u64>>> {
    if let Some(number) = args.partition {
        return Ok(Some(partition(image, number).map_err(Error::from)?));
    }
    let Some(start) = args.offset_bytes else { return Ok(None) };
    let size = image.size().map_err(|e| Error::new(Exit::Failed, "the image's size").because(&e))?;
    if start >= size || !start.is_multiple_of(512) {
        let what =
            format!("--offset-bytes {start}: want a multiple of 512 within the {size} bytes of the image");
        return Err(Error::usage(what));
    }
    Ok(Some(start..size))
}

/// Returns the bytes of a part of an image, or all of them.
pub(crate) fn window(image: &Bytes, part: Option<&Range<u64>>) -> Bytes {
    match part {
        Some(part) => Arc::new(Window::new(image.clone(), part.clone())),
        None => image.clone(),
    }
}

/// Unlocks a LUKS volume in a part of the image. The volume counts from the part's beginning. Fails
/// as for a volume that has an image to itself; with `Unsupported` for one that is being
/// reencrypted or has tags.
pub(crate) fn luks(
    args: &VolumeArgs,
    access: Access,
    on: &Bytes,
    apart: Option<Where>,
    secret: &Secret<'_>,
) -> Result<(Volume, Header, Option<ReencryptionLock>)> {
    let name = args.header.as_ref().unwrap_or(&args.image);
    let data_size = on.size().map_err(|e| Error::new(Exit::Failed, "the partition's size").because(&e))?;
    let apart = apart.map(Where::into_bytes).transpose()?;
    let on = apart.as_ref().unwrap_or(on);
    let mut header = Header::read(&**on).map_err(|e| e.in_file(name))?;
    let mut lock = None;
    if let Header::Luks2(_) = header {
        // From now on no program reencrypts the volume as if it were closed; until now one may have
        // done so.
        lock = ReencryptionLock::take(header.uuid(), LockTo::Read).map_err(|e| e.in_file(name))?;
        header = Header::read(&**on).map_err(|e| e.in_file(name))?;
    }
    let found = if let Header::Luks1(_) = header { VolumeType::Luks1 } else { VolumeType::Luks2 };
    if args.kind != VolumeType::Luks && args.kind != found {
        let context = format!("{}: the header is of the other LUKS version", name.display());
        return Err(Error::new(Exit::BadHeader, context).with_remedy("without --type"));
    }
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(name))?;
    let layer = header.integrity_layer().map_err(|e| e.in_file(name))?;
    if layer.is_some() || status_of(&header)?.is_some() {
        let what = format!(
            "{}: an authenticated volume, or one amid a reencryption, in a partition",
            name.display()
        );
        let remedy = "as root: `losetup --partscan`, and the partition's own device";
        return Err(Error::new(Exit::Unsupported, what).with_remedy(remedy));
    }
    let options = UnlockOptions {
        slot: args.key_slot,
        limits: args.trust.limits(),
        allow_null: args.allow_null,
        ..UnlockOptions::default()
    };
    let key = match &args.volume_key_file {
        Some(file) => {
            let key = volume_key_file(file, args.volume_key_size, key_len(&header))?;
            header.volume_key(key, &options).map_err(|e| e.in_file(name))?
        }
        None => {
            let unlocked = match tokens::unlock(&header, &**on, (&args.tokens, secret), name, &options)? {
                Some((unlocked, _)) => unlocked,
                None => secret.try_with(|key| {
                    Ok(header.unlock(&**on, key, &options).map_err(|e| e.in_file(name))?)
                })?,
            };
            persona().tell(name, Keyslot::Unlocked(unlocked.slot));
            unlocked.key
        }
    };
    let options = ActivateOptions {
        detached: args.header.is_some(),
        allow_discards: access.allow_discards,
        allow_null: args.allow_null,
        over_integrity: false,
    };
    let volume = header.activate(&key, data_size, &options);
    Ok((volume.map_err(|e| Error::from(e).within(args.image.display()))?, header, lock))
}
