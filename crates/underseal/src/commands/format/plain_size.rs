//! How large an image has to be for a volume of a wanted size: data, header, and what is kept
//! beside sectors.

use underseal_volume::{FormatOptions, IntegrityLayer};

use crate::cli::FormatArgs;
use crate::error::{Error, Result};
use crate::integrity;

/// Where the data begins, and where the image ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needed {
    pub(super) data_offset: u64,
    pub(super) image: u64,
    /// Bytes between.
    pub(super) plain: u64,
}

/// The smallest image whose volume has exactly so many bytes.
///
/// # Errors
/// `Usage` for a size that no volume of these options has.
pub(super) fn needed(options: &FormatOptions, plain: u64) -> Result<Needed> {
    let layer = options.integrity_layer()?;
    // dm-integrity offers whole 4096 bytes, whatever its blocks are.
    let sector = options.sector_size.map(|size| size.bytes() as u64);
    whole(plain, layer.map_or(sector, |_| Some(4096)))?;
    let data_offset = options.data_begins()?;
    let begun = end(data_offset, plain)?;
    let image = layer.map_or(Ok(begun), |layer| with_tags(&layer, plain, begun))?;
    Ok(Needed { data_offset, image, plain })
}

/// The same of a volume without a header.
///
/// # Errors
/// `Usage` for a size that no volume has.
pub(super) fn of_file(args: &FormatArgs, plain: u64) -> Result<Needed> {
    whole(plain, args.sector_size.map(u64::from))?;
    let data_offset = args.data_offset.unwrap_or(0);
    Ok(Needed { data_offset, image: end(data_offset, plain)?, plain })
}

/// Refuses what is no whole number of sectors, of 512 bytes where nothing was said.
fn whole(plain: u64, sector: Option<u64>) -> Result<()> {
    let sector = sector.unwrap_or(512).max(512);
    if plain > 0 && plain.is_multiple_of(sector) {
        return Ok(());
    }
    let context = format!("{plain} bytes are no volume of {sector}-byte sectors");
    let next = plain.max(1).checked_next_multiple_of(sector).unwrap_or(sector);
    Err(Error::usage(context).with_remedy(format!("--plain-size {next}")))
}

/// The end of an image; no file goes further than 63 bits.
fn end(from: u64, bytes: u64) -> Result<u64> {
    let end = from.checked_add(bytes).filter(|end| i64::try_from(*end).is_ok());
    end.ok_or_else(|| Error::usage("larger than any image").with_remedy("a smaller --plain-size"))
}

/// The smallest image of which a layer offers so much. Each byte of an image makes at most one of
/// the volume: what is missing is at least missing, so no step goes too far.
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
