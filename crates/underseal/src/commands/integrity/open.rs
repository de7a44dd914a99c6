//! `underseal integrity open`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use underseal_datapath::Mapping;
use underseal_device::Device;
use underseal_export::control::Known;
use underseal_export::control::status::{Format, Opened as Described};
use underseal_integrity::{OpenSettings, Recalculate, RunSettings, WriteMode};
use underseal_volume::Volume;

use super::place::{IntegrityPlaceArgs, said};
use super::{EXAMPLES, IntegrityHashArgs, options};
use crate::cli::{LowerArgs, ServeArgs, TagCacheArgs};
use crate::commands::{open, same_file};
use crate::error::{Error, Result};
use crate::integrity::{Below, stand};
use crate::lower::Lower;
use crate::volume::{Locks, Opened};

/// Serves the bytes until SIGINT or SIGTERM, as `underseal open` does
///
/// A block whose checksum is wrong cannot be read. What the journal holds goes to its place first;
/// with --read-only it is read from the journal, and nothing is written.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityOpenArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    /// Refuse writes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let clients free space on the image, which shows how much of it is in use; a block that was
    /// discarded is then read unverified
    #[arg(long)]
    pub(crate) allow_discards: bool,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,
    #[command(flatten)]
    pub(crate) mode: IntegrityModeArgs,
    #[command(flatten)]
    pub(crate) lower: LowerArgs,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// How writes survive a power cut: by the journal, unless one of the first three is given.
#[derive(Debug, Args)]
#[command(next_help_heading = "Mode")]
pub(crate) struct IntegrityModeArgs {
    /// Write in place, without the journal: what is being written when the power goes cannot be
    /// read afterwards. A journal that was left behind is replayed all the same
    #[arg(long, group = "mode")]
    pub(crate) integrity_no_journal: bool,
    /// Write in place, and keep a bitmap of where: checksums are made anew there when the power
    /// went
    #[arg(long, group = "mode")]
    pub(crate) integrity_bitmap_mode: bool,
    /// Read what is in its place, whatever the journal holds and without comparing checksums;
    /// nothing is written
    #[arg(long, group = "mode")]
    pub(crate) integrity_recovery_mode: bool,
    /// So much of the journal is filled before its blocks are copied to their places
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    pub(crate) journal_watermark: Option<u8>,
    /// Writes are in the journal on disk after this time, also without a flush
    #[arg(long, value_name = "MS")]
    pub(crate) journal_commit_time: Option<u32>,
    /// How many sectors a bit of the bitmap stands for
    #[arg(long, value_name = "SECTORS", requires = "integrity_bitmap_mode")]
    pub(crate) bitmap_sectors_per_bit: Option<u32>,
    /// Bits of the bitmap are cleared this long after the last write
    #[arg(long, value_name = "MS", requires = "integrity_bitmap_mode")]
    pub(crate) bitmap_flush_time: Option<u32>,
    /// Make checksums anew from what is there, beside requests, unless that was begun before
    #[arg(long, conflicts_with_all = ["read_only", "integrity_recovery_mode"])]
    pub(crate) integrity_recalculate: bool,
    /// The same, from the beginning
    #[arg(long, conflicts_with_all = ["read_only", "integrity_recovery_mode"])]
    pub(crate) integrity_recalculate_reset: bool,
    /// Permit it with a key, too, although the new checksums then also cover changes of an attacker
    #[arg(long)]
    pub(crate) integrity_legacy_recalculate: bool,
    #[command(flatten)]
    pub(crate) cache: TagCacheArgs,
}

pub(super) fn run(args: &IntegrityOpenArgs, quiet: bool) -> Result<()> {
    open::serve(&args.serve, &args.place.image, None, quiet, || opened(args))
}

fn opened(args: &IntegrityOpenArgs) -> Result<Opened> {
    let (image, data) = (&args.place.image, args.place.data_device.as_ref());
    if data.is_some_and(|data| same_file(image, data)) {
        let what = format!("{}: cannot have both the checksums and the data", image.display());
        return Err(Error::usage(what).with_remedy("--data-device with another one, or none"));
    }
    let options =
        modes(&args.mode, options(mode(&args.mode), &args.place, &args.hashes)?, args.allow_discards);
    if options.hash.is_none() {
        let what = "without a hash it has the checksums of dm-crypt's, and nothing of its own to serve";
        return Err(Error::usage(what).with_remedy("`underseal table open` with a crypt line on it"));
    }
    let lower =
        |path: &Path| Ok::<_, Error>(Lower::open(path, args.lower.options(args.read_only))?.into_device());
    let (head, data) = (lower(image)?, data.map(|data| lower(data)).transpose()?);
    let (data, meta) = match data {
        Some(data) => (data, Some(head)),
        None => (head, None),
    };
    let below = Below { data, meta, read_only: args.read_only };
    let layer = stand(below, &options, &settings(&args.mode));
    let layer = layer.map_err(|e| said(e).within(image.display()))?;
    let volume = Volume::as_it_lies(layer.geometry().size)?.with_discards(args.allow_discards);
    Ok(Opened {
        mapping: Mapping::new(volume, layer.clone() as Arc<dyn Device>)?,
        lower: [Some(image), args.place.data_device.as_ref()].into_iter().flatten().cloned().collect(),
        opened: Described {
            format: Format::Integrity,
            header: None,
            header_offset: 0,
            key_size: None,
            hash: None,
            plain: None,
            discards: false,
        },
        known: Known::default(),
        inside: None,
        unfinished: false,
        locks: Locks::default(),
        layers: vec![layer],
        image: None,
    })
}

fn mode(args: &IntegrityModeArgs) -> WriteMode {
    match () {
        () if args.integrity_recovery_mode => WriteMode::Recovery,
        () if args.integrity_bitmap_mode => WriteMode::Bitmap,
        () if args.integrity_no_journal => WriteMode::Direct,
        () => WriteMode::Journal,
    }
}

fn modes(args: &IntegrityModeArgs, options: OpenSettings, allow_discards: bool) -> OpenSettings {
    OpenSettings {
        allow_discards,
        recalculate: match () {
            () if args.integrity_recalculate_reset => Recalculate::Reset,
            () if args.integrity_recalculate => Recalculate::Begin,
            () => Recalculate::AsNeeded,
        },
        legacy_recalculate: args.integrity_legacy_recalculate,
        defers_growth: true,
        sectors_per_bit: args.bitmap_sectors_per_bit.map(u64::from),
        ..options
    }
}

fn settings(args: &IntegrityModeArgs) -> RunSettings {
    let defaults = args.cache.settings();
    let time = |ms: Option<u32>, default| ms.map_or(default, |ms| Duration::from_millis(ms.into()));
    RunSettings {
        watermark: args.journal_watermark.unwrap_or(defaults.watermark),
        commit_time: time(args.journal_commit_time, defaults.commit_time),
        bitmap_time: time(args.bitmap_flush_time, defaults.bitmap_time),
        ..defaults
    }
}
