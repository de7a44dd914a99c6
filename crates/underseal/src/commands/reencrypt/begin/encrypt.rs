//! The start of an encryption, which makes the header.

use std::path::Path;

use underseal_cipher::SectorSize;
use underseal_formats::Window;
use underseal_volume::luks2::{EncryptOptions, NewVolume, UnfinishedStart};
use underseal_volume::reencrypt::{Direction, Protection};
use underseal_volume::{ErrorKind, FormatOptions, VolumeKey};

use super::blocks;
use super::losing::Losses;
use crate::commands::reencrypt::args::ReencryptArgs;
use crate::error::{Error, Result};
use crate::passphrase::Secret;
use crate::reencryption::{self, Kept, Place, Where};

/// Begins to encrypt an image without a header. Fails with `Usage` when it has one, when no room is
/// left, or when data would be lost without consent; with the errors of making the header.
pub(in super::super) fn encrypt(args: &ReencryptArgs, place: &mut Place) -> Result<VolumeKey> {
    let image = args.image.as_path();
    let data = place.data.bytes()?;
    match NewVolume::find_plain(&*data) {
        Ok(undone) => tell_undone(image, undone),
        Err(e) if e.kind() == ErrorKind::BadOption => {
            return Err(
                Error::from(e.in_file(image)).with_remedy("without --encrypt, to give it another key")
            );
        }
        Err(e) => return Err(e.in_file(image).into()),
    }
    if args.header.is_none() && args.reduce_device_size.is_none() {
        let what = "a header in front of the data needs room: --reduce-device-size says what is given up";
        let what = format!("{}: {what} at the end of the device", image.display());
        return Err(Error::usage(what).with_remedy("that, or --header FILE for a header of its own"));
    }
    super::refuse_datashift(args)?;
    super::refuse_backward(args)?;
    let options = options(args)?;
    blocks::fit_plain(options.format.sector_size.unwrap_or(SectorSize::S512), &*data, image)?;
    let size = reencryption::size(&data)?;
    // Behind a detached header the bytes in front of the data stay as they are.
    let first = options.format.data_offset.filter(|_| args.header.is_some()).unwrap_or(0);
    let encrypted = Window::new(&*data, first.min(size)..size);
    Losses::default().unprotected(args, image).doubts(&encrypted, image)?.the_end(args, image).sure(args)?;
    let passphrase = Secret::new(args.secret.source(), image).get_new()?;
    let new = NewVolume::prepare(size, &passphrase, options);
    let new = new.map_err(|e| Error::from(e).within(image.display()))?;
    match new.begin(&*data, args.header.as_deref()) {
        Ok(Some(header)) => place.kept = Kept::Header { apart: Some(Where::File(header)), allow_null: false },
        Ok(None) => {}
        Err(e) => {
            return Err(match &args.header {
                Some(path) => super::taken(path, e),
                None => e.in_file(image).into(),
            });
        }
    }
    Ok(new.into_key())
}

/// Undoes an interrupted start, with --resume-only. Fails with `Usage` after that, since nothing
/// can be resumed; with the device's errors.
pub(in super::super) fn refuse_unfinished(args: &ReencryptArgs, place: &Place) -> Result<()> {
    let image = args.image.as_path();
    let data = place.data.bytes()?;
    if !args.resume_only || !UnfinishedStart::undo_any(&*data).map_err(|e| e.in_file(image))? {
        return Ok(());
    }
    tell_undone(image, true);
    let what = format!("{}: no reencryption is under way: it was cut off as it began", image.display());
    Err(Error::usage(what).with_remedy("--encrypt instead of --resume-only, to begin again"))
}

/// Says that the device is what it was before an encryption that was cut off as it began.
fn tell_undone(image: &Path, undone: bool) {
    if undone {
        log::warn!(
            "{}: an encryption was cut off as it began: the data is as it was before",
            image.display()
        );
    }
}

fn options(args: &ReencryptArgs) -> Result<EncryptOptions> {
    let defaults = FormatOptions::luks2();
    // Existing data may depend on 512-byte sectors; cryptsetup chooses them, too.
    let sector_size = args.sector_size.map_or(Ok(SectorSize::S512), SectorSize::new)?;
    let detached = args.header.is_some();
    let protection = match args.reduce_device_size {
        Some(_) => Protection::None,
        None => {
            let cipher = args.cipher.clone().unwrap_or_else(|| defaults.cipher.clone());
            super::protection(args, &args.image, &[(cipher, sector_size)])?
        }
    };
    let format = FormatOptions {
        cipher: args.cipher.clone().unwrap_or(defaults.cipher),
        volume_key: super::new_key(args)?,
        key_size: super::key_size(args)?,
        sector_size: Some(sector_size),
        hash: args.pbkdf.hash.unwrap_or(defaults.hash),
        pbkdf: args.pbkdf.over(defaults.pbkdf)?,
        detached,
        data_offset: args.data_offset,
        uuid: args.uuid,
        ..FormatOptions::luks2()
    };
    let direction = super::direction(args).unwrap_or(Direction::Forward);
    Ok(EncryptOptions {
        format,
        direction,
        protection,
        reduce: args.reduce_device_size,
        size: args.device_size,
    })
}
