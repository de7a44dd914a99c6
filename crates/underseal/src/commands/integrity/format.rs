//! `underseal integrity format`.

use std::fs::File;
use std::path::Path;

use clap::Args;
use underseal_integrity::{Disk, Flags};
use underseal_integrity::{
    NewSuperblock, OpenSettings, Superblock, TagMaker, VolumeGeometry, Wipe, WriteMode, format, wipe,
};
use underseal_volume::{create_private, remove_new_file};

use super::place::{IntegrityPlaceArgs, Volume};
use super::{EXAMPLES, IntegrityHashArgs, options};
use crate::error::{Error, Result};
use crate::lower::is_remote;
use crate::output::print;
use crate::passphrase::confirm;
use crate::progress::Progress;
use crate::size;

/// Makes a volume, and writes zeros over it so that all of it can be read
///
/// IMAGE is created (for you alone, and sparse) if it does not exist and --size is given; else what
/// it holds is lost, for which --force is needed unless it begins with zeros.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct IntegrityFormatArgs {
    #[command(flatten)]
    pub(crate) place: IntegrityPlaceArgs,
    /// The size of an image that does not exist yet
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Overwrite what is there without asking
    #[arg(long)]
    pub(crate) force: bool,
    /// Write no zeros: a block can be read once it was written, or all when they were recalculated
    #[arg(long)]
    pub(crate) no_wipe: bool,
    #[command(flatten)]
    pub(crate) hashes: IntegrityHashArgs,

    /// Bytes of a checksum; as long as the hash by default
    #[arg(long, value_name = "BYTES", help_heading = LAYOUT)]
    pub(crate) tag_size: Option<u16>,
    /// Bytes of a block, which has one checksum: 512 to 4096
    #[arg(long, value_name = "BYTES", default_value_t = 512, help_heading = LAYOUT)]
    pub(crate) sector_size: u32,
    /// The journal's size; a 128th of the device by default, 64 MiB at most
    #[arg(long, value_name = "SIZE", value_parser = size::parse, help_heading = LAYOUT)]
    pub(crate) journal_size: Option<u64>,
    /// Sectors of data between checksums
    #[arg(long, value_name = "SECTORS", help_heading = LAYOUT)]
    pub(crate) interleave_sectors: Option<u32>,
    /// For kernels before 5.11: checksums are padded to 128 KiB
    #[arg(long, help_heading = LAYOUT)]
    pub(crate) integrity_legacy_padding: bool,
    /// For kernels before 5.11: no salt, and sections of the journal can be exchanged
    #[arg(long, help_heading = LAYOUT)]
    pub(crate) integrity_legacy_hmac: bool,
}

pub(super) fn run(args: &IntegrityFormatArgs, quiet: bool) -> Result<()> {
    let place = &args.place;
    let options = options(WriteMode::Journal, place, &args.hashes)?;
    let made = args.size.map(|size| make(&place.image, size)).transpose()?;
    let volume = match &made {
        Some(made) => Volume::open_new(place, made.file()?)?,
        None => Volume::open(place, false)?,
    };
    let disks = volume.disks();
    if made.is_none() {
        allow_overwriting(disks.metadata(), &place.image, options.start, args.force)?;
    }
    if let (Some(data), Some(_), false) = (&place.data_device, &options.hash, args.no_wipe) {
        // Zeros are written to all of it.
        allow_overwriting(disks.data, data, 0, args.force)?;
    }
    let layout = NewSuperblock {
        tag_size: args.tag_size,
        block_size: args.sector_size,
        journal_sectors: args.journal_size.map(|bytes| bytes / 512),
        interleave_sectors: args.interleave_sectors,
        legacy_padding: args.integrity_legacy_padding,
        legacy_hmac: args.integrity_legacy_hmac,
        recalculating: false,
    };
    let sizes = disks.sizes().map_err(|e| volume.said(e))?;
    let superblock = layout.superblock(&options, sizes).map_err(|e| volume.said(e).into_usage())?;
    format(&disks, &options, &superblock).map_err(|e| volume.said(e))?;
    if !args.no_wipe {
        // A new image has zeros everywhere.
        let what = if made.is_some() && place.data_device.is_none() { Wipe::Tags } else { Wipe::All };
        write_zeros(&volume, &options, &superblock, what, quiet)?;
    }
    if let Some(made) = made {
        made.keep();
    }
    let hash = options.hash.as_ref().map_or("checksums of dm-crypt's", |hash| hash.name());
    let said = format!(
        "{}: integrity volume of {}, {hash} of {} bytes for each {}\n",
        place.image.display(),
        size::show(superblock.provided * 512),
        superblock.tag_size,
        size::show(superblock.block_size().into()),
    );
    if quiet { Ok(()) } else { print(&said) }
}

fn write_zeros(
    volume: &Volume,
    options: &OpenSettings,
    superblock: &Superblock,
    what: Wipe,
    quiet: bool,
) -> Result<()> {
    // dm-crypt above the layer makes the tags, together with the data.
    let Some(hash) = options.hash.clone() else { return Ok(()) };
    let disks = volume.disks();
    let sizes = disks.sizes().map_err(|e| volume.said(e))?;
    let geometry = VolumeGeometry::new(superblock, options, sizes).map_err(|e| volume.said(e))?;
    let salt = superblock.flags.has(Flags::FIXED_HMAC).then_some(superblock.salt);
    let tags = TagMaker::new(hash, salt, geometry.tag_size(), geometry.block_size());
    let mut progress = Progress::new("wiping", Some(geometry.provided() * 512), quiet);
    volume.each(geometry.provided(), &mut progress, |sectors| {
        wipe(&volume.disks(), &geometry, &tags, sectors, what)
    })?;
    disks.sync().map_err(|e| volume.said(e))
}

/// A new image, which is removed again unless it is kept.
struct Made<'p> {
    path: &'p Path,
    file: File,
    is_kept: bool,
}

/// Makes the image, for its owner only, and sparse.
fn make(path: &Path, size: u64) -> Result<Made<'_>> {
    if is_remote(path) {
        return Err(Error::usage(format!("{}: its size is settled there", path.display()))
            .with_remedy("without --size"));
    }
    let file = create_private(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Error::usage(format!("{}: is there already", path.display()))
            .with_remedy("without --size, or another image"),
        _ => Error::io(path, "cannot create", e),
    })?;
    let made = Made { path, file, is_kept: false };
    made.file.set_len(size).map_err(|e| Error::io(path, "cannot set the size", e))?;
    Ok(made)
}

impl Made<'_> {
    fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(|e| Error::io(self.path, "cannot open", e))
    }

    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            remove_new_file(self.path, &self.file);
        }
    }
}

/// Asks before existing data are overwritten.
fn allow_overwriting(head: &dyn Disk, path: &Path, start: u64, force: bool) -> Result<()> {
    use underseal_volume::signature::{LOOKED_AT, signature};
    let failed = |e: std::io::Error| Error::io(path, "cannot read", e);
    let at = start * 512;
    let len = head.size().map_err(failed)?.saturating_sub(at).min(LOOKED_AT);
    let mut there = vec![0; usize::try_from(len).unwrap_or(0)];
    head.read_at(at, &mut there).map_err(failed)?;
    if force || there.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let found = signature(&there).unwrap_or("data");
    let image = path.display();
    if confirm(&format!("{image} holds {found}. It will be lost for ever."))? {
        return Ok(());
    }
    Err(Error::usage(format!("{image}: holds {found}, which would be lost"))
        .with_remedy("another image, or --force to overwrite this one"))
}

const LAYOUT: &str = "Layout";
