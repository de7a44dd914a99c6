//! The parts of the document that describe a new reencryption: requirement, keyslot, backups,
//! segments, and the digest over them.

use serde_json::{Map, Value, json};
use underseal_cipher::Key;

use super::digest;
use super::ledger::write_segments;
use super::shape::{self, ShapeInput};
use super::slot::{FINAL, MOVED, PREVIOUS, Reencryption, bad};
use crate::luks2::metadata::{MAX_OBJECTS, Metadata};
use crate::luks2::update::room::Room;
use crate::luks2::update::words;
use crate::luks2::{BINARY_LEN, format, json};
use crate::reencrypt::{Direction, Mode, Part, Plan, Progress, Protection, Which};
use crate::{Hash, Result, VolumeKey};

pub(super) type Document = Map<String, Value>;

/// A reencryption that is about to start.
pub(super) struct Arrangement {
    pub(super) mode: Mode,
    pub(super) direction: Direction,
    /// The protection of steps that are written over their own source; never
    /// [`Protection::Source`].
    pub(super) protection: Protection,
    pub(super) shift: Option<u64>,
    /// The old segment, the new segment, and the moved segment, with the digests of their keys.
    pub(super) previous: (Value, Option<u32>),
    pub(super) last: (Value, Option<u32>),
    pub(super) moved: Option<Value>,
    /// The volume's size during the reencryption, and whether its last segment reaches to the end
    /// of the device.
    pub(super) size: u64,
    pub(super) open: bool,
    /// The rounds of the digest over these parts.
    pub(super) iterations: u32,
}

impl Arrangement {
    /// Writes the reencryption into the document, and signs it. The document has only keyslots and
    /// digests of the keys so far. The result is accepted only if the reencryption can be resumed.
    ///
    /// Fails with `NoRoom`, and with `BadLayout`, `BadHeader` or `TooSmall` when the reencryption
    /// does not fit the volume.
    pub(super) fn write(
        &self,
        document: &mut Document,
        header_size: u64,
        room: &mut Room,
        key: &VolumeKey,
        given: ShapeInput,
    ) -> Result<()> {
        let (version, slot) =
            (if self.moves_first() && self.mode == Mode::Decrypt { 3 } else { 2 }, self.slot(room)?);
        let keyslots = words::object(document.get_mut("keyslots"), "keyslots")?;
        let number = (0..MAX_OBJECTS).find(|number| !keyslots.contains_key(&number.to_string()));
        let number = number.ok_or_else(|| crate::keyslots::no_room("all keyslots are in use"))?;
        keyslots.insert(number.to_string(), slot);
        let config = words::object(document.get_mut("config"), "config")?;
        config.insert("requirements".into(), json!({ "mandatory": [requirement(version)] }));
        self.backups(document)?;
        add_digest(document, number, self.iterations)?;
        let (metadata, of) = parse(document, header_size)?;
        let plan = shape::planned(&metadata, &of, key, given, self.size)?;
        let parts = plan.parts(Progress::default());
        write_segments(document, &of, &parts, self.open.then_some(self.size))?;
        sign(document, header_size, key)?;
        let (metadata, of) = parse(document, header_size)?;
        let (plan, _) = shape::read(&metadata, &of, key, given)?;
        steps_fit(document, &of, &plan, header_size)
    }

    fn moves_first(&self) -> bool {
        self.moved.is_some()
    }

    fn slot(&self, room: &mut Room) -> Result<Value> {
        // Where the data moves, only the part that stays in place has its steps protected.
        let area = if self.shift.is_some() && !(self.moves_first() && self.mode == Mode::Decrypt) {
            let start = room.take(4096)?;
            start..start + 4096
        } else {
            room.take_largest()?
        };
        let mut words = area_words(self.protection, self.shift, self.mode == Mode::Decrypt);
        let of_area = words::object(Some(&mut words), "area")?;
        of_area.insert("offset".into(), area.start.to_string().into());
        of_area.insert("size".into(), (area.end - area.start).to_string().into());
        let mode = match self.mode {
            Mode::Reencrypt => "reencrypt",
            Mode::Encrypt => "encrypt",
            Mode::Decrypt => "decrypt",
        };
        let direction = match self.direction {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        };
        Ok(json!({
            "type": super::slot::KIND, "key_size": 1, "mode": mode, "direction": direction, "priority": 0, "area": words,
        }))
    }

    /// Inserts the regular segment with the old state, and the backups behind it.
    fn backups(&self, document: &mut Document) -> Result<()> {
        let flagged = |(segment, digest): &(Value, Option<u32>), flag: &str| {
            let mut segment = segment.clone();
            segment["flags"] = json!([flag]);
            (segment, *digest)
        };
        let moved = self.moved.clone().map(|segment| flagged(&(segment, self.previous.1), MOVED));
        let backups = [
            Some(self.previous.clone()),
            Some(flagged(&self.previous, PREVIOUS)),
            Some(flagged(&self.last, FINAL)),
            moved,
        ];
        let all: Vec<(Value, Option<u32>)> = backups.into_iter().flatten().collect();
        let digests = words::object(document.get_mut("digests"), "digests")?;
        for (number, digest) in digests.iter_mut() {
            let its =
                all.iter().enumerate().filter(|(_, (_, of))| of.is_some_and(|of| of.to_string() == *number));
            let its: Vec<String> = its.map(|(segment, _)| segment.to_string()).collect();
            words::object(Some(digest), "digests")?.insert("segments".into(), json!(its));
        }
        let segments =
            all.into_iter().enumerate().map(|(number, (segment, _))| (number.to_string(), segment));
        document.insert("segments".into(), Value::Object(segments.collect()));
        Ok(())
    }
}

/// Refuses a document that could not record each step: with the largest number of segments, and
/// with the longest numbers.
///
/// Fails with `NoRoom`.
pub(super) fn steps_fit(document: &Document, of: &Reencryption, plan: &Plan, header_size: u64) -> Result<()> {
    // A short number takes less room than the word for an open size.
    const LONG: u64 = 10_000_000;
    let (long, far) = (plan.size.max(LONG), plan.end().max(LONG));
    let all = [plan.moved.map(|_| Which::Moved), Some(Which::New), Some(Which::Hot), Some(Which::Old)];
    let part = |which| Part { range: long..2 * long, which, lower: far };
    let parts: Vec<Part> = all.into_iter().flatten().map(part).collect();
    let mut widest = document.clone();
    write_segments(&mut widest, of, &parts, None)?;
    let area = usize::try_from(header_size).unwrap_or(usize::MAX).saturating_sub(BINARY_LEN);
    let full = "the header has no room for the records of steps: remove unneeded parts, such as tokens";
    json::fill_area(&widest, area).map(drop).map_err(|e| crate::keyslots::no_room(full).with_source(e))
}

/// Returns the area's type and parameters, without its place.
pub(super) fn area_words(protection: Protection, shift: Option<u64>, guards_moved: bool) -> Value {
    let mut words = match protection {
        _ if shift.is_some() && !guards_moved => json!({ "type": "datashift" }),
        Protection::None | Protection::Source => json!({ "type": "none" }),
        Protection::Journal => json!({ "type": "journal" }),
        Protection::Checksum { hash, block } => {
            json!({ "type": "checksum", "hash": hash.name(), "sector_size": block })
        }
    };
    if let Some(shift) = shift {
        words["shift_size"] = shift.to_string().into();
        if guards_moved {
            words["type"] = format!("datashift-{}", words["type"].as_str().unwrap_or_default()).into();
        }
    }
    words
}

/// Returns the requirement of a reencryption whose metadata have this version.
pub(super) fn requirement(version: u8) -> String {
    format!("online-reencrypt-v{version}")
}

/// Inserts a digest of the keyslot over no data, so that the document can be parsed and then
/// signed.
pub(super) fn add_digest(document: &mut Document, slot: u32, iterations: u32) -> Result<()> {
    let digests = words::object(document.get_mut("digests"), "digests")?;
    let free = (0..MAX_OBJECTS).find(|number| !digests.contains_key(&number.to_string()));
    let free = free.ok_or_else(|| crate::keyslots::no_room("no room for another digest is left"))?;
    let nothing = crate::kdf::new_key(1)?;
    digests.insert(free.to_string(), of_slot(&nothing, slot, Hash::Sha256, iterations)?);
    Ok(())
}

/// Renews the digest over the metadata.
pub(super) fn sign(document: &mut Document, header_size: u64, key: &VolumeKey) -> Result<()> {
    let (metadata, of) = parse(document, header_size)?;
    let keys =
        of.digests().into_iter().map(|digest| key.of(digest).ok_or_else(|| shape::lacks(&metadata, digest)));
    let input = digest::input(document, &of, &keys.collect::<Result<Vec<_>>>()?)?;
    let old = &metadata.document["digests"][of.digest.to_string()];
    let iterations = old["iterations"].as_u64().and_then(|rounds| u32::try_from(rounds).ok());
    let made =
        of_slot(&input, of.slot, Hash::Sha256, iterations.unwrap_or(crate::kdf::benchmark::MIN_ITERATIONS))?;
    words::insert(document, "digests", of.digest, made)
}

/// Returns a digest that belongs to a keyslot and to no data.
fn of_slot(input: &Key, slot: u32, hash: Hash, iterations: u32) -> Result<Value> {
    let mut made = format::digest(input, slot, hash, iterations)?;
    made["segments"] = json!([]);
    Ok(made)
}

pub(super) fn parse(document: &Document, header_size: u64) -> Result<(Metadata, Reencryption)> {
    let metadata = Metadata::parse(document.clone(), header_size)?;
    let of = Reencryption::parse(&metadata)?
        .ok_or_else(|| bad("config.requirements: no reencryption is named"))?;
    Ok((metadata, of))
}
