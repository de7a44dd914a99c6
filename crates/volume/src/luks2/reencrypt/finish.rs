//! The end: all of the data is new, and the keyslots and areas of the old key are removed.
//!
//! ```text
//!   one header without old keyslots, backups, requirement and state, during the last step
//!     -> old bytes outside the volume, the last step's protection, the old keyslots' areas:
//!        wiped, synced
//! ```
//! After an interruption before the header's update, any program does the last step again; after
//! the update, the reencryption is over. A header that calls all of the data new is never written:
//! cryptsetup would take it for a reencryption that has not begun, and encrypt the data twice. The
//! header notes the areas to be wiped until they are wiped (`update::unwiped`), so that a power cut
//! leaves no such bytes for good.
//!
//! If an older version or cryptsetup recorded the last step as done, that header is replaced
//! before anything is wiped. If the data moves as it is encrypted, old bytes outside the volume
//! are wiped before the header forgets their place. cryptsetup wipes the old keyslot before the
//! header forgets it; after an interruption in between, no program that needs both keys can open
//! the volume any more. So the header comes first here.

use std::ops::Range;

use serde_json::{Map, Value, json};

use super::ledger::Ledger;
use super::slot::{Reencryption, bad, is_reencryption};
use crate::lock::LockTo;
use crate::luks2::metadata::Metadata;
use crate::luks2::update::{unwiped, words};
use crate::luks2::{Header, store};
use crate::reencrypt::Ledger as _;
use crate::{Error, ErrorKind, Result, Target, storage};

impl Ledger<'_> {
    /// Ends a reencryption whose last step is recorded as done. See
    /// [`crate::reencrypt::Ledger::finish`].
    pub(super) fn end(&mut self, data: &(dyn Target + Sync)) -> Result<()> {
        if self.plan().step(self.progress()).is_some() {
            return Err(Error::new(ErrorKind::BadOption, "the reencryption has not come to its end yet"));
        }
        if self.moves() {
            // The rest of the plaintext is wiped while the header has its place.
            self.scrub_leftovers(data)?;
            let areas = self.forget_all()?;
            return self.wipe(&areas);
        }
        // As long as the header calls all of the data new, cryptsetup would encrypt it once more.
        storage::sync(data)?;
        let areas = self.forget_all()?;
        self.wipe_after(data, &areas)
    }

    /// Removes the reencryption from the header, in one update. Returns the areas that are free
    /// then: the old keyslots' areas, and the protection of the last step.
    pub(super) fn forget_all(&mut self) -> Result<Vec<Range<u64>>> {
        let Self { header, on, of, .. } = self;
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            let mut areas = forget(document, metadata, of)?;
            areas.push(of.area.clone());
            unwiped::note(document, &areas)?;
            Ok(areas)
        };
        header.update(on, edit, |_| Ok(()))
    }

    /// Wipes the areas that the header has forgotten.
    pub(super) fn wipe_after(&mut self, data: &(dyn Target + Sync), areas: &[Range<u64>]) -> Result<()> {
        self.scrub_leftovers(data)?;
        self.wipe(areas)
    }

    /// Wipes old bytes outside of the volume.
    fn scrub_leftovers(&self, data: &(dyn Target + Sync)) -> Result<()> {
        // A header in front replaces old bytes up to its own end, and no further.
        let kept = if self.given.detached { 0 } else { self.header.keyslots_end() };
        let leftovers = self.plan().leftovers().into_iter().map(|range| range.start.max(kept)..range.end);
        // An attacker without the keys may have written the places of the old bytes. An old key
        // that is gone opens none of the old bytes.
        for range in leftovers.filter(|range| self.vouched && range.start < range.end) {
            storage::scrub(data, range)?;
        }
        storage::sync(data)
    }

    fn wipe(&mut self, areas: &[Range<u64>]) -> Result<()> {
        wipe(&self.on, &self.header, areas).map_err(|e| {
            let areas = areas.iter().map(|area| format!("{} to {}", area.start, area.end));
            e.within(format_args!(
                "all of the data is new, but not all of the old keyslots, at bytes {}, is wiped; the next change of the \
                 header wipes it",
                areas.collect::<Vec<_>>().join(", ")
            ))
        })?;
        self.header.forget_wiped(&self.on);
        Ok(())
    }
}

/// Wipes areas for keyslots, except areas in use by the header on disk: other programs may have
/// changed the header meanwhile.
fn wipe(on: &(dyn Target + Sync), header: &Header, areas: &[Range<u64>]) -> Result<()> {
    let _lock = on.lock(LockTo::Change)?;
    let is_same = |now: &store::Stored| now.binary.uuid.as_str() == header.stored.binary.uuid.as_str();
    let now = store::read(on)?.filter(is_same).ok_or_else(store::changed)?;
    unwiped::wipe(on, &now, areas)
}

/// Removes the reencryption and the old key from the document. Returns the areas of the old
/// keyslots, which are free then.
fn forget(
    document: &mut Map<String, Value>,
    metadata: &Metadata,
    of: &Reencryption,
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
    // A digest without keyslots and data is removed.
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
