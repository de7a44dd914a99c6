//! From an image and a secret to a mapping that accepts requests.

mod handover;
mod locks;

use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use underseal_cipher::{Key, SectorSize};
use underseal_datapath::Mapping;
use underseal_device::{Device, FileDevice};
use underseal_export::control::Known;
use underseal_export::control::status::{self, Format};
use underseal_integrity::IntegrityDevice;
use underseal_volume::plain::{self, PassphraseHash, PlainOptions};
use underseal_volume::{ActivateOptions, Header, Target, UnlockOptions, Volume};

use crate::cli::{PlainArgs, VolumeArgs, VolumeType};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::integrity;
use crate::lower::{Lower, is_remote};
use crate::passphrase::{Secret, volume_key_file};
use crate::persona::{Keyslot, persona};
use crate::reencryption::{self, Bytes, Kept, Keys, Place, Stood};
use crate::{foreign, part, tokens};

pub(crate) use handover::go_on;
pub(crate) use locks::Locks;
use locks::detached_header;

/// The permitted operations on the volume.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) read_only: bool,
    pub(crate) allow_discards: bool,
}

/// A volume that accepts requests.
pub(crate) struct Opened {
    pub(crate) mapping: Mapping,
    /// The paths, and URIs of servers, of the volume's image and header.
    pub(crate) lower: Vec<PathBuf>,
    /// How it was opened, for its operator.
    pub(crate) opened: status::Opened,
    /// The digest and size for later comparisons.
    pub(crate) known: Known,
    /// The files for an online reencryption.
    pub(crate) inside: Option<Inside>,
    /// True when the volume has an unfinished reencryption, and cannot be reencrypted while it is
    /// open.
    pub(crate) unfinished: bool,
    /// Locks that exclude changes by other programs.
    pub(crate) locks: Locks,
    /// The integrity layers, which must be closed at the end.
    pub(crate) layers: Vec<Arc<IntegrityDevice>>,
    /// The image, if it is a file or block device and the volume's only one.
    pub(crate) image: Option<Arc<FileDevice>>,
}

/// The state of a volume that a reencryption needs.
pub(crate) struct Inside {
    pub(crate) place: Place,
    /// The progress of an unfinished reencryption, and its keys.
    pub(crate) stood: Option<(Stood, Keys)>,
}

/// An unlocked volume with a header.
struct Unlocked {
    volume: Volume,
    format: Format,
    known: Known,
    stood: Option<(Stood, Keys)>,
    layer: Option<Arc<IntegrityDevice>>,
}

/// Locks the image, gets the secret and unlocks the volume. Each error has the exit status of its
/// kind.
pub(crate) fn open(args: &VolumeArgs, access: Access) -> Result<Opened> {
    let options = args.lower.options(access.read_only);
    let lower = Lower::open(&args.image, options)?;
    let image = lower.again().bytes()?;
    let part = part::range(args.part, &*image)?;
    let format = foreign::format(args.kind, &part::window(&image, part.as_ref()))?;
    // Key files of the other formats are combined with a passphrase.
    if matches!(format, None | Some(underseal_formats::Format::Bitlk)) {
        Secret::new(args.secret.source(), &args.image).check()?;
    }
    if let Some(format) = format {
        return open_foreign(args, access, lower, (format, (image, part)));
    }
    foreign::check_devices(&args.other_device, None)?;
    if let Some(part) = part {
        return open_part(args, access, lower, (image, part));
    }
    let secret = Secret::new(args.secret.source(), &args.image);
    let size = lower.geometry().size;
    let (apart, header) = detached_header(args, access.read_only)?;
    let kept = Kept::Header { apart, allow_null: args.allow_null };
    let place = Place::open(lower.again(), kept, access.read_only);
    let image = if let Lower::File(image) = &lower { Some(image.clone()) } else { None };
    let device = lower.into_device();
    let Unlocked { volume, format, known, stood, layer } = match args.kind {
        VolumeType::Plain => {
            let (volume, key) = plain_volume(args, access, size, &secret)?;
            let known = Known { key: Some(Arc::new(key)), ..Known::default() };
            Unlocked { volume, format: Format::Plain, known, stood: None, layer: None }
        }
        _ => luks_volume(args, access, &device, &place, &secret)?,
    };
    // Only LUKS2 records the progress.
    let sectors = stood.as_ref().map_or(SectorSize::S512, |(stood, _)| stood.sectors());
    // Pages of a block device that were read before direct writes end may stay stale, so no
    // buffered reader may work beside them.
    let is_direct = options.direct && is_block_device(&args.image);
    let can_reencrypt = format == Format::Luks2 && !access.read_only && !is_direct && layer.is_none();
    let unfinished = !can_reencrypt && stood.is_some();
    let (inside, reencryption) = match can_reencrypt {
        true => (Some(Inside { place, stood }), Vec::new()),
        false => (None, place.into_locks()),
    };
    let locks = Locks::new(reencryption, header);
    let lower = [Some(&args.image), args.header.as_ref()].into_iter().flatten().cloned().collect();
    let mut opened = status::Opened {
        format,
        header: header_name(args, format),
        header_offset: 0,
        key_size: key_size(&volume),
        hash: hash_name(args, format, &secret),
        plain: if format == Format::Plain { Some(plain_status(&args.plain)?) } else { None },
        discards: false,
    };
    let over = layer.clone().map_or(device, |layer| layer as Arc<dyn Device>);
    let mapping = Mapping::new(volume, over)?.with_sectors(sectors);
    opened.discards = mapping.discards();
    let layers = layer.into_iter().collect();
    Ok(Opened { mapping, lower, opened, known, inside, unfinished, locks, layers, image })
}

/// Opens a volume of another system.
fn open_foreign(
    args: &VolumeArgs,
    access: Access,
    lower: Lower,
    (format, on): (underseal_formats::Format, foreign::On),
) -> Result<Opened> {
    if access.allow_discards && args.tcrypt.protect_hidden {
        let what =
            "discards show which parts of the outer volume are in use, and so that there is a hidden one";
        return Err(Error::usage(what).with_remedy("without --allow-discards"));
    }
    foreign::check_devices(&args.other_device, Some(format))?;
    let mut devices = vec![lower];
    let mut others = Vec::new();
    for path in args.other_device.iter().map(Path::new) {
        let lower = Lower::open(path, args.lower.options(access.read_only))?;
        let image = lower.again().bytes()?;
        let part = part::range(args.part, &*image).map_err(|e| e.within(path.display()))?;
        others.push((image, part));
        devices.push(lower);
    }
    let unlocked = foreign::open(foreign::Request::of(args), format, on, &others)?;
    let volume = unlocked.volume.clone().with_discards(access.allow_discards);
    let key_size = Some(unlocked.volume_key.len());
    let opened = status::Opened {
        format: foreign::called(format),
        header: None,
        header_offset: 0,
        key_size,
        hash: None,
        plain: None,
        discards: access.allow_discards,
    };
    let devices = devices.into_iter().map(Lower::into_device).collect();
    let mapping = Mapping::over(volume, devices)?;
    let mapping = foreign::guarded(mapping, &unlocked, &args.image, access.read_only);
    Ok(Opened::alone(mapping, args, opened))
}

/// Opens a LUKS or plain volume in a partition of the image.
fn open_part(
    args: &VolumeArgs,
    access: Access,
    lower: Lower,
    (image, part): (Bytes, Range<u64>),
) -> Result<Opened> {
    let secret = Secret::new(args.secret.source(), &args.image);
    let on = part::window(&image, Some(&part));
    let (apart, header_locks) = detached_header(args, access.read_only)?;
    let (volume, format, lock) = if args.kind == VolumeType::Plain {
        let size = part.end - part.start;
        (plain_volume(args, access, size, &secret)?.0, Format::Plain, None)
    } else {
        let (volume, header, lock) = part::luks(args, access, &on, apart, &secret)?;
        if let (Header::Luks2(header), Lower::File(image), None) = (&header, &lower, &args.header) {
            let expected = reencryption::expect_header(image, header, part.start, None);
            expected.map_err(|e| e.in_file(&args.image))?;
        }
        (volume, if let Header::Luks1(_) = header { Format::Luks1 } else { Format::Luks2 }, lock)
    };
    let key_size = key_size(&volume);
    let header = header_name(args, format);
    let opened = status::Opened {
        format,
        header_offset: if header.is_some() { 0 } else { part.start },
        header,
        key_size,
        hash: hash_name(args, format, &secret),
        plain: None,
        discards: access.allow_discards,
    };
    let volume = underseal_formats::moved(&volume, &[part.start])?;
    let mapping = Mapping::new(volume, lower.into_device())?.with_fixed_size();
    let locks = Locks::new(lock.into_iter().collect(), header_locks);
    Ok(Opened { locks, ..Opened::alone(mapping, args, opened) })
}

/// Returns the absolute path or the URI of a detached header.
fn header_name(args: &VolumeArgs, format: Format) -> Option<String> {
    let path = args.header.as_ref().filter(|_| format != Format::Plain)?;
    match std::path::absolute(path) {
        Ok(whole) if !is_remote(path) => Some(whole.display().to_string()),
        _ => Some(path.display().to_string()),
    }
}

/// Returns the hash that makes a plain volume's key of a passphrase.
fn hash_name(args: &VolumeArgs, format: Format, secret: &Secret<'_>) -> Option<String> {
    (format == Format::Plain && !secret.is_raw_key()).then(|| args.plain.hash().to_string())
}

impl Opened {
    /// A volume that cannot be changed while it is open, nor handed over.
    fn alone(mapping: Mapping, args: &VolumeArgs, opened: status::Opened) -> Self {
        let lower = [&args.image].into_iter().chain(&args.header).cloned();
        let lower = lower.chain(args.other_device.iter().map(PathBuf::from)).collect();
        let known = Known::default();
        Self {
            mapping,
            lower,
            opened,
            known,
            inside: None,
            locks: Locks::default(),
            unfinished: false,
            layers: Vec::new(),
            image: None,
        }
    }
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device())
}

/// Returns the length of a volume's key, if it has exactly one.
pub(crate) fn key_size(volume: &Volume) -> Option<usize> {
    volume.without_key().ok().map(|keyless| keyless.cipher_parameters().key_size)
}

/// Returns the length of the key of a header's data, in bytes; 64 where it is unknown.
pub(crate) fn key_len(header: &Header) -> usize {
    let bits = header.info().segments.iter().find_map(|segment| segment.key_bits);
    bits.map_or(64, |bits| bits as usize / 8)
}

fn luks_volume(
    args: &VolumeArgs,
    access: Access,
    device: &Arc<dyn Device>,
    place: &Place,
    secret: &Secret<'_>,
) -> Result<Unlocked> {
    let data_size = device.geometry().size;
    let (on, data) = place.bytes()?;
    let on = &*on;
    let name = args.header.as_ref().unwrap_or(&args.image);
    let mut header = Header::read(on).map_err(|e| e.in_file(name))?;
    let found = if let Header::Luks1(_) = header { VolumeType::Luks1 } else { VolumeType::Luks2 };
    if args.kind != VolumeType::Luks && args.kind != found {
        let context = format!("{}: the header is of the other LUKS version", name.display());
        return Err(Error::new(Exit::BadHeader, context).with_remedy("without --type"));
    }
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(name))?;
    let options = UnlockOptions {
        slot: args.key_slot,
        limits: args.trust.limits(),
        allow_null: args.allow_null,
        ..UnlockOptions::default()
    };
    let key = match &args.volume_key_file {
        Some(file) => header
            .volume_key(volume_key_file(file, args.volume_key_size, key_len(&header))?, &options)
            .map_err(|e| e.in_file(name))?,
        None => {
            let unlocked = match tokens::unlock(&header, on, (&args.tokens, secret), name, &options)? {
                Some((unlocked, _)) => unlocked,
                None => secret
                    .try_with(|key| Ok(header.unlock(on, key, &options).map_err(|e| e.in_file(name))?))?,
            };
            persona().tell(name, Keyslot::Unlocked(unlocked.slot));
            unlocked.key
        }
    };
    // The key derivation took time.
    header = reencryption::held(header, on, &key, place).map_err(|e| e.within(name.display()))?;
    header.hold_to(&args.trust.pinned()).map_err(|e| e.in_file(name))?;
    if !access.read_only {
        reencryption::is_not_all_decrypted(&header).map_err(|e| e.within(name.display()))?;
        if args.trust.header_digest.is_some() && reencryption::is_to_be_mended(&header)? {
            let what = "a reencryption was cut off; to make it good changes the header, which --header-digest forbids";
            let error = Error::new(Exit::Failed, format!("{}: {what}", name.display()));
            return Err(
                error.with_remedy("`underseal reencrypt --resume-only`, and the digest of the header then")
            );
        }
        header =
            reencryption::mended(header, on, &key, (place, &data)).map_err(|e| e.within(name.display()))?;
    }
    let key = header.known_key(key);
    let layer = header.integrity_layer().map_err(|e| e.in_file(name))?;
    let layer = layer.map(|layer| integrity::open(device, &layer, args.integrity, access.read_only));
    let layer = layer.transpose().map_err(|e| e.within(args.image.display()))?;
    let options = ActivateOptions {
        detached: args.header.is_some(),
        allow_discards: access.allow_discards,
        allow_null: args.allow_null,
        over_integrity: layer.is_some(),
    };
    let provided = layer.as_ref().map_or(data_size, |layer| layer.geometry().size);
    let volume = header.activate(&key, provided, &options);
    let volume = volume.map_err(|e| Error::from(e).within(args.image.display()))?;
    let check = header.key_check(&key).map_err(|e| e.in_file(name))?;
    // The key for a handover. Without memory for it the volume cannot be handed over.
    let kept = Key::new(key.key().as_bytes()).ok().map(Arc::new);
    let known = Known { check: Some(check), size: header.data_size(), key: kept };
    // The repair comes last: an image that was cut short, or whose key is unknown, stays unchanged.
    mend(&mut header, on, name, access);
    // The header's first copy may have been missing before.
    place.keep_open(&header).map_err(|e| e.in_file(name))?;
    // A required digest is that of the unchanged header.
    if !access.read_only && args.trust.header_digest.is_none() {
        wipe_unwiped(&mut header, on, name);
    }
    let format = if found == VolumeType::Luks1 { Format::Luks1 } else { Format::Luks2 };
    let stood =
        reencryption::stood(&header, on, &key, (place, data_size))?.map(|stood| (stood, Keys::Luks(key)));
    Ok(Unlocked { volume, format, known, stood, layer })
}

fn plain_volume(
    args: &VolumeArgs,
    access: Access,
    data_size: u64,
    secret: &Secret<'_>,
) -> Result<(Volume, Key)> {
    let of = &args.plain;
    if args.trust.header_digest.is_some() {
        return Err(Error::usage("a plain volume has no header").with_remedy("without --header-digest"));
    }
    if args.trust.require_integrity.is_some() {
        let what = "a plain volume has nothing beside its sectors that could tell whether they were changed";
        return Err(Error::usage(what).with_remedy("without --require-integrity"));
    }
    let cipher = of.cipher()?;
    if args.trust.require_cipher.as_ref().is_some_and(|wanted| *wanted != cipher) {
        return Err(Error::usage(format!("--cipher {cipher} is not what --require-cipher says")));
    }
    let options = PlainOptions {
        allow_discards: access.allow_discards,
        allow_null: args.allow_null,
        ..plain_options(of)?
    };
    let key = plain_key(secret, &of.hash(), of.key_size / 8)?;
    let volume = plain::activate(&key, data_size, &options);
    Ok((volume.map_err(|e| Error::from(e).within(args.image.display()))?, key))
}

/// Returns the layout of a plain volume, for its operator.
fn plain_status(of: &PlainArgs) -> Result<status::Plain> {
    Ok(status::Plain {
        cipher: of.cipher()?.to_string(),
        sector_size: of.sector_size,
        offset: of.data_offset,
        skip: of.skip.unwrap_or(0),
    })
}

/// Returns the layout of a plain volume, from its options. Fails with `Usage` for invalid keys and
/// sectors.
pub(crate) fn plain_options(of: &PlainArgs) -> Result<PlainOptions> {
    if !of.key_size.is_multiple_of(8) {
        return Err(Error::usage(format!("a key of {} bits is no whole number of bytes", of.key_size)));
    }
    Ok(PlainOptions {
        cipher: of.cipher()?,
        sector_size: SectorSize::new(of.sector_size)?,
        iv_large_sectors: of.iv_large_sectors,
        offset: of.data_offset,
        iv_offset: of.skip.unwrap_or(0),
        size: of.data_size,
        ..PlainOptions::default()
    })
}

/// Returns a plain volume's key of `key_size` bytes: derived from a passphrase, or the first bytes
/// of a key file. Fails with the errors of reading it; with `Usage` when the file is too short.
pub(crate) fn plain_key(secret: &Secret<'_>, hash: &PassphraseHash, key_size: usize) -> Result<Key> {
    let mut key = secret.get()?;
    if !secret.is_raw_key() {
        return Ok(plain::key_from_passphrase(&key, hash, key_size)?);
    }
    if key.len() < key_size {
        let context = format!("the key file holds {} bytes, the key has {key_size}", key.len());
        return Err(Error::usage(context).with_remedy(format!("--key-size {}", key.len() * 8)));
    }
    key.truncate(key_size);
    Ok(key)
}

/// Wipes the remains of a reencryption that was interrupted at its end among the keyslots.
fn wipe_unwiped(header: &mut Header, on: &dyn Target, name: &Path) {
    let shown = name.display();
    match header.wipe_unwiped(on) {
        Ok(false) => {}
        Ok(true) => log::warn!("{shown}: wiped what a reencryption had left among the keyslots"),
        Err(e) => log::warn!("{shown}: what a reencryption left among the keyslots is not wiped yet: {e}"),
    }
}

/// Reports a damaged copy of the header, and rewrites it where that is permitted.
fn mend(header: &mut Header, on: &dyn Target, name: &Path, access: Access) {
    let Some(damage) = header.damage().map(str::to_owned) else { return };
    let shown = name.display();
    if access.read_only {
        return log::warn!("{shown}: {damage}; opening the volume for writing repairs it");
    }
    match header.repair(on) {
        Ok(()) => log::warn!("{shown}: {damage}; it was written again from the other copy"),
        Err(e) => log::warn!("{shown}: {damage}; it cannot be repaired: {e}"),
    }
}
