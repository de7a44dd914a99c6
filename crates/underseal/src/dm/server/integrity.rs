//! dm-integrity's layout: made on a new device, as the kernel does when a table is loaded; and its
//! state.

use std::fs::File;
use std::io;

use underseal_device::Device;
use underseal_integrity::{Disk, Disks, IntegrityDevice, NewSuperblock, Recalculate, WriteMode, format};
use underseal_volume::table::IntegrityLine;

use crate::error::{Error, Result};
use crate::integrity::line_options;

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

/// Returns the number of sectors of a layer that keeps tags which the line above makes, from its
/// superblock.
pub(super) fn provided(line: &IntegrityLine, data: &File, meta: Option<&File>) -> Result<u64> {
    let disks = Disks { data, meta: meta.map(|meta| meta as &dyn Disk) };
    let (options, _) = line_options(line)?;
    Ok(underseal_integrity::look(&disks, &options)?.geometry.provided())
}

/// Returns `mismatches sectors recalculated` in the kernel's form: `-` where nothing is
/// recalculated.
pub(super) fn status(layer: &IntegrityDevice) -> String {
    let status = layer.status();
    let recalculated = status.recalculated.map_or_else(|| "-".to_owned(), |(done, _)| done.to_string());
    format!("{} {} {recalculated}", status.mismatches, layer.geometry().size >> 9)
}

fn failed(doing: &str, e: io::Error) -> Error {
    Error::io("the integrity device".as_ref(), doing, e)
}
