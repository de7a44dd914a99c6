//! The end: all of the data is new, and what kept the old key goes.
//!
//! ```text
//!   old bytes outside the volume, what protected the last step: wiped, synced
//!     -> one header without old keyslots, backups, requirement and state -> the old keyslots' areas: wiped
//! ```
//! What protected a step may be plaintext, and no header says that it is there when the reencryption is forgotten; so it goes before.
//! cryptsetup wipes the old keyslot before the header forgets it; cut off in between, neither it nor anybody else who wants both keys
//! opens the volume any more. So the header comes first here.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::ledger::Ledger;
use super::slot::{Reencryption, bad, is_reencryption};
use crate::lock::LockTo;
use crate::luks2::metadata::Metadata;
use crate::luks2::update::words;
use crate::luks2::{Header, store};
use crate::reencrypt::Ledger as _;
use crate::{Error, ErrorKind, Result, Target, storage};

/// cryptsetup's ceiling.
const MAX_KEYSLOTS_SIZE: u64 = 128 << 20;

impl Ledger<'_> {
    /// See [`crate::reencrypt::Ledger::finish`].
    pub(super) fn end(&mut self, data: &(dyn Target + Sync)) -> Result<()> {
        if self.plan().step(self.progress()).is_some() {
            return Err(Error::new(ErrorKind::BadOption, "the reencryption has not come to its end yet"));
        }
        // A header in front has the place of old bytes up to its own end, and no further.
        let kept = if self.given.detached { 0 } else { self.header.keyslots_end() };
        let leftovers = self.plan().leftovers().into_iter().map(|range| range.start.max(kept)..range.end);
        // Who lacks the keys may have written where they lie; an old key that is gone opens none of them.
        for range in leftovers.filter(|range| self.vouched && range.start < range.end) {
            storage::scrub(data, range)?;
        }
        storage::sync(data)?;
        let room = if self.given.detached {
            0
        } else {
            self.plan().new.lower.saturating_sub(self.header.keyslots_begin())
        };
        let Self { header, on, of, .. } = self;
        wipe(*on, header, std::slice::from_ref(&of.area))?;
        let edit =
            |document: &mut Map<String, Value>, metadata: &Metadata| forget(document, metadata, of, room);
        let areas = header.update(*on, edit, |_| Ok(()))?;
        wipe(*on, header, &areas).map_err(|e| {
            let areas = areas.iter().map(|area| format!("{} to {}", area.start, area.end));
            e.within(format_args!(
                "all of the data is new, but not all of the old keyslots, at bytes {}, is wiped",
                areas.collect::<Vec<_>>().join(", ")
            ))
        })
    }
}

/// Wipes areas for keyslots, unless somebody else may have put something there since this header was read.
fn wipe(on: &(dyn Target + Sync), header: &Header, areas: &[Range<u64>]) -> Result<()> {
    let _lock = on.lock(LockTo::Change)?;
    store::unchanged(on, &header.stored)?;
    areas.iter().try_for_each(|area| storage::scrub(on, area.clone()))?;
    storage::sync(on)
}

/// Takes the reencryption and the old key out of the document: the areas of the old keyslots, which are free then.
fn forget(
    document: &mut Map<String, Value>,
    metadata: &Metadata,
    of: &Reencryption,
    room: u64,
) -> Result<Vec<Range<u64>>> {
    let mut gone = Vec::new();
    if let Some(digest) = of.previous.digest.filter(|digest| of.last.digest != Some(*digest)) {
        gone.extend(&metadata.digests[&digest].keyslots);
    }
    let last = document["segments"][of.last.number.to_string()].clone();
    let Value::Object(mut last) = last else { return Err(words::missing("segments")) };
    last.shift_remove("flags");
    let digests = words::object(document.get_mut("digests"), "digests")?;
    for (number, digest) in digests.iter_mut() {
        let is_last = of.last.digest.is_some_and(|last| last.to_string() == *number);
        let segments = if is_last { json!(["0"]) } else { json!([]) };
        words::object(Some(digest), "digests")?.insert("segments".into(), segments);
    }
    // A digest that is left with neither keyslot nor data goes.
    for number in gone.iter().chain([&of.slot]) {
        words::remove_keyslot(document, *number)?;
    }
    let digests = words::object(document.get_mut("digests"), "digests")?;
    digests.retain(|number, digest| {
        let used = |part: &str| digest[part].as_array().is_some_and(|list| !list.is_empty());
        let of_old = of.previous.digest.is_some_and(|old| old.to_string() == *number);
        !of_old || used("keyslots") || used("segments")
    });
    document.insert("segments".into(), json!({ "0": last }));
    let config = words::object(document.get_mut("config"), "config")?;
    forget_requirement(config)?;
    // What the old data leaves free before the new is room for keyslots.
    let room = room.min(MAX_KEYSLOTS_SIZE) & !4095;
    if room > metadata.config.keyslots_size {
        config.insert("keyslots_size".into(), room.to_string().into());
    }
    let area = |number: &u32| {
        let (offset, size) = metadata.keyslots[number].area;
        offset..offset + size
    };
    Ok(gone.iter().map(area).collect())
}

fn forget_requirement(config: &mut Map<String, Value>) -> Result<()> {
    let requirements = words::object(config.get_mut("requirements"), "config.requirements")?;
    let named = requirements.get_mut("mandatory").and_then(Value::as_array_mut);
    let named = named.ok_or_else(|| bad("config.requirements: not as it was read"))?;
    named.retain(|name| !name.as_str().is_some_and(is_reencryption));
    if named.is_empty() {
        config.shift_remove("requirements");
    }
    Ok(())
}
