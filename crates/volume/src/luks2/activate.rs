//! From metadata and volume key to segments of a volume.

use super::metadata::{Crypt, Metadata, OPAL, Segment};
use super::reencrypt;
use crate::{
    ActivateOptions, DispatchFlags, Error, ErrorKind, Key, Recipe, Result, Volume, VolumeKey, unlock, volume,
};

/// Flags of a header that ask for discards to be passed down.
const ALLOW_DISCARDS: &str = "allow-discards";

pub(super) fn activate(
    metadata: &Metadata,
    key: &VolumeKey,
    data_size: u64,
    options: &ActivateOptions,
) -> Result<Volume> {
    let discards = options.allow_discards || metadata.config.flags.iter().any(|flag| flag == ALLOW_DISCARDS);
    let volume = match reencrypt::activate(metadata, key, data_size, options)? {
        Some(volume) => volume,
        None => regular(metadata, key, data_size, options)?,
    };
    let volume = volume.with_discards(discards);
    Ok(volume.with_dispatch(DispatchFlags::of_luks2(&metadata.config.flags)))
}

/// The volume that the regular segments make, each of which has the one key.
fn regular(
    metadata: &Metadata,
    key: &VolumeKey,
    data_size: u64,
    options: &ActivateOptions,
) -> Result<Volume> {
    let mut segments = Vec::with_capacity(metadata.segments.len());
    let mut start = 0u64;
    for (&number, segment) in metadata.segments.iter().filter(|(_, s)| !s.is_backup()) {
        let place = || format!("segments.{number}");
        // The reason says the place already.
        let crypt = segment.crypt.as_ref().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
        let mut protecting = metadata.digests.iter().filter(|(_, digest)| digest.segments.contains(&number));
        let Some(key) = protecting.find_map(|(digest, _)| key.of(*digest)) else {
            return Err(Error::new(ErrorKind::WrongKey, "its key is another one").within(place()));
        };
        let made = one(segment, crypt, key, (start, data_size), options);
        let made = made.map_err(|e| e.within(place()))?;
        start = start.checked_add(made.len).ok_or_else(|| {
            Error::new(ErrorKind::BadLayout, "the segments together are longer than any device")
                .within(place())
        })?;
        segments.push(made);
    }
    apart(&segments)?;
    Volume::new(segments)
}

fn one(
    segment: &Segment,
    crypt: &Crypt,
    key: &Key,
    (start, data_size): (u64, u64),
    options: &ActivateOptions,
) -> Result<crate::Segment> {
    if let Some(integrity) = &crypt.integrity {
        let integrity = crate::printable(integrity);
        let context = format!("authenticated encryption ({integrity}) is not supported by this build");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    if segment.offset == 0 && !options.detached {
        let context = "the data begins at byte 0, so this header stands apart from it: name both files";
        return Err(Error::new(ErrorKind::BadLayout, context));
    }
    unlock::allow_null(&crypt.cipher, options.allow_null)?;
    let recipe = Recipe::new(&crypt.cipher, crypt.sector_size, key.len());
    let cipher = recipe.build(key)?;
    let len = volume::data_length(data_size, segment.offset, segment.size, crypt.sector_size)?;
    let made = crate::Segment::stored(start, len, segment.offset, crypt.iv_tweak, cipher);
    Ok(made.with_recipe(recipe))
}

/// Two segments over the same bytes would let one overwrite the other.
fn apart(segments: &[crate::Segment]) -> Result<()> {
    let range = |s: &crate::Segment| s.as_stored().map(|stored| (stored.lower, stored.lower + s.len));
    let mut ranges: Vec<(u64, u64)> = segments.iter().filter_map(range).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        Some(pair) => {
            let context = format!("two segments overlap at byte {}", pair[1].0);
            Err(Error::new(ErrorKind::BadLayout, context))
        }
        None => Ok(()),
    }
}

/// Refuses a header that asks for what this build does not know, or whose data is being reencrypted: only that goes on.
pub(crate) fn requirements(requirements: &[String]) -> Result<()> {
    requirements.first().map_or(Ok(()), |first| Err(refused(first)))
}

/// Why a header with this requirement is refused.
pub(super) fn refused(requirement: &str) -> Error {
    let context = if requirement == "offline-reencrypt" {
        "config.requirements: \"offline-reencrypt\": a reencryption in the old form is under way, which only the cryptsetup-reencrypt \
         that began it can finish"
            .into()
    } else if requirement.starts_with("online-reencrypt") {
        "a reencryption of this volume is under way; finish it first (underseal reencrypt --resume-only)"
            .into()
    } else if requirement == "opal" || requirement.starts_with("opal-") {
        format!("config.requirements: {OPAL}")
    } else {
        format!("the header requires {}, which this build does not know", crate::printable(requirement))
    };
    Error::new(ErrorKind::Unsupported, context)
}
