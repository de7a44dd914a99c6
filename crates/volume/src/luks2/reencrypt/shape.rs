//! From the regular segments to the progress, and back.
//!
//! No digest covers the regular segments, so they are accepted only in the shape that a plan and
//! its progress give.

use std::sync::Arc;

use underseal_cipher::SectorSize;

use super::Stage;
use super::slot::{AreaContents, HOT, Lay, Reencryption, bad, crypt_of};
use crate::luks2::metadata::{Metadata, Segment};
use crate::reencrypt::{Moved, Part, Plan, Progress, Protection, Which};
use crate::{
    CipherParameters, Error, ErrorKind, Result, Stored, VolumeKey, cipher_parameters, unlock, volume,
};

/// The block size that cryptsetup assumes to be written whole by a disk of unknown parameters.
const PAGE: u64 = 4096;

/// The device's and the caller's additions to a header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShapeInput {
    /// The size of the data device.
    pub(crate) data_size: u64,
    /// The longest step.
    pub(crate) hot_zone: Option<u64>,
    /// Accepts data that is not encrypted under the name of a cipher.
    pub(crate) allow_null: bool,
    /// The header is detached.
    pub(crate) detached: bool,
}

/// Returns the stage of a header's reencryption.
pub(crate) fn stage(metadata: &Metadata, of: &Reencryption) -> Stage {
    let regular: Vec<_> = metadata.segments.iter().filter(|(_, segment)| !segment.is_backup()).collect();
    match regular[..] {
        _ if regular.iter().any(|(_, segment)| is_hot(segment)) => Stage::Hot,
        [(&number, segment)] if which(metadata, of, number, segment, 0) == Some(Which::New) => Stage::Final,
        _ => Stage::Clean,
    }
}

/// Returns plan and progress. `key` must have all keys that are needed.
///
/// Fails with `BadHeader` when the regular segments have no shape that this reencryption goes
/// through; `BadLayout` when it cannot be carried out at all; `WrongPassphrase` without one of the
/// keys; `TooSmall`, `NullCipher`, `Unsupported`, `Memory`.
pub(crate) fn read(
    metadata: &Metadata,
    of: &Reencryption,
    key: &VolumeKey,
    given: ShapeInput,
) -> Result<(Plan, Progress)> {
    let found = parts(metadata, of)?;
    let plan = planned(metadata, of, key, given, size(metadata, of, &found, given)?)?;
    let progress = in_plan(&plan, found)?;
    Ok((plan, progress))
}

/// Returns the progress in the regular segments of a reencryption that has this plan.
///
/// Fails with `BadHeader` when the segments have no shape that this plan goes through.
pub(crate) fn progress(metadata: &Metadata, of: &Reencryption, plan: &Plan) -> Result<Progress> {
    in_plan(plan, parts(metadata, of)?)
}

fn in_plan(plan: &Plan, found: Vec<(u32, Part)>) -> Result<Progress> {
    let mut progress = Progress::default();
    let end = plan.size;
    let found: Vec<Part> = found.into_iter().map(|(_, part)| part.ending_by(end)).collect();
    for part in &found {
        let len = part.range.end.saturating_sub(part.range.start);
        match part.which {
            Which::New => progress.done += len,
            Which::Hot => progress.hot = Some(len),
            Which::Old | Which::Moved => {}
        }
    }
    plan.check_progress(progress).map_err(|e| e.within("segments"))?;
    if plan.parts(progress) != found {
        return Err(bad("segments: no reencryption of this kind goes through their state"));
    }
    Ok(progress)
}

/// Returns the plan alone, for a volume of this size.
///
/// Fails with the errors of [`read`].
pub(crate) fn planned(
    metadata: &Metadata,
    of: &Reencryption,
    key: &VolumeKey,
    given: ShapeInput,
    size: u64,
) -> Result<Plan> {
    let [old, new] = [&of.previous, &of.last].map(|lay| form(metadata, lay, key, given));
    plan(of, [old?, new?], given, size)
}

/// Like [`read`], when all of the data is new: the old key may be gone, and is not used.
///
/// Fails with the errors of [`read`].
pub(crate) fn read_final(
    metadata: &Metadata,
    of: &Reencryption,
    key: &VolumeKey,
    given: ShapeInput,
) -> Result<(Plan, Progress)> {
    let size = size(metadata, of, &parts(metadata, of)?, given)?;
    let nothing = |lay: &Lay| {
        let sector_size = lay.crypt().map_or(SectorSize::S512, |crypt| crypt.sector_size);
        let cipher = cipher_parameters::null(sector_size)?;
        Ok(Stored { device: 0, lower: lay.segment.offset, iv_offset: 0, cipher, cipher_parameters: None })
    };
    let plan = plan(of, [nothing(&of.previous)?, form(metadata, &of.last, key, given)?], given, size)?;
    Ok((plan, Progress { done: size, hot: None }))
}

/// Returns true when the last segment reaches to the end of the device, even if the step in
/// progress, which has a length, is the last.
pub(crate) fn is_open(metadata: &Metadata, of: &Reencryption, given: ShapeInput, size: u64) -> bool {
    let last = metadata.segments.values().rfind(|segment| !segment.is_backup());
    let to_end = || {
        let begins = of.last.segment.offset.max(of.previous.segment.offset);
        given.data_size.checked_sub(begins).is_some_and(|room| room & !511 == size)
    };
    last.is_some_and(|last| {
        last.size.is_none() || is_hot(last) && of.previous.segment.size.is_none() && to_end()
    })
}

/// The end of a part that reaches to the end of its device.
const OPEN: u64 = u64::MAX;

impl Part {
    /// Returns the same part; an open part ends at the volume's end.
    fn ending_by(mut self, end: u64) -> Self {
        if self.range.end == OPEN {
            self.range.end = end;
        }
        self
    }
}

/// Returns the state of each regular segment.
fn parts(metadata: &Metadata, of: &Reencryption) -> Result<Vec<(u32, Part)>> {
    let mut start = 0u64;
    let mut parts = Vec::new();
    for (&number, segment) in metadata.segments.iter().filter(|(_, segment)| !segment.is_backup()) {
        let place = format!("segments.{number}");
        crypt_of(segment, &place)?;
        let which = which(metadata, of, number, segment, start);
        let which =
            which.ok_or_else(|| bad(format!("{place}: is neither as the data was nor as it will be")))?;
        let end = match segment.size {
            None => OPEN,
            Some(size) => {
                let end = start.checked_add(size).filter(|&end| end < OPEN);
                end.ok_or_else(|| bad(format!("{place}.size: is beyond any device")))?
            }
        };
        parts.push((number, Part { range: start..end, which, lower: segment.offset }));
        start = end;
    }
    Ok(parts)
}

/// Returns the state of a regular segment that begins at byte `start` of the volume, if it has a
/// known state.
fn which(
    metadata: &Metadata,
    of: &Reencryption,
    number: u32,
    segment: &Segment,
    start: u64,
) -> Option<Which> {
    let counts_on = segment.crypt.as_ref().map_or(true, |crypt| crypt.iv_tweak == start >> 9);
    let has_key = |digest: Option<u32>| {
        digest.is_none_or(|digest| metadata.digests[&digest].segments.contains(&number))
    };
    let lacks_key = |digest: Option<u32>| {
        !digest.is_some_and(|digest| metadata.digests[&digest].segments.contains(&number))
    };
    let (old, new) = (&of.previous, &of.last);
    let is = |lay: &Lay, other: &Lay| {
        lay.is_like(segment) && has_key(lay.digest) && (lay.digest == other.digest || lacks_key(other.digest))
    };
    if !counts_on {
        return None;
    }
    if is_hot(segment) {
        // cryptsetup before 2.4.3 listed the step under way in the new key's digest only.
        let is_new = new.is_like(segment) && has_key(new.digest);
        return (is_new && segment.flags.len() == 1).then_some(Which::Hot);
    }
    if !segment.flags.is_empty() {
        return None;
    }
    let lies_at = |lay: &Lay| lay.segment.offset.checked_add(start) == Some(segment.offset);
    let is_moved = |moved: &Lay| {
        start == 0
            && (moved.segment.offset, moved.segment.size) == (segment.offset, segment.size)
            && is(moved, new)
    };
    match () {
        () if of.moved.as_ref().is_some_and(is_moved) => Some(Which::Moved),
        () if is(new, old) && lies_at(new) => Some(Which::New),
        () if is(old, new) && lies_at(old) => Some(Which::Old),
        () => None,
    }
}

fn is_hot(segment: &Segment) -> bool {
    segment.flags.iter().any(|flag| flag == HOT)
}

/// Returns the size of the volume during the reencryption: the size in its segments, or to the end
/// of the device.
fn size(metadata: &Metadata, of: &Reencryption, parts: &[(u32, Part)], given: ShapeInput) -> Result<u64> {
    let Some((number, last)) = parts.last() else { return Err(bad("segments: none")) };
    if last.range.end != OPEN {
        return Ok(last.range.end);
    }
    // cryptsetup's encryption that moves the data, interrupted when all of the data is new: the
    // volume will reach further than the encrypted part, over the place where the first data was
    // kept.
    let all_new = parts.iter().all(|(_, part)| part.which == Which::New);
    if let (true, Some(_), Some(size)) = (all_new, &of.moved, of.previous.segment.size) {
        return Ok(size);
    }
    let unit = [&of.previous, &of.last].into_iter().filter_map(|lay| Some(lay.crypt()?.sector_size)).max();
    let unit = unit.unwrap_or(SectorSize::S512);
    // Data that moves has room both at its old place and at its new place.
    let (old, new) = (of.previous.segment.offset, of.last.segment.offset);
    let reserved = old.max(new) - if last.which == Which::New { new } else { old };
    let offset = metadata.segments[number].offset;
    let len = volume::data_length(given.data_size.saturating_sub(reserved), offset, None, unit);
    let len = len.map_err(|e| e.within(format_args!("segments.{number}")))?;
    last.range.start.checked_add(len).ok_or_else(|| bad(format!("segments.{number}: is beyond any device")))
}

fn plan(of: &Reencryption, [old, new]: [Stored; 2], given: ShapeInput, size: u64) -> Result<Plan> {
    let unit = old.cipher.sector_size().max(new.cipher.sector_size()).bytes() as u64;
    let protection = match of.resilience.kept {
        Some(AreaContents::Checksums { hash, block }) => {
            Protection::Checksum { hash, block: u64::from(block) }
        }
        Some(AreaContents::Journal) => Protection::Journal,
        // Where the data moves, no step is written over its own source.
        Some(AreaContents::Nothing) | None => Protection::None,
    };
    let alignment = match of.resilience.kept {
        Some(AreaContents::Checksums { block, .. }) => u64::from(block),
        _ => PAGE,
    }
    .max(unit);
    let moved =
        of.moved.as_ref().and_then(|lay| Some(Moved { lower: lay.segment.offset, len: lay.segment.size? }));
    let plan = Plan {
        mode: of.mode,
        direction: of.direction,
        size,
        old,
        new,
        moved,
        protection,
        area: of.area.end - of.area.start,
        hot_zone: crate::reencrypt::hot_zone(
            given.hot_zone,
            alignment,
            crate::kdf::benchmark::physical_memory(),
        ),
        alignment,
    };
    plan.check().map_err(|e| e.within(format_args!("keyslots.{}", of.slot)))?;
    let moved = plan.moved.map(|moved| moved.lower + moved.len);
    let ends = [Some(plan.old.lower + size), Some(plan.new.lower + size), moved];
    match ends.into_iter().flatten().max() {
        Some(end) if end > given.data_size => {
            let context =
                format!("the data reaches to byte {end}, but its device ends at byte {}", given.data_size);
            Err(Error::new(ErrorKind::TooSmall, context))
        }
        _ => Ok(plan),
    }
}

/// Returns the old or the new form of the data, with its cipher.
fn form(metadata: &Metadata, lay: &Lay, key: &VolumeKey, given: ShapeInput) -> Result<Stored> {
    let place = format!("segments.{}", lay.number);
    let lower = lay.segment.offset;
    let Some(crypt) = crypt_of(&lay.segment, &place)? else {
        let cipher = cipher_parameters::null(SectorSize::S512)?;
        return Ok(Stored { device: 0, lower, iv_offset: 0, cipher, cipher_parameters: None });
    };
    if lower == 0 && !given.detached {
        let context = "the data begins at byte 0, so this header is detached: name both files";
        return Err(Error::new(ErrorKind::BadLayout, context).within(place));
    }
    unlock::allow_null(&crypt.cipher, given.allow_null).map_err(|e| e.within(&place))?;
    let digest = lay.digest.ok_or_else(|| bad(format!("{place}: no digest has its key")))?;
    let key = key.of(digest).ok_or_else(|| lacks(metadata, digest))?;
    let cipher_parameters = CipherParameters::new(&crypt.cipher, crypt.sector_size, key.len());
    let cipher = cipher_parameters.build(key).map_err(|e| e.within(&place))?;
    Ok(Stored {
        device: 0,
        lower,
        iv_offset: 0,
        cipher,
        cipher_parameters: Some(Arc::new(cipher_parameters)),
    })
}

/// The error about a missing key.
pub(crate) fn lacks(metadata: &Metadata, digest: u32) -> Error {
    let slots = metadata.digests.get(&digest).map_or(&[][..], |digest| &digest.keyslots);
    let slots: Vec<String> = slots.iter().map(u32::to_string).collect();
    let context = if slots.is_empty() {
        "no keyslot has the other one of the two keys that this volume needs while it is reencrypted".into()
    } else {
        format!(
            "while it is reencrypted this volume needs two keys, and the passphrase opens one of them: the other one's is wanted, too \
             (keyslot {})",
            slots.join(" or ")
        )
    };
    Error::new(ErrorKind::WrongPassphrase, context)
}
