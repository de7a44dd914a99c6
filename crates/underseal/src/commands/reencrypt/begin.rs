//! The start of a reencryption: decisions and writes before the first step.

mod blocks;
mod decrypt;
mod encrypt;
pub(super) mod losing;

use std::fs::File;
use std::path::Path;

use underseal_cipher::{Key, SectorSize};
use underseal_device::loop_over;
use underseal_volume::info::SegmentInfo;
use underseal_volume::luks2::{self, BeginOptions, NewKey, Passphrase};
pub(super) use underseal_volume::reencrypt::forms;
use underseal_volume::reencrypt::{Direction, DiskBlocks, Mode, Protection, SectorForm, WantedProtection};
use underseal_volume::{ErrorKind, Header, NamedFile, Target, VolumeKey};

pub(super) use self::decrypt::{decrypt, takes_header_away};
pub(super) use self::encrypt::{encrypt, refuse_unfinished};
use self::losing::Losses;
use super::args::{ReencryptArgs, Resilience, StepOrder};
use super::keys::{self, Known};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::passphrase::volume_key_file;

/// The header that a reencryption begins with.
pub(super) struct Place<'p> {
    /// The bytes with the header, and their name.
    pub(super) on: &'p (dyn Target + Sync),
    pub(super) name: &'p Path,
    /// The bytes with the data, and their name.
    pub(super) data: &'p (dyn Target + Sync),
    pub(super) image: &'p Path,
    /// True for a detached header.
    pub(super) detached: bool,
    /// The size of an open volume, as its clients know it.
    pub(super) size: Option<u64>,
}

impl Place<'_> {
    /// Refuses a header whose size differs from the open volume's: its server would refuse to
    /// resume the reencryption.
    fn is_as_its_users_know(&self, header: &Header) -> Result<()> {
        let info = header.info();
        let (Some(known), [of]) = (self.size, &info.segments[..]) else { return Ok(()) };
        let device = self.data.size().map_err(|e| Error::io(self.image, "cannot find out its size", e))?;
        let says = of.size.unwrap_or(device.saturating_sub(of.offset) & !511);
        if says == known {
            return Ok(());
        }
        let what = format!(
            "{}: by its header the volume has {says} bytes, but it is open with {known}",
            self.name.display()
        );
        Err(Error::usage(what).with_remedy("`underseal resize` it back, or `underseal close` it first"))
    }
}

/// Returns true when the options request a change of the volume.
pub(super) fn says_what(args: &ReencryptArgs) -> bool {
    if args.state.is_some() {
        return false;
    }
    let ReencryptArgs { encrypt, decrypt, cipher, key_size, sector_size, keep_key, volume_key_file, .. } =
        args;
    let key = *keep_key || volume_key_file.is_some();
    *encrypt || *decrypt || key || cipher.is_some() || key_size.is_some() || sector_size.is_some()
}

/// Refuses an image that a loop device is over, or another one over the file of a loop device: a
/// file system that is mounted there would write over what is made. Fails with `InUse`.
pub(super) fn refuse_looped(image: &Path) -> Result<()> {
    let Some(over) = File::open(image).ok().and_then(|file| loop_over(&file)) else { return Ok(()) };
    let remedy = format!("unmount it, then losetup --detach {}", over.device().display());
    Err(Error::new(Exit::InUse, format!("{}: {over}", image.display())).with_remedy(remedy))
}

/// Refuses options that do not fit the unfinished reencryption, or that need one. The same command
/// again resumes the reencryption, as cryptsetup does: options that only a start reads are ignored,
/// with a warning. Fails with `Usage`.
pub(super) fn fits(args: &ReencryptArgs, under_way: Option<Mode>, name: &Path) -> Result<()> {
    let Some(mode) = under_way else {
        if !args.resume_only {
            return Ok(());
        }
        let error = Error::usage(format!("{}: no reencryption is under way", name.display()));
        return Err(error.with_remedy("omit --resume-only to begin one"));
    };
    let is_other_mode = args.encrypt && mode != Mode::Encrypt || args.decrypt && mode != Mode::Decrypt;
    if args.init_only || is_other_mode {
        let error = Error::usage(format!("{}: a reencryption is under way already", name.display()));
        return Err(error.with_remedy("finish it first, with --resume-only"));
    }
    let placed = args.device_size.is_some() || args.reduce_device_size.is_some();
    if placed || args.direction.is_some() || says_what(args) {
        log::warn!(
            "{}: resumes the reencryption that is under way; its cipher, key, sector size, direction and \
             sizes stay as they were begun",
            name.display()
        );
    }
    if args.resilience_hash.is_some() && args.resilience.is_none() {
        let error = Error::usage(format!("{}: its steps are protected as they were begun", name.display()));
        return Err(error.with_remedy("--resilience checksum with --resilience-hash, to change that"));
    }
    Ok(())
}

/// Begins to give a volume with a header another key, cipher or sector size, or to decrypt it in
/// place. Fails with `Usage` for options that do not fit the volume, and where passphrases would be
/// lost without consent; with the header's errors.
pub(super) fn begin(args: &ReencryptArgs, header: Header, place: &Place<'_>) -> Result<VolumeKey> {
    refuse_backward(args)?;
    place.is_as_its_users_know(&header)?;
    let (key, mut known) = keys::unlock(args, &header, place.on, place.name)?;
    if args.decrypt {
        return decrypt(args, luks2_of(header, place.name)?, key, place);
    }
    refuse_datashift(args)?;
    blocks::fit_volume(args, &header, &key, place)?;
    if !args.keep_key {
        keys::others_in_order(args, &header, (place.on, place.name), &mut known)?;
    }
    let mut header = luks2_of(header, place.name)?;
    let options = options(args, &header, place)?;
    let losses = Losses::default().passphrases(args, &header, &known, place.name);
    losses.unprotected(args, place.name).the_end(args, place.image).the_rest(args, place.image).sure(args)?;
    let passphrase = |known: &'_ Known| -> Result<_> {
        let new = header.like_keyslot(known.slot).map_err(|e| e.in_file(place.name))?;
        Ok((known.slot, new))
    };
    let new = known.iter().map(passphrase).collect::<Result<Vec<_>>>()?;
    let kept = new.into_iter().zip(&known);
    let kept = kept.map(|((slot, new), known)| Passphrase { slot, passphrase: &known.passphrase, new });
    let kept: Vec<_> = if args.keep_key { vec![] } else { kept.collect() };
    let size = place.data.size().map_err(|e| Error::io(place.image, "cannot find out its size", e))?;
    let begun = header.begin_reencryption(place.on, key, &kept, size, &options);
    Ok(begun.map_err(|e| e.in_file(place.name))?)
}

/// Returns a LUKS2 header. Fails with `Unsupported` for LUKS1.
fn luks2_of(header: Header, name: &Path) -> Result<luks2::Header> {
    match header {
        Header::Luks2(header) => Ok(*header),
        _ => {
            let what = format!("{}: LUKS1 keeps nowhere how far a reencryption is", name.display());
            Err(Error::new(Exit::Unsupported, what)
                .with_remedy("`underseal header convert --to luks2` first"))
        }
    }
}

fn options(args: &ReencryptArgs, header: &luks2::Header, place: &Place<'_>) -> Result<BeginOptions> {
    let sector_size = args.sector_size.map(SectorSize::new).transpose()?;
    let stays = |of: &SegmentInfo| {
        let cipher = args.cipher.as_ref().map(ToString::to_string);
        let sectors = sector_size.map(SectorSize::bytes);
        cipher.is_none_or(|new| of.cipher == Some(new))
            && sectors.is_none_or(|new| of.sector_size == Some(new))
    };
    if args.keep_key && args.reduce_device_size.is_none() && header.info().segments.iter().all(stays) {
        let error = Error::usage(format!(
            "{}: with the old key, nothing of it would become another",
            place.name.display()
        ));
        return Err(error.with_remedy("--cipher or --sector-size, or without --keep-key"));
    }
    let key = match (args.keep_key, new_key(args)?) {
        (true, _) => NewKey::Keep,
        (false, Some(key)) => NewKey::Given(key),
        (false, None) => NewKey::Random(key_size(args)?),
    };
    let mut all = forms(&header.info().segments)?;
    if let Some((cipher, sectors)) = all.first().cloned() {
        all.push((args.cipher.clone().unwrap_or(cipher), sector_size.unwrap_or(sectors)));
    }
    // Data that move keep their source.
    let protection = match args.reduce_device_size {
        Some(_) => Protection::None,
        None => protection(args, place.image, &all)?,
    };
    Ok(BeginOptions {
        cipher: args.cipher.clone(),
        sector_size,
        key,
        direction: direction(args).unwrap_or(match args.reduce_device_size {
            Some(_) => Direction::Backward,
            None => Direction::Forward,
        }),
        protection,
        shift: args.reduce_device_size,
        size: args.device_size,
        detached: place.detached,
        allow_null: false,
        is_open: place.size.is_some(),
    })
}

/// Returns the new key, if one was given.
fn new_key(args: &ReencryptArgs) -> Result<Option<Key>> {
    let wanted = key_size(args)?;
    let Some(file) = &args.volume_key_file else { return Ok(None) };
    let key = volume_key_file(file, None, wanted.unwrap_or(64))?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != key.len()) {
        let (file, has, wanted) = (file.display(), key.len() * 8, wanted * 8);
        return Err(Error::usage(format!("{file}: a key of {has} bits, and --key-size says {wanted}")));
    }
    Ok(Some(key))
}

/// Returns the key's size in bytes.
fn key_size(args: &ReencryptArgs) -> Result<Option<usize>> {
    if args.key_size.is_some_and(|bits| !bits.is_multiple_of(8)) {
        return Err(Error::usage("the key's bits are no whole number of bytes"));
    }
    Ok(args.key_size.map(|bits| bits / 8))
}

/// Refuses to go backward where no data move. cryptsetup's `repair` makes the last step good, and
/// its `reencrypt --resume-only` then takes the header for that of a reencryption that has not
/// begun, and does it once more.
pub(super) fn refuse_backward(args: &ReencryptArgs) -> Result<()> {
    if direction(args) == Some(Direction::Backward) && args.reduce_device_size.is_none() {
        let what = "--direction backward is for data that move: cryptsetup would destroy others after a kill in the \
                    last step";
        return Err(Error::usage(what).with_remedy("without --direction"));
    }
    Ok(())
}

pub(super) fn direction(args: &ReencryptArgs) -> Option<Direction> {
    args.direction.map(|way| match way {
        StepOrder::Forward => Direction::Forward,
        StepOrder::Backward => Direction::Backward,
    })
}

/// Refuses protection by the place that data move away from where they do not move: it would be
/// none.
pub(super) fn refuse_datashift(args: &ReencryptArgs) -> Result<()> {
    use Resilience::{Datashift, DatashiftChecksum, DatashiftJournal};
    match args.resilience {
        Some(Datashift | DatashiftChecksum | DatashiftJournal) if args.reduce_device_size.is_none() => {
            let what = "the data stay where they are, so --resilience datashift would protect no step";
            Err(Error::usage(format!("{}: {what}", args.image.display()))
                .with_remedy("--resilience checksum or journal"))
        }
        _ => Ok(()),
    }
}

/// What protects steps that are written over their own source, which has these forms: checksums
/// where they are enough, unless something else is asked for.
///
/// # Errors
/// `Failed` when the image cannot be looked at; `Unsupported` for ciphers that this build does not
/// know.
pub(super) fn protection(args: &ReencryptArgs, image: &Path, forms: &[SectorForm]) -> Result<Protection> {
    let disk = match File::open(image) {
        Ok(file) => DiskBlocks::of(&file).map_err(|e| Error::io(image, "cannot look at it", e))?,
        Err(_) => DiskBlocks::OF_FILES,
    };
    let wanted = match args.resilience {
        None => WantedProtection::Enough,
        Some(Resilience::Checksum | Resilience::DatashiftChecksum) => WantedProtection::Checksum,
        Some(Resilience::Journal | Resilience::DatashiftJournal) => WantedProtection::Journal,
        Some(Resilience::None | Resilience::Datashift) => WantedProtection::None,
    };
    Ok(wanted.on(disk, args.resilience_hash, forms)?)
}

/// Makes a file for its owner only, and syncs it and its name. Fails with `Usage` when the file
/// exists; with `Failed`.
pub(super) fn new_file(path: &Path) -> Result<NamedFile> {
    underseal_volume::new_file(path).map_err(|e| taken(path, e))
}

/// The error of a start that makes a file at `path`.
pub(super) fn taken(path: &Path, e: underseal_volume::Error) -> Error {
    let is_taken = e.kind() == ErrorKind::BadOption && path.exists();
    let error = Error::from(e);
    if is_taken { error.with_remedy("another name, or move it away") } else { error }
}
