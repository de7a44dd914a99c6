//! The rules between the parts of the metadata.

use super::metadata::{Keyslot, Metadata, Segment};
use crate::{Error, ErrorKind, Result, af};

/// The limit of cryptsetup.
const MAX_KEYSLOTS_SIZE: u64 = 128 << 20;

pub(super) fn check(metadata: &Metadata, header_size: u64) -> Result<()> {
    let keyslots_end = keyslots_area(metadata, header_size)?;
    keyslots(metadata, 2 * header_size, keyslots_end)?;
    segments(metadata, keyslots_end)?;
    references(metadata)
}

fn bad(why: String) -> Error {
    Error::new(ErrorKind::BadHeader, why)
}

/// Returns the end of the area for keyslots.
fn keyslots_area(metadata: &Metadata, header_size: u64) -> Result<u64> {
    let size = metadata.config.keyslots_size;
    if !size.is_multiple_of(4096) || size > MAX_KEYSLOTS_SIZE {
        return Err(bad(format!("config.keyslots_size: {size} is no multiple of 4096 up to 128 MiB")));
    }
    Ok(2 * header_size + size)
}

fn keyslots(metadata: &Metadata, begin: u64, end: u64) -> Result<()> {
    let mut areas = Vec::with_capacity(metadata.keyslots.len());
    for (number, slot) in &metadata.keyslots {
        let (offset, size) = slot.area;
        let fits = offset.checked_add(size).is_some_and(|slot_end| begin <= offset && slot_end <= end);
        if !fits {
            let area = format!("{size} bytes at byte {offset} are not within bytes {begin} to {end}");
            return Err(bad(format!("keyslots.{number}.area: {area}")));
        }
        if size < least_area(slot) {
            return Err(bad(format!("keyslots.{number}.area: {size} bytes are too few for its key")));
        }
        areas.push((offset, size, number));
    }
    areas.sort_unstable();
    match areas.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        Some(pair) => Err(bad(format!("keyslots {} and {}: their areas overlap", pair[0].2, pair[1].2))),
        None => Ok(()),
    }
}

fn least_area(slot: &Keyslot) -> u64 {
    match slot.passphrase {
        Ok(_) => af::split_len(slot.key_size as usize) as u64,
        Err(_) => 0,
    }
}

fn segments(metadata: &Metadata, keyslots_end: u64) -> Result<()> {
    let regular = metadata.segments.iter().take_while(|(_, s)| !s.is_backup());
    let regular: Vec<(u32, &Segment)> = regular.map(|(number, segment)| (*number, segment)).collect();
    if regular.is_empty() {
        return Err(bad("segments: none".into()));
    }
    for (i, (&number, segment)) in metadata.segments.iter().enumerate() {
        if number as usize != i {
            return Err(bad(format!("segments.{number}: segment {i} is missing before it")));
        }
        if i >= regular.len() && !segment.is_backup() {
            return Err(bad(format!("segments.{number}: is behind the segments of a reencryption")));
        }
    }
    // A detached header may have offset 0; every other offset leaves room for a header.
    let is_apart = regular.iter().any(|(_, segment)| segment.offset == 0);
    for (i, &(number, segment)) in regular.iter().enumerate() {
        if !is_apart && segment.offset < keyslots_end {
            let why = format!("byte {} lies within the header, which ends at {keyslots_end}", segment.offset);
            return Err(bad(format!("segments.{number}.offset: {why}")));
        }
        if segment.size.is_none() && i + 1 < regular.len() {
            return Err(bad(format!("segments.{number}.size: only the last may be dynamic")));
        }
    }
    for (number, segment) in &metadata.segments {
        let unit = segment.crypt.as_ref().map_or(512, |c| c.sector_size.bytes() as u64);
        if !segment.offset.is_multiple_of(512) {
            let offset = segment.offset;
            return Err(bad(format!("segments.{number}.offset: {offset} is no multiple of 512")));
        }
        if let Some(size) = segment.size
            && (size == 0 || !size.is_multiple_of(unit))
        {
            return Err(bad(format!("segments.{number}.size: {size} bytes are no sectors of {unit}")));
        }
        if let Ok(crypt) = &segment.crypt
            && !crypt.iv_tweak.is_multiple_of(crypt.sector_size.units())
        {
            return Err(bad(format!("segments.{number}.iv_tweak: no multiple of the sector size")));
        }
    }
    Ok(())
}

fn references(metadata: &Metadata) -> Result<()> {
    let slots = |place: String, named: &[u32]| match named.iter().find(|n| !metadata.keyslots.contains_key(n))
    {
        Some(number) => Err(bad(format!("{place}: there is no keyslot {number}"))),
        None => Ok(()),
    };
    for (number, token) in &metadata.tokens {
        slots(format!("tokens.{number}"), &token.keyslots)?;
    }
    let mut owned = std::collections::BTreeSet::new();
    for (number, digest) in &metadata.digests {
        slots(format!("digests.{number}"), &digest.keyslots)?;
        if let Some(segment) = digest.segments.iter().find(|n| !metadata.segments.contains_key(n)) {
            return Err(bad(format!("digests.{number}: there is no segment {segment}")));
        }
        if let Some(slot) = digest.keyslots.iter().find(|slot| !owned.insert(**slot)) {
            return Err(bad(format!("digests.{number}: keyslot {slot} has another digest already")));
        }
    }
    // Of keyslots of a reencryption, older ones have no digest.
    let mut keys = metadata.keyslots.iter().filter(|(_, slot)| slot.kind == "luks2");
    match keys.find(|(number, _)| !owned.contains(*number)) {
        Some((number, _)) => Err(bad(format!("keyslots.{number}: no digest tells whether its key is right"))),
        None => Ok(()),
    }
}
