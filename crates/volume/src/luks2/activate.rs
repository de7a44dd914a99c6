//! From metadata and volume key to segments of a volume.

use super::metadata::{Crypt, Metadata, OPAL, Segment};
use crate::{
    ActivateOptions, DispatchFlags, Error, ErrorKind, Recipe, Result, Volume, VolumeKey, unlock, volume,
};

/// Flags of a header that ask for discards to be passed down.
const ALLOW_DISCARDS: &str = "allow-discards";

pub(super) fn activate(
    metadata: &Metadata,
    key: &VolumeKey,
    data_size: u64,
    options: &ActivateOptions,
) -> Result<Volume> {
    requirements(&metadata.config.requirements)?;
    let mut segments = Vec::with_capacity(metadata.segments.len());
    let mut start = 0u64;
    for (&number, segment) in metadata.segments.iter().filter(|(_, s)| !s.is_backup()) {
        let place = || format!("segments.{number}");
        // The reason says the place already.
        let crypt = segment.crypt.as_ref().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
        let protects = metadata.digests.get(&key.digest).is_some_and(|d| d.segments.contains(&number));
        if !protects {
            return Err(Error::new(ErrorKind::WrongKey, "its key is another one").within(place()));
        }
        let made = one(segment, crypt, key, (start, data_size), options);
        let made = made.map_err(|e| e.within(place()))?;
        start = start.checked_add(made.len).ok_or_else(|| {
            Error::new(ErrorKind::BadLayout, "the segments together are longer than any device")
                .within(place())
        })?;
        segments.push(made);
    }
    apart(&segments)?;
    let discards = options.allow_discards || metadata.config.flags.iter().any(|flag| flag == ALLOW_DISCARDS);
    let volume = Volume::new(segments)?.with_discards(discards);
    Ok(volume.with_dispatch(DispatchFlags::of_luks2(&metadata.config.flags)))
}

fn one(
    segment: &Segment,
    crypt: &Crypt,
    key: &VolumeKey,
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
    let recipe = Recipe::new(&crypt.cipher, crypt.sector_size, key.key.len());
    let cipher = recipe.build(&key.key)?;
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

/// Refuses a header that asks for what this build does not know.
pub(crate) fn requirements(requirements: &[String]) -> Result<()> {
    let Some(first) = requirements.first() else { return Ok(()) };
    let context = if first.starts_with("online-reencrypt") || first == "offline-reencrypt" {
        "a reencryption of this volume is under way; finish it first (cryptsetup reencrypt --resume-only)"
            .into()
    } else if first == "opal" || first.starts_with("opal-") {
        format!("config.requirements: {OPAL}")
    } else {
        format!("the header requires {}, which this build does not know", crate::printable(first))
    };
    Err(Error::new(ErrorKind::Unsupported, context))
}
