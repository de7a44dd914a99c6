//! From metadata and volume key to segments of a volume.

use super::integrity::Integrity;
use super::metadata::{Crypt, Metadata, OPAL, Segment};
use super::reencrypt;
use crate::{
    ActivateOptions, DispatchFlags, Error, ErrorKind, IntegrityLayer, Key, Result, Volume, VolumeKey, unlock,
    volume,
};

/// The flag of a header that permits discards.
const ALLOW_DISCARDS: &str = "allow-discards";

/// The flag of a header whose integrity layer writes in place.
pub(super) const NO_JOURNAL: &str = "no-journal";

pub(super) fn activate(
    metadata: &Metadata,
    key: &VolumeKey,
    data_size: u64,
    options: &ActivateOptions,
) -> Result<Volume> {
    let discards = options.allow_discards || metadata.config.flags.iter().any(|flag| flag == ALLOW_DISCARDS);
    let is_authenticated = integrity_layer(metadata)?.is_some();
    if options.allow_discards && is_authenticated {
        let context = "an authenticated volume takes no discards: discarded blocks would not fit their tags";
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    let discards = discards && !is_authenticated;
    let volume = match reencrypt::activate(metadata, key, data_size, options)? {
        Some(volume) => volume,
        None => regular(metadata, key, data_size, options)?,
    };
    let volume = volume.with_discards(discards);
    Ok(volume.with_dispatch(DispatchFlags::of_luks2(&metadata.config.flags)))
}

/// Builds the volume of the regular segments, all with the same key.
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
        // The reason names the place already.
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
        return authenticated(segment, crypt, integrity, key, (start, data_size), options);
    }
    if segment.offset == 0 && !options.detached {
        let context = "the data begins at byte 0, so this header is detached: name both files";
        return Err(Error::new(ErrorKind::BadLayout, context));
    }
    unlock::allow_null(&crypt.cipher, options.allow_null)?;
    let cipher_parameters = crypt.cipher_parameters(key.len());
    let cipher = cipher_parameters.build(key)?;
    let len = volume::data_length(data_size, segment.offset, segment.size, crypt.sector_size)?;
    let made = crate::Segment::stored(start, len, segment.offset, crypt.iv_tweak, cipher);
    Ok(made.with_recipe(cipher_parameters))
}

/// Builds a segment over dm-integrity's layout, which begins at the segment's offset: the segment
/// is all that the layout provides.
fn authenticated(
    segment: &Segment,
    crypt: &Crypt,
    integrity: &Integrity,
    key: &Key,
    (start, provided): (u64, u64),
    options: &ActivateOptions,
) -> Result<crate::Segment> {
    if !options.over_integrity {
        let name = crate::printable(&integrity.name);
        let context = format!(
            "what is kept beside its sectors ({name}) lies in a layer of its own, to be opened before"
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    if segment.size.is_some_and(|size| size != provided) {
        let context =
            format!("the segment's size is not the {provided} bytes that its integrity layer provides");
        return Err(Error::new(ErrorKind::BadLayout, context));
    }
    let cipher_parameters = crypt.cipher_parameters(key.len());
    let cipher = cipher_parameters.build(key)?;
    let len = volume::data_length(provided, 0, None, crypt.sector_size)?;
    Ok(crate::Segment::stored(start, len, 0, crypt.iv_tweak, cipher).with_recipe(cipher_parameters))
}

/// Returns the layer of the volume's only segment. Fails with `Unsupported` for a header with an
/// authenticated segment beside others.
pub(crate) fn integrity_layer(metadata: &Metadata) -> Result<Option<IntegrityLayer>> {
    let regular = || metadata.segments.values().filter(|segment| !segment.is_backup());
    let mut layers = regular().filter_map(|segment| {
        let crypt = segment.crypt.as_ref().ok()?;
        Some((segment, crypt.sector_size, crypt.integrity.as_ref()?))
    });
    match (layers.next_back(), regular().count()) {
        (None, _) => Ok(None),
        (Some((segment, sector_size, integrity)), 1) => Ok(Some(IntegrityLayer {
            offset: segment.offset,
            tag_size: integrity.bytes,
            sector_size,
            has_journal: !metadata.config.flags.iter().any(|flag| flag == NO_JOURNAL),
        })),
        (Some(_), _) => {
            let context = "an authenticated segment beside others is no volume that cryptsetup makes";
            Err(Error::new(ErrorKind::Unsupported, context))
        }
    }
}

/// Refuses overlapping segments, which would overwrite each other.
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

/// Refuses a header with a requirement that this build lacks, or whose data are being reencrypted,
/// which only a resume may handle.
pub(crate) fn requirements(requirements: &[String]) -> Result<()> {
    requirements.first().map_or(Ok(()), |first| Err(refused(first)))
}

/// Makes the error for a header with this requirement.
pub(super) fn refused(requirement: &str) -> Error {
    let context = if requirement == "offline-reencrypt" {
        "config.requirements: \"offline-reencrypt\": a reencryption in the old form is under way, which only the cryptsetup-reencrypt \
         that began it can finish"
            .into()
    } else if reencrypt::is_reencryption(requirement) {
        "a reencryption of this volume is under way; finish it first (underseal reencrypt --resume-only)"
            .into()
    } else if requirement == "opal" || requirement.starts_with("opal-") {
        format!("config.requirements: {OPAL}")
    } else if requirement == "inline-hw-tags" {
        "its tags are kept by the disk itself beside each sector, which neither a file nor a usual disk does"
            .into()
    } else {
        format!("the header requires {}, which this build does not know", crate::printable(requirement))
    };
    Error::new(ErrorKind::Unsupported, context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_is_refused_with_its_remedy() {
        for (requirement, words) in [
            ("offline-reencrypt", "only the cryptsetup-reencrypt"),
            ("online-reencrypt-v2", "underseal reencrypt --resume-only"),
            ("opal", OPAL),
            ("opal-hw-only", OPAL),
            ("inline-hw-tags", "kept by the disk itself"),
            ("opalescent", "requires \"opalescent\", which this build does not know"),
        ] {
            let refused = requirements(&[requirement.into()]).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains(words), "{requirement}: {refused}");
        }
        requirements(&[]).unwrap();
    }
}
