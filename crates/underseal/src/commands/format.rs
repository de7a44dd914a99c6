//! `underseal format`.

mod args;
mod destination;
mod plain_size;
mod report;
mod veracrypt;

use std::path::Path;
use std::sync::Arc;

use underseal_cipher::SectorSize;
use underseal_datapath::Mapping;
use underseal_device::Device;
use underseal_volume::{ActivateOptions, ErrorKind, FormatOptions, IntegrityLayer, NewHeader, NewIntegrity};

pub(crate) use self::args::FormatArgs;
use self::args::NewType;
use self::destination::Destination;
use self::plain_size::Needed;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::integrity;
use crate::lower::{DeviceBytes, is_remote};
use crate::passphrase::{Secret, confirm, volume_key_file};
use crate::progress::Progress;
use crate::size;

pub(super) fn run(args: &FormatArgs, quiet: bool) -> Result<()> {
    if args.kind == NewType::Plain {
        return plain(args, quiet);
    }
    if args.kind == NewType::Veracrypt {
        return veracrypt::run(args, quiet);
    }
    let of = &args.veracrypt;
    if of.hidden_size.is_some() || of.prf.is_some() || of.pim.is_some() || of.quick {
        let what = "--hidden-size, --prf, --pim and --quick are for VeraCrypt volumes";
        return Err(Error::usage(what).with_remedy("--type veracrypt"));
    }
    let options = options(args)?;
    let needed = args.plain_size.map(|plain| plain_size::needed(&options, plain)).transpose()?;
    if let (Some(needed), true) = (needed, args.dry_run) {
        return report::needed(args, needed);
    }
    let mut image = open_image(args, needed)?;
    let mut header = args.header.as_ref().map(|path| Destination::open_header(path)).transpose()?;
    let on = header.as_ref().unwrap_or(&image);
    allow_overwriting(on, args.force)?;
    if header.is_some() && args.integrity.is_some() {
        // The layer of tags is made on the image.
        allow_overwriting(&image, args.force)?;
    }
    let passphrase = Secret::new(args.secret.source(), &args.image).get_new()?;
    let new = NewHeader::prepare(image.size(), &passphrase, options);
    let new = new.map_err(|e| refused(e, &args.image))?;
    let layer = new.integrity_layer()?;
    let plan = layer.map(|layer| plan_layer(&layer, &image)).transpose()?;
    // Nothing is changed until here. A detached header comes first: it may not fit, and the image
    // must not lose data then.
    let made = match &mut header {
        Some(header) => {
            header.settle()?;
            let made = header.write(&new)?;
            image.settle()?;
            made
        }
        None => {
            image.settle()?;
            image.write(&new)?
        }
    };
    let mut data = image.size().saturating_sub(made.data_offset());
    if let (Some(layer), Some(plan)) = (layer, plan) {
        let device = image.device()?;
        integrity::make(&DeviceBytes::new(&*device)?, &plan)?;
        let over = integrity::open_directly(&device, &layer)?;
        data = over.geometry().size;
        if !args.integrity_no_wipe {
            let options = ActivateOptions {
                detached: header.is_some(),
                allow_null: args.allow_null,
                over_integrity: true,
                ..ActivateOptions::default()
            };
            let volume =
                made.activate(&new.into_key(), data, &options).map_err(|e| e.in_file(&args.image))?;
            let mapping = Arc::new(Mapping::new(volume, over.clone())?);
            integrity::wipe(&mapping, &mut Progress::new("filling with zeros", Some(data), quiet))?;
        }
        over.close()?;
    }
    let image_size = image.size();
    image.keep();
    if let Some(header) = header {
        header.keep();
    }
    report::made(args, quiet, &made, image_size, data)
}

/// Opens the image, with the size of the options. Fails as the destination; `Usage` has the size
/// that an existing image needs.
fn open_image(args: &FormatArgs, needed: Option<Needed>) -> Result<Destination> {
    let size = needed.map(|needed| needed.image).or(args.size);
    Destination::open(&args.image, size, args.force).map_err(|e| match needed {
        Some(needed) if e.exit() == Exit::Usage => {
            let size = size::show(needed.image);
            e.with_remedy(format!("an image of {size}, which {} wants", size::show(needed.plain)))
        }
        _ => e,
    })
}

/// Makes a plain volume: only the file, since it has no header.
fn plain(args: &FormatArgs, quiet: bool) -> Result<()> {
    if args.header.is_some() {
        return Err(Error::usage("a plain volume has no header").with_remedy("without --header"));
    }
    let needed = args.plain_size.map(|plain| plain_size::of_file(args, plain)).transpose()?;
    if let (Some(needed), true) = (needed, args.dry_run) {
        return report::needed(args, needed);
    }
    let mut image = open_image(args, needed)?;
    image.settle()?;
    let size = image.size();
    image.keep();
    report::file(args, quiet, size)
}

fn options(args: &FormatArgs) -> Result<FormatOptions> {
    let defaults = match args.kind {
        NewType::Luks1 => FormatOptions::luks1(),
        _ => FormatOptions::luks2(),
    };
    if args.key_size.is_some_and(|bits| !bits.is_multiple_of(8)) {
        return Err(Error::usage("the key's bits are no whole number of bytes"));
    }
    let luks1 = args.kind == NewType::Luks1;
    if luks1 && (args.metadata_size.is_some() || args.keyslots_size.is_some()) {
        return Err(Error::usage("the sizes of a LUKS1 header are fixed").with_remedy("--type luks2"));
    }
    let mut options = FormatOptions {
        data_offset: args.data_offset,
        keyslot: args.key_slot,
        keyslot_cipher: args.area.cipher()?,
        metadata_size: args.metadata_size.unwrap_or(defaults.metadata_size),
        keyslots_size: args.keyslots_size,
        cipher: args.cipher.clone(),
        key_size: args.key_size.map(|bits| bits / 8),
        sector_size: args.sector_size.map(SectorSize::new).transpose()?,
        hash: args.pbkdf.hash.unwrap_or(defaults.hash),
        pbkdf: args.pbkdf.over(defaults.pbkdf)?,
        uuid: args.uuid,
        label: args.label.clone(),
        subsystem: args.subsystem.clone(),
        detached: args.header.is_some(),
        allow_null: args.allow_null,
        integrity: integrity(args)?,
        ..defaults
    };
    if let Some(file) = &args.volume_key_file {
        let len = options.key_len().map_err(|e| refused(e, &args.image))?;
        options.volume_key = Some(volume_key_file(file, None, len)?);
    }
    Ok(options)
}

/// Returns the tags to keep beside sectors.
fn integrity(args: &FormatArgs) -> Result<Option<NewIntegrity>> {
    let Some(kind) = &args.integrity else { return Ok(None) };
    if args.kind != NewType::Luks2 {
        return Err(Error::usage("only LUKS2 keeps tags beside sectors").with_remedy("--type luks2"));
    }
    if args.integrity_key_size.is_some_and(|bits| !bits.is_multiple_of(8)) {
        return Err(Error::usage("the MAC's key is no whole number of bytes"));
    }
    Ok(Some(NewIntegrity {
        kind: kind.clone(),
        key_size: args.integrity_key_size.map(|bits| bits / 8),
        has_journal: !args.integrity_no_journal,
    }))
}

/// Plans the integrity layer, before anything is changed.
fn plan_layer(layer: &IntegrityLayer, image: &Destination) -> Result<integrity::Plan> {
    let planned = integrity::plan(layer, image.size(), image.found());
    planned.map_err(|e| match e.exit() {
        Exit::BadHeader => e.within(image.path().display()).into_usage().with_remedy(larger(image.path())),
        _ => e.within(image.path().display()),
    })
}

/// Asks before existing data are overwritten.
fn allow_overwriting(on: &Destination, force: bool) -> Result<()> {
    let Some(found) = on.contents()? else { return Ok(()) };
    let image = on.path().display();
    if force || confirm(&format!("{image} holds {found}. It will be lost for ever."))? {
        return Ok(());
    }
    Err(Error::usage(format!("{image}: holds {found}, which would be lost"))
        .with_remedy("another image, or --force to overwrite this one"))
}

/// Converts the error of options that do not fit together or do not fit the image.
fn refused(e: underseal_volume::Error, image: &Path) -> Error {
    let kind = e.kind();
    let error = Error::from(e).within(image.display());
    match kind {
        ErrorKind::TooSmall => error.into_usage().with_remedy(larger(image)),
        _ => error,
    }
}

/// Returns the remedy for an image that is too small.
fn larger(image: &Path) -> &'static str {
    if is_remote(image) { "a larger export, or `rbd resize`" } else { "a larger --size" }
}
