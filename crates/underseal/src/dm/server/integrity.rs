//! dm-integrity's layout: made on a new device, as the kernel does when a table is loaded; its
//! words in a printed table; and its state.

use std::fs::File;
use std::io;

use underseal_device::Device;
use underseal_integrity::{
    Disk, Disks, Flags, IntegrityDevice, NewSuperblock, OpenSettings, OpenedVolume, Recalculate, RunSettings,
    WriteMode, format,
};
use underseal_volume::table::IntegrityLine;

use crate::dm::orders::LayerWords;
use crate::error::{Error, Result};
use crate::integrity::line_options;

/// The largest number of sectors in the kernel's buffers of tags.
const LARGEST_BUFFER: u32 = 1 << 22;
/// The smallest one, on a metadata device without room for larger ones.
const SMALLEST_BUFFER: u64 = 8;

/// Writes a superblock and an empty journal where the superblock's place is all zeros. Other
/// contents are left to the later open.
pub(super) fn format_where_new(line: &IntegrityLine, data: &File, meta: Option<&File>) -> Result<()> {
    let disks = Disks { data, meta: meta.map(|meta| meta as &dyn Disk) };
    let (mut options, _) = line_options(line)?;
    let mut superblock = [0; 512];
    disks.metadata().read_at(options.start * 512, &mut superblock).map_err(|e| failed("cannot read", e))?;
    if superblock != [0; 512] {
        return Ok(());
    }
    let number = |name: &str| line.option(name).and_then(|value| value.parse::<u64>().ok());
    let narrow = |name: &str| number(name).and_then(|value| u32::try_from(value).ok());
    let layout = NewSuperblock {
        tag_size: line.tag_size,
        block_size: narrow("block_size").unwrap_or(512),
        journal_sectors: number("journal_sectors"),
        interleave_sectors: narrow("interleave_sectors"),
        legacy_padding: line.option("fix_padding").is_none(),
        legacy_hmac: line.option("fix_hmac").is_none(),
        recalculating: options.recalculate != Recalculate::AsNeeded,
    };
    // A new layer has a journal, whatever mode it is opened in later.
    if options.mode == WriteMode::Recovery {
        options.mode = WriteMode::Journal;
    }
    let superblock = layout.superblock(&options, disks.sizes()?)?;
    format(&disks, &options, &superblock)?;
    Ok(())
}

/// Returns what the kernel prints of a layer in its table, beside the line's own keys.
pub(super) fn words(line: &IntegrityLine, data: &File, meta: Option<&File>) -> Result<LayerWords> {
    let disks = Disks { data, meta: meta.map(|meta| meta as &dyn Disk) };
    let (options, settings) = line_options(line)?;
    let volume = underseal_integrity::look(&disks, &options)?;
    let meta = disks.sizes()?.meta.map(|bytes| bytes / 512);
    let (superblock, geometry) = (&volume.superblock, &volume.geometry);
    let has = |flag| superblock.flags.has(flag);
    let is_given = |name: &str| line.option(name).is_some();
    let mut words = Vec::new();
    if geometry.block_sectors() != 1 {
        words.push(format!("block_size:{}", geometry.block_size()));
    }
    let mut flag = |is_on: bool, word: &str| words.extend(is_on.then(|| word.to_owned()));
    // The superblock has a recalculation that the line asks for once the table is resumed.
    let is_asked = options.recalculate != Recalculate::AsNeeded;
    flag(is_asked || has(Flags::RECALCULATING), "recalculate");
    flag(is_given("reset_recalculate"), "reset_recalculate");
    flag(options.allow_discards, "allow_discards");
    words.push(format!("journal_sectors:{}", geometry.journal_bytes() / 512));
    words.push(format!("interleave_sectors:{}", 1_u64 << superblock.log2_interleave));
    words.push(format!("buffer_sectors:{}", buffer(&volume, &options, meta)));
    match options.mode {
        WriteMode::Journal => {
            words.push(format!("journal_watermark:{}", watermark(&volume, &settings)));
            words.push(format!("commit_time:{}", settings.commit_time.as_millis()));
        }
        WriteMode::Bitmap => {
            let blocks = 1_u64.checked_shl(superblock.log2_bitmap.into()).unwrap_or_default();
            words.push(format!("sectors_per_bit:{}", blocks.saturating_mul(geometry.block_sectors())));
            words.push(format!("bitmap_flush_interval:{}", settings.bitmap_time.as_millis()));
        }
        _ => {}
    }
    let mut flag = |is_on: bool, word: &str| words.extend(is_on.then(|| word.to_owned()));
    flag(has(Flags::FIXED_PADDING), "fix_padding");
    flag(has(Flags::FIXED_HMAC), "fix_hmac");
    flag(options.legacy_recalculate, "legacy_recalculate");
    Ok(LayerWords { tag_size: superblock.tag_size, words })
}

/// Returns the sectors in a buffer of tags: a power of two that divides a run of them, or that fits
/// on the metadata device.
fn buffer(volume: &OpenedVolume, options: &OpenSettings, meta: Option<u64>) -> u64 {
    let geometry = &volume.geometry;
    let wanted = options.buffer_sectors.clamp(1, LARGEST_BUFFER).ilog2();
    if let Some(run) = geometry.run() {
        return 1 << wanted.min(run.trailing_zeros());
    }
    let mut buffer = 1 << wanted;
    let blocks = geometry.provided() / geometry.block_sectors();
    let tags = blocks.saturating_mul(geometry.tag_size() as u64).div_ceil(512);
    let room = meta.map_or(u64::MAX, |meta| meta.saturating_sub(geometry.start() + geometry.initial()));
    while buffer > SMALLEST_BUFFER && tags.next_multiple_of(buffer) > room {
        buffer /= 2;
    }
    buffer
}

/// Returns the percentage of the journal's entries that the kernel's threshold amounts to.
fn watermark(volume: &OpenedVolume, settings: &RunSettings) -> u64 {
    let geometry = &volume.geometry;
    let entries = (u64::from(geometry.sections()) * geometry.section().entries() as u64).max(1);
    let free = (entries * (100 - u64::from(settings.watermark.min(100))) + 50) / 100;
    ((entries - free) * 100 + entries / 2) / entries
}

/// Returns the number of sectors of a layer that keeps tags which the line above makes, from its
/// superblock.
pub(super) fn provided(line: &IntegrityLine, data: &File, meta: Option<&File>) -> Result<u64> {
    let disks = Disks { data, meta: meta.map(|meta| meta as &dyn Disk) };
    let (options, _) = line_options(line)?;
    Ok(underseal_integrity::look(&disks, &options)?.geometry.provided())
}

/// Returns `mismatches sectors recalculated` in the kernel's form: `-` where nothing is
/// recalculated. A recalculation that the line asks for stays in the superblock when it is done.
pub(super) fn status(line: &IntegrityLine, layer: &IntegrityDevice) -> String {
    let (status, sectors) = (layer.status(), layer.geometry().size >> 9);
    let is_asked = ["recalculate", "reset_recalculate"].iter().any(|name| line.option(name).is_some());
    let recalculated = status.recalculated.map(|(done, _)| done).or_else(|| is_asked.then_some(sectors));
    let recalculated = recalculated.map_or_else(|| "-".to_owned(), |done| done.to_string());
    format!("{} {sectors} {recalculated}", status.mismatches)
}

fn failed(doing: &str, e: io::Error) -> Error {
    Error::io("the integrity device".as_ref(), doing, e)
}
