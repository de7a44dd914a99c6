//! Whether the users of the data can take larger sectors. A file system whose blocks are smaller
//! than a device's sectors cannot be mounted any more, although nothing of it is lost.

use std::io;
use std::path::Path;

use underseal_cipher::SectorSize;
use underseal_volume::signature::{LOOKED_AT, block_size};
use underseal_volume::{ActivateOptions, Header, ReadAt, VolumeKey};

use super::Place;
use crate::cli::ReencryptArgs;
use crate::error::{Error, Result};

/// Checks the sectors that plain data is to be encrypted with.
///
/// # Errors
/// `Usage` when the data begin with a file system that has smaller blocks.
pub(super) fn fit_plain(sector_size: SectorSize, data: &dyn ReadAt, image: &Path) -> Result<()> {
    let start = start(data).map_err(|e| Error::io(image, "cannot read", e))?;
    fit(sector_size, block_size(&start), image)
}

/// Checks the sectors that a volume is to get. One that is open has told its users how large its
/// sectors may become.
///
/// # Errors
/// `Usage` when they become larger, and the volume begins with a file system that has smaller
/// blocks; or with something unknown, unless `--force-offline-reencrypt` is given.
pub(super) fn fit_volume(
    args: &ReencryptArgs,
    header: &Header,
    key: &VolumeKey,
    place: &Place<'_>,
) -> Result<()> {
    let Some(sector_size) = args.sector_size.map(SectorSize::new).transpose()? else { return Ok(()) };
    let sectors = header.info().segments.iter().map(|segment| segment.sector_size.unwrap_or(512)).max();
    if place.size.is_some() || sector_size.bytes() as u64 <= sectors.unwrap_or(512) as u64 {
        return Ok(());
    }
    let blocks = plain_start(header, key, place).as_deref().and_then(block_size);
    if blocks.is_none() && !args.force_offline_reencrypt {
        let what = format!(
            "{}: nothing says that what is on the volume can take sectors of {} bytes",
            place.image.display(),
            sector_size.bytes()
        );
        return Err(Error::usage(what)
            .with_remedy("--force-offline-reencrypt, if its users can; or without --sector-size"));
    }
    fit(sector_size, blocks, place.image)
}

fn fit(sector_size: SectorSize, blocks: Option<u32>, image: &Path) -> Result<()> {
    let Some(blocks) = blocks.filter(|&blocks| (blocks as usize) < sector_size.bytes()) else {
        return Ok(());
    };
    let what = format!(
        "{}: its file system has blocks of {blocks} bytes and could not be mounted on sectors of {}",
        image.display(),
        sector_size.bytes()
    );
    Err(Error::usage(what).with_remedy(format!("--sector-size {blocks} or less")))
}

fn start(data: &dyn ReadAt) -> io::Result<Vec<u8>> {
    let mut start = vec![0; usize::try_from(data.size()?.min(LOOKED_AT)).unwrap_or(0)];
    data.read_exact_at(&mut start, 0)?;
    Ok(start)
}

/// The first decrypted bytes of the volume; none where they cannot be read, or are not all of one
/// segment.
fn plain_start(header: &Header, key: &VolumeKey, place: &Place<'_>) -> Option<Vec<u8>> {
    let options = ActivateOptions { detached: place.detached, ..ActivateOptions::default() };
    let volume = header.activate(key, place.data.size().ok()?, &options).ok()?;
    let segment = volume.segments().first()?;
    let stored = segment.as_stored()?;
    let len = usize::try_from(segment.len.min(LOOKED_AT)).ok()?;
    let mut bytes = vec![0; len - len % stored.cipher.sector_size().bytes()];
    place.data.read_exact_at(&mut bytes, stored.lower).ok()?;
    stored.cipher.decrypt(stored.iv_offset, bytes.as_mut_slice().into());
    Some(bytes)
}
