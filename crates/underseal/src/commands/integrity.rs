//! `underseal integrity`.

mod check;
mod format;
mod info;
mod open;
mod place;

use underseal_integrity::{JournalCrypt, KeyedHash, OpenSettings, Recalculate, WriteMode};

use self::place::{Volume, said};
use crate::cli::{
    Integrity, IntegrityCommandArgs, IntegrityHashArgs, IntegrityPlaceArgs, IntegrityRecalculateArgs,
};
use crate::error::{Error, Result};
use crate::output::print;
use crate::passphrase::secret_file;
use crate::progress::Progress;

pub(super) fn run(args: &IntegrityCommandArgs, quiet: bool) -> Result<()> {
    match &args.what {
        Integrity::Format(args) => format::run(args, quiet),
        Integrity::Open(args) => self::open::run(args, quiet),
        Integrity::Info(args) => info::run(args),
        Integrity::Check(args) => check::run(args, quiet),
        Integrity::Recalculate(args) => recalculate(args, quiet),
    }
}

/// Returns the settings for opening a volume, with the keys read from their files.
fn options(mode: WriteMode, place: &IntegrityPlaceArgs, hashes: &IntegrityHashArgs) -> Result<OpenSettings> {
    let key = |file: &Option<std::path::PathBuf>, size| {
        file.as_ref().map(|file| secret_file(file, 0, size)).transpose()
    };
    let mut options = without_keys(mode, place)?;
    if hashes.integrity != "none" {
        let key = key(&hashes.integrity_key_file, hashes.integrity_key_size)?;
        options.hash = Some(KeyedHash::new(&hashes.integrity, key.as_ref()).map_err(said)?);
    }
    if let Some(name) = &hashes.journal_integrity {
        let key = key(&hashes.journal_integrity_key_file, hashes.journal_integrity_key_size)?;
        options.journal_mac = Some(KeyedHash::new(name, key.as_ref()).map_err(said)?);
    }
    if let Some((name, key)) =
        hashes.journal_crypt.as_ref().zip(key(&hashes.journal_crypt_key_file, hashes.journal_crypt_key_size)?)
    {
        options.journal_crypt = Some(JournalCrypt::new(name, &key).map_err(said)?);
    }
    Ok(options)
}

fn without_keys(mode: WriteMode, place: &IntegrityPlaceArgs) -> Result<OpenSettings> {
    if !place.start.is_multiple_of(512) {
        return Err(Error::usage("--start is no whole number of sectors").with_remedy("--start 2048s"));
    }
    let (start, buffer_sectors) = (place.start / 512, place.buffer_sectors);
    Ok(OpenSettings { start, buffer_sectors, ..OpenSettings::new(mode) })
}

fn recalculate(args: &IntegrityRecalculateArgs, quiet: bool) -> Result<()> {
    let options = OpenSettings {
        recalculate: if args.reset { Recalculate::Reset } else { Recalculate::Begin },
        legacy_recalculate: args.integrity_legacy_recalculate,
        ..options(WriteMode::Journal, &args.place, &args.hashes)?
    };
    let volume = Volume::open(&args.place, false)?;
    let disks = volume.disks();
    let mut opened = underseal_integrity::open(&disks, &options).map_err(|e| volume.said(e))?;
    let provided = opened.geometry.provided();
    let mut done = opened.recalculation().unwrap_or(provided);
    let mut progress = Progress::new("recalculating", Some((provided - done) * 512), quiet);
    let recalculated = opened.recalculate(&disks, &options, |now| {
        progress.advance((now - done) * 512);
        done = now;
        true
    });
    recalculated.map_err(|e| volume.said(e))?;
    drop(progress);
    if quiet { Ok(()) } else { print(&format!("{}: all checksums are made\n", args.place.image.display())) }
}
