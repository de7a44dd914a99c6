//! `underseal integrity open`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use underseal_datapath::Mapping;
use underseal_device::Device;
use underseal_export::control::Known;
use underseal_export::control::status::{Format, Opened as Described};
use underseal_integrity::{OpenSettings, Recalculate, RunSettings, WriteMode};
use underseal_volume::Volume;

use super::options;
use super::place::said;
use crate::cli::{IntegrityModeArgs, IntegrityOpenArgs};
use crate::commands::{open, same_file};
use crate::error::{Error, Result};
use crate::integrity::{Below, stand};
use crate::lower::Lower;
use crate::volume::{Locks, Opened};

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
