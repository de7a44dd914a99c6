//! The size of the image for a volume of a given size: data, header, and tags.

use underseal_volume::{FormatOptions, IntegrityLayer};

use super::args::FormatArgs;
use crate::error::{Error, Result};
use crate::integrity;

/// The start of the data, and the end of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needed {
    pub(super) data_offset: u64,
    pub(super) image: u64,
    /// The bytes of the volume in between.
    pub(super) plain: u64,
}

/// Returns the smallest image whose volume has exactly `plain` bytes. Fails with `Usage` for a size
/// that is not possible with these options.
pub(super) fn needed(options: &FormatOptions, plain: u64) -> Result<Needed> {
    let layer = options.integrity_layer()?;
    // dm-integrity offers a multiple of 4096 bytes, whatever its block size is.
    let sector = options.sector_size.map(|size| size.bytes() as u64);
    whole(plain, layer.map_or(sector, |_| Some(4096)))?;
    let data_offset = options.data_begins()?;
    let begun = end(data_offset, plain)?;
    let image = layer.map_or(Ok(begun), |layer| with_tags(&layer, plain, begun))?;
    Ok(Needed { data_offset, image, plain })
}

/// Returns the size of the image for a volume without a header.
pub(super) fn of_file(args: &FormatArgs, plain: u64) -> Result<Needed> {
    whole(plain, args.sector_size.map(u64::from))?;
    let data_offset = args.data_offset.unwrap_or(0);
    Ok(Needed { data_offset, image: end(data_offset, plain)?, plain })
}

/// Refuses a size that is no whole number of sectors, of 512 bytes by default.
fn whole(plain: u64, sector: Option<u64>) -> Result<()> {
    let sector = sector.unwrap_or(512).max(512);
    if plain > 0 && plain.is_multiple_of(sector) {
        return Ok(());
    }
    let context = format!("{plain} bytes are no volume of {sector}-byte sectors");
    let next = plain.max(1).checked_next_multiple_of(sector).unwrap_or(sector);
    Err(Error::usage(context).with_remedy(format!("--plain-size {next}")))
}

/// Returns the end of an image; a file has at most 2^63 - 1 bytes.
fn end(from: u64, bytes: u64) -> Result<u64> {
    let end = from.checked_add(bytes).filter(|end| i64::try_from(*end).is_ok());
    end.ok_or_else(|| Error::usage("larger than any image").with_remedy("a smaller --plain-size"))
}

/// Returns the smallest image on which a layer offers `plain` bytes. Each byte of an image adds at
/// most one byte to the volume: at least the missing bytes have to be added, so no step overshoots.
fn with_tags(layer: &IntegrityLayer, plain: u64, begun: u64) -> Result<u64> {
    let mut image = begun;
    loop {
        let missing = plain.saturating_sub(integrity::offers(layer, image)?);
        if missing == 0 {
            return Ok(image);
        }
        image = end(image, missing)?;
    }
}
