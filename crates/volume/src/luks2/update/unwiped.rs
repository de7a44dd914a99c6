//! A note in the header of areas that are still to be wiped: a token that opens nothing.
//!
//! The end of a reencryption is one update that forgets old keyslots and the last step's
//! protection. Their bytes are wiped after it, so a power cut in between would leave them. The
//! update therefore names them in a token, which is removed when they are wiped:
//!
//! ```text
//!   "5": { "type": "underseal-wipe", "keyslots": [],
//!          "areas": [{ "offset": "32768", "size": "258048" }] }
//! ```
//! Each later update of the header wipes them first, and so does opening the volume for writing.
//! cryptsetup keeps tokens of unknown types. An attacker who writes the header can write a note:
//! only areas within the keyslots' room that belong to no keyslot are wiped.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::words;
use crate::luks2::Header;
use crate::luks2::metadata::{MAX_OBJECTS, Metadata};
use crate::luks2::store::{self, Stored};
use crate::{ErrorKind, Result, Target, storage};

/// The token's type.
const KIND: &str = "underseal-wipe";

/// Notes that these areas are to be wiped. If no token's number is free, the note is left out.
pub(in crate::luks2) fn note(document: &mut Map<String, Value>, areas: &[Range<u64>]) -> Result<()> {
    let tokens = words::object(document.get_mut("tokens"), "tokens")?;
    let number =
        (0..MAX_OBJECTS).map(|number| number.to_string()).find(|number| !tokens.contains_key(number));
    let area = |area: &Range<u64>| json!({ "offset": area.start.to_string(), "size": area.end.saturating_sub(area.start).to_string() });
    let areas: Vec<_> = areas.iter().map(area).collect();
    if let Some(number) = number {
        tokens.insert(number, json!({ "type": KIND, "keyslots": [], "areas": areas }));
    }
    Ok(())
}

/// Removes all notes from the document.
pub(super) fn forget(document: &mut Map<String, Value>) {
    if let Some(tokens) = document.get_mut("tokens").and_then(Value::as_object_mut) {
        tokens.retain(|_, token| !is_note(token));
    }
}

/// Wipes the areas in a header's notes, if any, once the header itself is on stable storage.
/// Returns true when nothing is left to wipe.
pub(super) fn wipe_noted(on: &(impl Target + ?Sized), now: &Stored) -> bool {
    let areas = noted(&now.metadata);
    // The other copy may need the bytes in these areas.
    let wipe = || store::secure(on, now).and_then(|()| wipe(on, now, &areas));
    areas.is_empty() || now.damage.is_none() && wipe().is_ok()
}

/// Wipes areas, except keyslots' areas.
pub(in crate::luks2) fn wipe(on: &(impl Target + ?Sized), now: &Stored, areas: &[Range<u64>]) -> Result<()> {
    let begin = now.binary.size.saturating_mul(2);
    let all = begin..begin.saturating_add(now.metadata.config.keyslots_size);
    let keyslots = now.metadata.keyslots.values();
    let used = keyslots.map(|keyslot| keyslot.area.0..keyslot.area.0.saturating_add(keyslot.area.1));
    for area in free(areas, used.collect(), &all) {
        storage::scrub(on, area)?;
    }
    storage::sync(on)
}

/// Returns the parts of these areas that are in `all` and in none of `used`: in order, and without
/// overlaps.
fn free(areas: &[Range<u64>], mut used: Vec<Range<u64>>, all: &Range<u64>) -> Vec<Range<u64>> {
    let mut areas = areas.to_vec();
    areas.sort_unstable_by_key(|area| area.start);
    used.sort_unstable_by_key(|area| area.start);
    let (mut at, mut parts) = (all.start, Vec::new());
    for area in areas {
        at = at.max(area.start);
        let end = area.end.min(all.end);
        for taken in used.iter().filter(|taken| taken.start < end) {
            if at < taken.start {
                parts.push(at..taken.start);
            }
            at = at.max(taken.end);
        }
        if at < end {
            parts.push(at..end);
            at = end;
        }
    }
    parts
}

fn is_note(token: &Value) -> bool {
    token["type"] == KIND
}

/// Returns the areas of all notes. Malformed areas are left out.
fn noted(metadata: &Metadata) -> Vec<Range<u64>> {
    let tokens = metadata.document.get("tokens").and_then(Value::as_object);
    let notes = tokens.into_iter().flat_map(Map::values).filter(|token| is_note(token));
    let number = |area: &Value, member: &str| area[member].as_str()?.parse::<u64>().ok();
    let range = |area: &Value| {
        let start = number(area, "offset")?;
        Some(start..start.checked_add(number(area, "size")?)?)
    };
    notes.filter_map(|note| note["areas"].as_array()).flatten().filter_map(range).collect()
}

impl Header {
    /// Returns true when the header notes areas that are to be wiped.
    pub(crate) fn has_unwiped(&self) -> bool {
        !noted(self.metadata()).is_empty()
    }

    /// Wipes the areas that an earlier, interrupted change of the header left. Returns true if any
    /// area was left.
    ///
    /// # Errors
    /// `Busy` when another program changed the header since it was read; `Locked` while another
    /// program holds its lock; `Io`.
    pub fn wipe_unwiped(&mut self, on: &(impl Target + ?Sized)) -> Result<bool> {
        if !self.has_unwiped() {
            return Ok(false);
        }
        self.update(on, |_, _| Ok(()), |()| Ok(()))?;
        match self.has_unwiped() {
            true => Err(crate::Error::new(ErrorKind::Io, "areas removed from a header cannot be wiped")),
            false => Ok(true),
        }
    }

    /// An update by a program that does not know the note.
    #[cfg(test)]
    pub(in crate::luks2) fn update_unwiped(
        &mut self,
        on: &(impl Target + ?Sized),
        edit: impl FnOnce(&mut Map<String, Value>, &Metadata) -> Result<()>,
    ) -> Result<()> {
        self.update_with(on, true, |_, document, metadata| edit(document, metadata), |()| Ok(()))
    }

    /// Removes the note from the header after all of it is wiped. If that is impossible now, the
    /// next update wipes the areas again.
    pub(in crate::luks2) fn forget_wiped(&mut self, on: &(impl Target + ?Sized)) {
        for _ in 0..2 {
            match self.update_with(on, true, |_, _, _| Ok(()), |()| Ok(())) {
                // Another program changed other parts of the header.
                Err(e) if e.kind() == ErrorKind::Busy => match Self::read(on) {
                    Ok(Some(now)) if now.uuid() == self.uuid() => *self = now,
                    _ => return,
                },
                _ => return,
            }
        }
    }
}
