//! Whether the users of the data can take larger sectors.

use std::path::Path;

use underseal_cipher::SectorSize;
use underseal_volume::reencrypt::SectorFit;
use underseal_volume::{Header, Target, VolumeKey};

use super::Place;
use crate::commands::reencrypt::args::ReencryptArgs;
use crate::error::{Error, Result};

/// Checks the sectors that plain data is to be encrypted with.
///
/// # Errors
/// `Usage` when the data begin with a file system that has smaller blocks.
pub(super) fn fit_plain(sector_size: SectorSize, data: &dyn Target, image: &Path) -> Result<()> {
    let fit = SectorFit::of_plain(sector_size, data).map_err(|e| e.in_file(image))?;
    check(fit, sector_size, image, true)
}

/// Checks the new sectors of a volume. An open volume has told its clients how large its sectors
/// may become. Fails with `Usage` when they become larger, and the volume begins with a filesystem
/// that has smaller blocks; or with something unknown, unless `--force-offline-reencrypt` is given.
pub(super) fn fit_volume(
    args: &ReencryptArgs,
    header: &Header,
    key: &VolumeKey,
    place: &Place<'_>,
) -> Result<()> {
    let Some(sector_size) = args.sector_size.map(SectorSize::new).transpose()? else { return Ok(()) };
    if place.size.is_some() {
        return Ok(());
    }
    let fit = SectorFit::of_volume(sector_size, header, key, (place.data, place.detached));
    check(fit, sector_size, place.image, args.force_offline_reencrypt)
}

fn check(fit: SectorFit, sector_size: SectorSize, image: &Path, allow_unknown: bool) -> Result<()> {
    let (image, sectors) = (image.display(), sector_size.bytes());
    let (what, remedy) = match fit {
        SectorFit::Fits => return Ok(()),
        SectorFit::Unknown if allow_unknown => return Ok(()),
        SectorFit::Unknown => (
            format!("{image}: nothing says that what is on the volume can take sectors of {sectors} bytes"),
            "--force-offline-reencrypt, if its users can; or without --sector-size".into(),
        ),
        SectorFit::SmallerBlocks(blocks) => (
            format!(
                "{image}: its file system has blocks of {blocks} bytes and could not be mounted on sectors of {sectors}"
            ),
            format!("--sector-size {blocks} or less"),
        ),
    };
    Err(Error::usage(what).with_remedy(remedy))
}
