//! The start of an encryption: the header comes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use underseal_cipher::SectorSize;
use underseal_volume::luks2::{EncryptOptions, NewVolume};
use underseal_volume::reencrypt::{Direction, Protection};
use underseal_volume::{ErrorKind, FormatOptions, Header, VolumeKey};

use super::blocks;
use super::losing::Losses;
use crate::cli::ReencryptArgs;
use crate::error::{Error, Result};
use crate::passphrase::Secret;
use crate::reencryption::{self, Bytes, Kept, Place, Where};

/// Begins to encrypt an image that has no header.
///
/// # Errors
/// `Usage` when it has one, when there is no room, or what would be lost is not given up; those of making the header.
pub(in super::super) fn encrypt(args: &ReencryptArgs, place: &mut Place) -> Result<VolumeKey> {
    let image = args.image.as_path();
    let data = place.data.bytes()?;
    match Header::read(&*data) {
        Err(e) if e.kind() == ErrorKind::NoHeader => {}
        Ok(_) => {
            let error = Error::usage(format!("{}: is encrypted already", image.display()));
            return Err(error.with_remedy("without --encrypt, to give it another key"));
        }
        // One that is damaged is no plain image.
        Err(e) => return Err(e.in_file(image).into()),
    }
    let options = options(args)?;
    blocks::fit_plain(options.format.sector_size.unwrap_or(SectorSize::S512), &*data, image)?;
    Losses::default().unprotected(args, image).the_end(args, image).sure(args)?;
    let size = reencryption::size(&data)?;
    let passphrase = Secret::new(args.secret.source(), image).get_new()?;
    let new = NewVolume::prepare(size, &passphrase, options);
    let new = new.map_err(|e| Error::from(e).within(image.display()))?;
    match &args.header {
        Some(path) => {
            let header = super::new_file(path)?;
            new.write(&header).map_err(|e| e.in_file(path))?;
            place.kept = Kept::Header { apart: Some(Where::File(header)), allow_null: false };
        }
        None => in_front(&new, image, &data)?,
    }
    Ok(new.into_key())
}

/// Goes on with a beginning that was cut off: the header that is in a file of its own comes to its place in front of the data.
///
/// # Errors
/// Those of the header; of removing the file.
pub(in super::super) fn bring_header(args: &ReencryptArgs, place: &Place) -> Result<()> {
    let path = aside(&args.image);
    if args.header.is_some() || !path.exists() {
        return Ok(());
    }
    is_ours(&path)?;
    let (file, data) = (Where::open(&path, false)?.bytes()?, place.data.bytes()?);
    match Header::read(&*file) {
        Ok(Header::Luks2(header)) => {
            log::warn!("{}: is this image's header, and is put in front of its data", path.display());
            header.put_in_front(&*file, &*data).map_err(|e| e.in_file(&args.image))?;
        }
        // It was written before anything else was.
        Err(e) if is_not_whole(&e) => {}
        Ok(_) => return Err(not_ours(&path)),
        Err(e) => return Err(e.in_file(&path).into()),
    }
    remove(&path)
}

fn is_not_whole(e: &underseal_volume::Error) -> bool {
    matches!(e.kind(), ErrorKind::NoHeader | ErrorKind::BadHeader | ErrorKind::TooSmall)
}

/// Whoever may write to the folder may have put anything there under that name.
fn is_ours(path: &Path) -> Result<()> {
    let about = fs::symlink_metadata(path).map_err(|e| Error::io(path, "cannot be looked at", e))?;
    if about.is_file() && about.uid() == rustix::process::geteuid().as_raw() {
        Ok(())
    } else {
        Err(not_ours(path))
    }
}

fn not_ours(path: &Path) -> Error {
    let error =
        Error::usage(format!("{}: is not what an encryption that was cut off has left", path.display()));
    error.with_remedy("move it away, if it has nothing to do with this image")
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|e| Error::io(path, "cannot be removed", e))
}

/// A header in front takes the place of data that moves: until it is there, it is in a file of its own.
fn in_front(new: &NewVolume, image: &Path, data: &Bytes) -> Result<()> {
    let path = aside(image);
    if fs::symlink_metadata(&path).is_ok() {
        is_ours(&path)?;
        match Header::read(&*Where::open(&path, true)?.bytes()?) {
            Ok(_) => {
                let error =
                    Error::usage(format!("{}: an encryption was cut off as it began", image.display()));
                return Err(error.with_remedy("--resume-only, which goes on with it"));
            }
            Err(e) if is_not_whole(&e) => remove(&path)?,
            Err(e) => return Err(e.in_file(&path).into()),
        }
    }
    let file = super::new_file(&path)?;
    let written = new.write_in_front(&**data, &file);
    written.map_err(|e| {
        Error::from(e).within(image.display()).with_remedy(format!(
            "keep {}, and go on with --resume-only: it may be this image's header by now",
            path.display()
        ))
    })?;
    remove(&path)
}

/// Beside the image; for a device, here.
fn aside(image: &Path) -> PathBuf {
    let name = format!("{}.luks-header", image.file_name().unwrap_or_default().to_string_lossy());
    if image.starts_with("/dev") { PathBuf::from(name) } else { image.with_file_name(name) }
}

fn options(args: &ReencryptArgs) -> Result<EncryptOptions> {
    let defaults = FormatOptions::luks2();
    // What is there may have been made for a disk with these: cryptsetup's choice, too.
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
