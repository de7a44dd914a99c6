//! The remaining room for keyslots' areas.

use std::ops::Range;

use crate::Result;
use crate::keyslots::no_room;
use crate::luks2::metadata::Metadata;

const ALIGNMENT: u64 = 4096;

/// The room and its used parts.
pub(in crate::luks2) struct Room {
    all: Range<u64>,
    /// In order, without overlaps.
    taken: Vec<Range<u64>>,
}

impl Room {
    /// Returns the room of a header whose copies are `header_size` bytes each.
    pub(in crate::luks2) fn of(metadata: &Metadata, header_size: u64) -> Self {
        let end = 2 * header_size + metadata.config.keyslots_size;
        // A parsed header has its areas within the room, without overlaps.
        let areas = metadata.keyslots.values().map(|slot| slot.area.0..slot.area.0 + slot.area.1);
        let mut taken: Vec<Range<u64>> = areas.collect();
        taken.sort_unstable_by_key(|area| area.start);
        Self { all: 2 * header_size..end, taken }
    }

    /// Takes the first place that holds `len` bytes. Returns its beginning.
    ///
    /// Fails with `NoRoom`.
    pub(in crate::luks2) fn take(&mut self, len: u64) -> Result<u64> {
        let found = self.gaps().into_iter().find(|gap| gap.end - gap.start >= len);
        let found =
            found.ok_or_else(|| no_room(format!("no {len} bytes are left for the keyslot's area")))?;
        self.mark(found.start..found.start + len);
        Ok(found.start)
    }

    /// Takes the largest place as a whole.
    ///
    /// Fails with `NoRoom`.
    pub(in crate::luks2) fn take_largest(&mut self) -> Result<Range<u64>> {
        let whole = |gap: Range<u64>| gap.start..gap.end & !(ALIGNMENT - 1);
        let gaps = self.gaps().into_iter().map(whole).filter(|gap| gap.start < gap.end);
        let first_of_largest = gaps.rev().max_by_key(|gap| gap.end - gap.start);
        let found = first_of_largest
            .ok_or_else(|| no_room("no room is left among the keyslots for what protects a step"))?;
        self.mark(found.clone());
        Ok(found)
    }

    fn mark(&mut self, area: Range<u64>) {
        let at = self.taken.partition_point(|other| other.start < area.start);
        self.taken.insert(at, area);
    }

    fn gaps(&self) -> Vec<Range<u64>> {
        let mut at = self.all.start;
        let mut gaps = Vec::new();
        for area in self.taken.iter().chain([&(self.all.end..self.all.end)]) {
            if at < area.start {
                gaps.push(at..area.start);
            }
            at = at.max(area.end.next_multiple_of(ALIGNMENT));
        }
        gaps
    }
}
