//! The parts of a header that describe its reencryption: the requirement, the keyslot `reencrypt`,
//! the backup segments.
//!
//! A digest made with the volume keys covers all parts but the regular segments, which record the
//! progress (`digest`). Those segments must have the shape that the other parts allow (`shape`).

use std::ops::Range;

use crate::luks2::activate;
use crate::luks2::metadata::{Crypt, Digest, Metadata, Segment};
use crate::luks2::node::Node;
use crate::reencrypt::{Direction, Mode};
use crate::{Error, ErrorKind, Hash, Result};

/// The type of the keyslot.
pub(crate) const KIND: &str = "reencrypt";
/// The flag of the segment with the step in progress.
pub(crate) const HOT: &str = "in-reencryption";
pub(crate) const PREVIOUS: &str = "backup-previous";
pub(crate) const FINAL: &str = "backup-final";
pub(crate) const MOVED: &str = "backup-moved-segment";
const REQUIREMENT: &str = "online-reencrypt";

/// A reencryption in progress according to its header.
#[derive(Debug, Clone)]
pub(crate) struct Reencryption {
    /// The version of its metadata: 2, or 3 for a decryption that moves the data.
    pub(crate) version: u8,
    /// The keyslot with its state.
    pub(crate) slot: u32,
    /// The digest over its metadata.
    pub(crate) digest: u32,
    pub(crate) mode: Mode,
    pub(crate) direction: Direction,
    /// The range on the header's device.
    pub(crate) area: Range<u64>,
    pub(crate) resilience: Resilience,
    /// The old state of the data.
    pub(crate) previous: Lay,
    /// The new state of the data.
    pub(crate) last: Lay,
    /// The part that was moved away at the start.
    pub(crate) moved: Option<Lay>,
}

/// How an interrupted step is recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resilience {
    /// The contents of the area for a step that is written over its own source. `None` when there
    /// is no such step.
    pub(crate) kept: Option<AreaContents>,
    /// The bytes that the data moves by.
    pub(crate) shift: Option<u64>,
}

/// The contents of the area, from which an interrupted step is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AreaContents {
    /// A hash of each block.
    Checksums { hash: Hash, block: u32 },
    /// All of the old bytes.
    Journal,
    /// Nothing: an interrupted step is lost.
    Nothing,
}

/// The old, new or moved state of the data.
#[derive(Debug, Clone)]
pub(crate) struct Lay {
    /// The segment's number.
    pub(crate) number: u32,
    pub(crate) segment: Segment,
    /// The digest of the segment's key. `None` when the segment is not encrypted.
    pub(crate) digest: Option<u32>,
}

impl Lay {
    /// Returns the cipher, or `None` when the data is not encrypted.
    pub(crate) fn crypt(&self) -> Option<&Crypt> {
        self.segment.crypt.as_ref().ok()
    }

    /// Returns true when a segment's bytes have the same type, cipher and sector size.
    pub(crate) fn is_like(&self, segment: &Segment) -> bool {
        self.segment.kind == segment.kind
            && match (&self.segment.crypt, &segment.crypt) {
                (Ok(one), Ok(other)) => {
                    one.cipher == other.cipher
                        && one.sector_size == other.sector_size
                        && one.integrity == other.integrity
                }
                (Err(_), Err(_)) => true,
                _ => false,
            }
    }
}

impl Reencryption {
    /// Returns the reencryption in the header, or `None` when no reencryption is in progress.
    ///
    /// Fails with `Unsupported` for features that this build does not know, and for metadata
    /// without a digest; `BadHeader` when the parts contradict each other.
    pub(crate) fn parse(metadata: &Metadata) -> Result<Option<Self>> {
        let mut slots = metadata.keyslots.iter().filter(|(_, slot)| slot.kind == KIND);
        let (first, second) = (slots.next(), slots.next());
        let Some(version) = version(&metadata.config.requirements)? else {
            return match first {
                Some((number, _)) => Err(bad(format!(
                    "keyslots.{number}: is a reencryption's, but config.requirements names none"
                ))),
                None => no_step(metadata).map(|()| None),
            };
        };
        let Some((&slot, found)) = first else {
            return Err(bad("keyslots: none of type \"reencrypt\", which config.requirements asks for"));
        };
        if let Some((other, _)) = second {
            return Err(bad(format!("keyslots {slot} and {other}: two of type \"{KIND}\"")));
        }
        let path = format!("keyslots.{slot}");
        let value = &metadata.document["keyslots"][slot.to_string()];
        let node = Node::new(&path, value);
        node.field("key_size")?.number(1..=1)?;
        let mode = mode(&node.field("mode")?)?;
        let direction = direction(&node.field("direction")?)?;
        let resilience = resilience(&node.field("area")?, found.area.1)?;
        let mut parsed = Self {
            version,
            slot,
            digest: digest(metadata, slot)?,
            mode,
            direction,
            area: found.area.0..found.area.0 + found.area.1,
            resilience,
            previous: backup(metadata, PREVIOUS)?.ok_or_else(|| missing(PREVIOUS))?,
            last: backup(metadata, FINAL)?.ok_or_else(|| missing(FINAL))?,
            moved: backup(metadata, MOVED)?,
        };
        if parsed.moved.is_some() && resilience.shift.is_none() {
            return Err(bad(format!("{path}.area.type: moves nothing, but there is a \"{MOVED}\"")));
        }
        parsed.stays_in_place();
        parsed.keys_are_its(metadata)?;
        parsed.fits_mode(metadata)?;
        parsed.fits_places()?;
        parsed.moved_fits()?;
        Ok(Some(parsed))
    }

    /// Returns the digests of the reencryption's keys, the old key's first.
    pub(crate) fn digests(&self) -> Vec<u32> {
        let mut all: Vec<u32> = [&self.previous, &self.last].iter().filter_map(|lay| lay.digest).collect();
        all.dedup();
        all
    }

    /// Returns the old, the new and the moved state, in their order behind the regular segments.
    pub(crate) fn backups(&self) -> impl Iterator<Item = &Lay> {
        [Some(&self.previous), Some(&self.last), self.moved.as_ref()].into_iter().flatten()
    }

    /// Checks that no other key belongs to a segment.
    fn keys_are_its(&self, metadata: &Metadata) -> Result<()> {
        let its = self.digests();
        let other = |(number, digest): &(&u32, &Digest)| !digest.segments.is_empty() && !its.contains(number);
        match metadata.digests.iter().find(other) {
            Some((number, _)) => {
                Err(bad(format!("digests.{number}.segments: its key is no part of the reencryption")))
            }
            None => Ok(()),
        }
    }

    fn fits_mode(&self, metadata: &Metadata) -> Result<()> {
        for (lay, flag, encrypted) in [
            (&self.previous, PREVIOUS, self.mode != Mode::Encrypt),
            (&self.last, FINAL, self.mode != Mode::Decrypt),
        ] {
            let place = format!("segments.{}", lay.number);
            let want = if encrypted { "crypt" } else { "linear" };
            if lay.segment.kind != want {
                let kind = crate::printable(&lay.segment.kind);
                let slot = self.slot;
                return Err(bad(format!("{place}.type: {kind}, but keyslots.{slot}.mode wants \"{want}\"")));
            }
            let Some(crypt) = crypt_of(&lay.segment, &place)? else { continue };
            if crypt.iv_tweak != 0 {
                let context = format!("{place}.iv_tweak: {}, but {flag} begins with 0", crypt.iv_tweak);
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
            let digest = lay.digest.ok_or_else(|| bad(format!("{place}: no digest has its key")))?;
            let known = metadata.digests.get(&digest).map(|digest| &digest.check);
            if let Some(Err(why)) = known {
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
        }
        Ok(())
    }

    /// cryptsetup describes an encryption with a detached header and `reduce-device-size` as one
    /// that moves the data, and leaves the data in its place. Nothing protects a step then.
    fn stays_in_place(&mut self) {
        let moves = self.previous.segment.offset != self.last.segment.offset || self.moved.is_some();
        if self.mode == Mode::Encrypt && self.resilience.kept.is_none() && !moves {
            self.resilience = Resilience { kept: Some(AreaContents::Nothing), shift: None };
        }
    }

    /// Checks that the data moves by the shift, from the old place to the new place, in the only
    /// direction in which no needed bytes are overwritten.
    fn fits_places(&self) -> Result<()> {
        let (old, new) = (self.previous.segment.offset, self.last.segment.offset);
        let by = match self.direction {
            Direction::Forward => old.checked_sub(new),
            Direction::Backward => new.checked_sub(old),
        };
        let place = format!("segments.{}.offset", self.last.number);
        match self.resilience.shift {
            None if old != new => {
                Err(bad(format!("{place}: {new}, but data that is not moved was at {old}")))
            }
            Some(shift) if by != Some(shift) => {
                Err(bad(format!("{place}: {new} is not {shift} bytes from {old} in its direction")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the moved part has a place of its own, and the old state's type and cipher.
    fn moved_fits(&self) -> Result<()> {
        let Some(moved) = &self.moved else {
            return match self.mode {
                Mode::Decrypt if self.resilience.shift.is_some() => Err(missing(MOVED)),
                _ => Ok(()),
            };
        };
        let place = format!("segments.{}", moved.number);
        let shift = self.resilience.shift.unwrap_or(0);
        if !self.previous.is_like(&moved.segment) {
            return Err(bad(format!("{place}: is not like segments.{}", self.previous.number)));
        }
        if let Some(crypt) = crypt_of(&moved.segment, &place)?
            && crypt.iv_tweak != 0
        {
            return Err(bad(format!("{place}.iv_tweak: the moved part is the beginning of the data")));
        }
        if moved.digest != self.previous.digest {
            return Err(bad(format!("{place}: its key is not that of segments.{}", self.previous.number)));
        }
        let Some(size) = moved.segment.size.filter(|size| (1..=shift).contains(size)) else {
            return Err(bad(format!("{place}.size: from 1 to {shift} bytes are moved")));
        };
        let begins = moved.segment.offset;
        let fits = match self.mode {
            // To the end of the device, behind the part moved by the shift.
            Mode::Encrypt => {
                let end = self.previous.segment.size.and_then(|size| size.checked_add(shift));
                self.direction == Direction::Backward && end.is_some_and(|end| begins >= end)
            }
            // Over the old header.
            Mode::Decrypt => begins == 0 && self.direction == Direction::Forward,
            Mode::Reencrypt => false,
        };
        if fits && begins.checked_add(size).is_some() {
            return Ok(());
        }
        Err(bad(format!("{place}.offset: {size} bytes cannot have been moved to byte {begins}")))
    }
}

/// Returns the version of the requirement, or `None` without a requirement.
fn version(requirements: &[String]) -> Result<Option<u8>> {
    let place = "config.requirements";
    let unsupported = |why: String| Err(Error::new(ErrorKind::Unsupported, format!("{place}: {why}")));
    let mut found = requirements.iter().filter(|name| is_reencryption(name));
    let (first, second) = (found.next(), found.next());
    if let (Some(first), Some(second)) = (first, second) {
        let (first, second) = (crate::printable(first), crate::printable(second));
        return Err(bad(format!("{place}: {first} and {second}")));
    }
    if let Some(other) = requirements.iter().find(|name| !is_reencryption(name)) {
        return Err(activate::refused(other));
    }
    match first.map(String::as_str) {
        None => Ok(None),
        Some("online-reencrypt-v2") => Ok(Some(2)),
        Some("online-reencrypt-v3") => Ok(Some(3)),
        Some(REQUIREMENT) => unsupported(
            "\"online-reencrypt\": it was begun by cryptsetup before 2.4.3, so nothing vouches for what the \
             header says of it. If nobody else can have changed it, \"underseal header repair\" or \
             \"cryptsetup repair\" signs it"
                .into(),
        ),
        Some(other) => unsupported(format!("{} is not known to this build", crate::printable(other))),
    }
}

/// Returns true when the only requirement is of version 1, whose metadata have no digest.
pub(super) fn is_version_1(metadata: &Metadata) -> bool {
    metadata.config.requirements == [REQUIREMENT]
}

/// Returns true when the only requirement is of a version with a digest, and the digest is missing.
pub(super) fn lacks_digest(metadata: &Metadata) -> bool {
    let mut slots = metadata.keyslots.iter().filter(|(_, slot)| slot.kind == KIND);
    let (Ok(Some(_)), Some((&slot, _)), None) =
        (version(&metadata.config.requirements), slots.next(), slots.next())
    else {
        return false;
    };
    !metadata.digests.values().any(|digest| is_its_digest(digest, slot))
}

fn is_its_digest(digest: &Digest, slot: u32) -> bool {
    digest.keyslots == [slot] && digest.segments.is_empty()
}

pub(crate) fn is_reencryption(name: &str) -> bool {
    let version = name.strip_prefix(REQUIREMENT).map(|rest| rest.strip_prefix("-v").unwrap_or(rest));
    version.is_some_and(|version| version.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Checks that no step is in progress without a reencryption.
fn no_step(metadata: &Metadata) -> Result<()> {
    let is_hot = |segment: &&Segment| segment.flags.iter().any(|flag| flag == HOT);
    match metadata.segments.iter().find(|(_, segment)| is_hot(segment)) {
        Some((number, _)) => Err(bad(format!(
            "segments.{number}.flags: is a reencryption's, but config.requirements names none"
        ))),
        None => Ok(()),
    }
}

fn mode(node: &Node<'_>) -> Result<Mode> {
    match node.text()? {
        "reencrypt" => Ok(Mode::Reencrypt),
        "encrypt" => Ok(Mode::Encrypt),
        "decrypt" => Ok(Mode::Decrypt),
        other => Err(node.error(ErrorKind::BadHeader, format_args!("{} is none", crate::printable(other)))),
    }
}

fn direction(node: &Node<'_>) -> Result<Direction> {
    match node.text()? {
        "forward" => Ok(Direction::Forward),
        "backward" => Ok(Direction::Backward),
        other => Err(node.error(ErrorKind::BadHeader, format_args!("{} is none", crate::printable(other)))),
    }
}

fn resilience(area: &Node<'_>, len: u64) -> Result<Resilience> {
    let checksums = || {
        let (hash, block) = (area.field("hash")?.hash()?, area.field("sector_size")?);
        let bytes = block.number(512..=1 << 20)?;
        if !bytes.is_power_of_two() {
            return Err(block.error(ErrorKind::BadHeader, "is no power of two"));
        }
        Ok(AreaContents::Checksums { hash, block: bytes })
    };
    let shift = || {
        let field = area.field("shift_size")?;
        match field.number_text()? {
            0 => Err(field.error(ErrorKind::BadHeader, "moves nothing")),
            size if !size.is_multiple_of(512) => {
                Err(field.error(ErrorKind::BadHeader, "is no whole number of sectors"))
            }
            size => Ok(Some(size)),
        }
    };
    let kind = area.field("type")?;
    let (kept, shift) = match kind.text()? {
        "none" => (Some(AreaContents::Nothing), None),
        "checksum" => (Some(checksums()?), None),
        "journal" => (Some(AreaContents::Journal), None),
        "datashift" => (None, shift()?),
        "datashift-checksum" => (Some(checksums()?), shift()?),
        "datashift-journal" => (Some(AreaContents::Journal), shift()?),
        other => {
            let why = format_args!("{} is not known to this build", crate::printable(other));
            return Err(kind.error(ErrorKind::Unsupported, why));
        }
    };
    let least = match kept {
        Some(AreaContents::Checksums { hash, .. }) => hash.output_len() as u64,
        Some(AreaContents::Journal) => 512,
        Some(AreaContents::Nothing) | None => 0,
    };
    if len < least {
        return Err(area.error(ErrorKind::BadHeader, format_args!("{len} bytes keep nothing of any step")));
    }
    Ok(Resilience { kept, shift })
}

/// Returns the digest that belongs to the keyslot and to no data.
fn digest(metadata: &Metadata, slot: u32) -> Result<u32> {
    let Some((number, digest)) = metadata.digests.iter().find(|(_, digest)| is_its_digest(digest, slot))
    else {
        let context = format!(
            "digests: none for keyslots.{slot}, so nothing vouches for what the header says of its reencryption. \
             If nobody else can have changed it, \"underseal header repair\" or \"cryptsetup repair\" signs it"
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    };
    match &digest.check {
        Ok(_) => Ok(*number),
        Err(why) => Err(Error::new(ErrorKind::Unsupported, why)),
    }
}

/// Returns the only backup segment with a flag.
fn backup(metadata: &Metadata, flag: &str) -> Result<Option<Lay>> {
    let flagged = |segment: &Segment| segment.flags.iter().any(|name| name == flag);
    let mut found = metadata.segments.iter().filter(|(_, segment)| flagged(segment));
    let (first, second) = (found.next(), found.next());
    if let (Some((one, _)), Some((other, _))) = (first, second) {
        return Err(bad(format!("segments {one} and {other}: both are \"{flag}\"")));
    }
    let Some((&number, segment)) = first else { return Ok(None) };
    if segment.flags.len() != 1 {
        return Err(bad(format!("segments.{number}.flags: more than \"{flag}\"")));
    }
    Ok(Some(Lay { number, segment: segment.clone(), digest: key_of(metadata, number)? }))
}

/// Returns the digest of a segment's key, if it has one. More than one digest is an error.
fn key_of(metadata: &Metadata, segment: u32) -> Result<Option<u32>> {
    let mut digests = metadata.digests.iter().filter(|(_, digest)| digest.segments.contains(&segment));
    match (digests.next(), digests.next()) {
        (Some((one, _)), Some((other, _))) => {
            Err(bad(format!("digests {one} and {other}: segments.{segment} has one key only")))
        }
        (only, _) => Ok(only.map(|(number, _)| *number)),
    }
}

/// Returns a segment's cipher, if it is encrypted.
///
/// Fails with `Unsupported` for features that this build does not support.
pub(crate) fn crypt_of<'s>(segment: &'s Segment, place: &str) -> Result<Option<&'s Crypt>> {
    if segment.kind == "linear" {
        return Ok(None);
    }
    let crypt = segment.crypt.as_ref().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    if crypt.integrity.is_some() {
        let context = format!("{place}.integrity: authenticated data cannot be reencrypted");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(Some(crypt))
}

fn missing(flag: &str) -> Error {
    bad(format!("segments: none is \"{flag}\""))
}

pub(crate) fn bad(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadHeader, why)
}
