//! `underseal integrity`.

mod check;
mod format;
mod info;
mod open;
mod place;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use underseal_integrity::{JournalCrypt, KeyedHash, OpenSettings, Recalculate, WriteMode};

use self::check::IntegrityCheckArgs;
use self::format::IntegrityFormatArgs;
use self::info::IntegrityInfoArgs;
use self::open::IntegrityOpenArgs;
use self::place::{IntegrityPlaceArgs, Volume, said};
use crate::error::{Error, Result};
use crate::output::print;
use crate::passphrase::secret_file;
use crate::progress::Progress;

/// Works on dm-integrity volumes that stand alone: a checksum or MAC for each block, nothing
/// encrypted.
///
/// What is made here opens with integritysetup and the kernel, and the other way round. The
/// superblock does not say which hash made the checksums: it has to be named each time, and with a
/// wrong one nothing can be read.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityCommandArgs {
    #[command(subcommand)]
    pub(crate) what: Integrity,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Integrity {
    Format(IntegrityFormatArgs),
    Open(Box<IntegrityOpenArgs>),
    Info(IntegrityInfoArgs),
    Check(IntegrityCheckArgs),
    Recalculate(IntegrityRecalculateArgs),
}

pub(super) fn run(args: &IntegrityCommandArgs, quiet: bool) -> Result<()> {
    match &args.what {
        Integrity::Format(args) => format::run(args, quiet),
        Integrity::Open(args) => self::open::run(args, quiet),
        Integrity::Info(args) => info::run(args),
        Integrity::Check(args) => check::run(args, quiet),
        Integrity::Recalculate(args) => recalculate(args, quiet),
    }
}

/// The hashes and their keys. Keys are never arguments and never in the environment: both can be
/// read by others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Hashes and keys")]
pub(crate) struct IntegrityHashArgs {
    /// The hash of the checksums: crc32c, crc32, xxhash64, sha1, sha256, hmac-sha256 .., "none" if
    /// dm-crypt above has tags
    #[arg(long, value_name = "HASH", default_value = "crc32c")]
    pub(crate) integrity: String,
    /// The hash's key: all bytes of this file ("-" is stdin)
    #[arg(long, value_name = "FILE")]
    pub(crate) integrity_key_file: Option<PathBuf>,
    /// Use BYTES bytes of that file
    #[arg(long, value_name = "BYTES", requires = "integrity_key_file")]
    pub(crate) integrity_key_size: Option<u64>,
    /// The hash that protects the journal's sector numbers, and the superblock: sha256, hmac-sha256
    /// ..
    #[arg(long, value_name = "HASH")]
    pub(crate) journal_integrity: Option<String>,
    /// The key of that hash: all bytes of this file
    #[arg(long, value_name = "FILE", requires = "journal_integrity")]
    pub(crate) journal_integrity_key_file: Option<PathBuf>,
    /// Use BYTES bytes of that file
    #[arg(long, value_name = "BYTES", requires = "journal_integrity_key_file")]
    pub(crate) journal_integrity_key_size: Option<u64>,
    /// The cipher of the journal: ctr-aes, cbc-aes
    #[arg(long, value_name = "CIPHER", requires = "journal_crypt_key_file")]
    pub(crate) journal_crypt: Option<String>,
    /// The cipher's key: all bytes of this file
    #[arg(long, value_name = "FILE", requires = "journal_crypt")]
    pub(crate) journal_crypt_key_file: Option<PathBuf>,
    /// Use BYTES bytes of that file
    #[arg(long, value_name = "BYTES", requires = "journal_crypt_key_file")]
    pub(crate) journal_crypt_key_size: Option<u64>,
}

/// Returns the settings for opening a volume, with the keys read from their files.
fn options(mode: WriteMode, place: &IntegrityPlaceArgs, hashes: &IntegrityHashArgs) -> Result<OpenSettings> {
    let key = |file: &Option<PathBuf>, size| file.as_ref().map(|file| secret_file(file, 0, size)).transpose();
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

/// Makes the checksums anew from what is there; goes on where it was stopped
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityRecalculateArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,
    /// From the beginning, whatever was done before
    #[arg(long)]
    pub(crate) reset: bool,
    /// Permit it with a key, too, although the new checksums then also cover changes of an attacker
    #[arg(long)]
    pub(crate) integrity_legacy_recalculate: bool,
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

const EXAMPLES: &str = "\
Examples:
  underseal integrity format disk.img --size 10G
  underseal integrity format disk.img --size 10G --integrity hmac-sha256 --integrity-key-file key
  underseal integrity open disk.img --nbd unix:disk.sock
  underseal integrity info disk.img
  underseal integrity check disk.img                 every block whose checksum is wrong
  underseal integrity recalculate disk.img --reset";
