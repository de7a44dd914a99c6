//! The restore of a whole header from a backup.
//!
//! The parts that the old header needs are left alone until it is gone. A keyslot whose area, or
//! whose sector of the header, cannot be written until then first gets another place or another
//! number.

use std::ops::Range;

use super::{SECTOR, order};
use crate::backup::restore::{apart, copy, elsewhere, free_place, part};
use crate::keyslots::no_room;
use crate::lock::LockTo;
use crate::luks1::phdr::{LEN, Phdr, SLOTS};
use crate::luks1::{Header, unchanged};
use crate::{ErrorKind, ReadAt, Result, Target, af, storage};

impl Header {
    /// Fails with `BadOption` unless this header has its data where the old one does, with a key of
    /// the same length.
    pub(crate) fn fits_over(&self, old: &Self) -> Result<()> {
        if self.phdr.payload_offset != old.phdr.payload_offset {
            return Err(elsewhere("data"));
        }
        if self.phdr.key_bytes == old.phdr.key_bytes { Ok(()) } else { Err(elsewhere("keyslots")) }
    }

    /// Replaces this header by `new`, with its keyslots from `bytes`.
    pub(crate) fn restore(
        mut self,
        on: &(impl Target + ?Sized),
        new: &Self,
        bytes: &[u8],
        in_place: bool,
    ) -> Result<()> {
        let keyslots = LEN.next_multiple_of(SECTOR) as u64..new.keyslots_end();
        let within = keyslots.start..keyslots.end.max(self.keyslots_end());
        let areas = |header: &Self| header.areas().into_iter().map(|(_, area)| area);
        let mut used: Vec<Range<u64>> = areas(&self).collect();
        match Steps::find(on, bytes, &self.phdr, &new.phdr, within) {
            Ok(steps) => {
                if let Some(carrier) = steps.carrier {
                    self.put_whole(on, carrier, || steps.material.write(on, bytes))?;
                    used.extend(areas(&self));
                    // The old areas are not needed any more.
                    self.put_whole(on, new.phdr.clone(), || {
                        areas(new).try_for_each(|area| copy(on, bytes, area))
                    })?;
                } else {
                    self.put_whole(on, new.phdr.clone(), || steps.material.write(on, bytes))?;
                }
            }
            Err(e) if e.kind() == ErrorKind::NoRoom && in_place => {
                self.put_whole(on, new.phdr.clone(), || copy(on, bytes, keyslots.clone()))?;
            }
            Err(e) => return Err(e),
        }
        let _lock = on.lock(LockTo::Change)?;
        unchanged(on, &self)?;
        copy(on, bytes, keyslots.clone())?;
        // Beyond the backup's end no part of it overwrites the old contents.
        for area in used.into_iter().filter(|area| area.end > keyslots.end) {
            storage::scrub(on, area.start.max(keyslots.end)..area.end)?;
        }
        storage::sync(on)
    }
}

/// The steps from one header to another.
struct Steps {
    /// The header in between, where the new one cannot follow at once.
    carrier: Option<Phdr>,
    material: Material,
}

/// Key material of a backup, and where it is written while the old header counts.
#[derive(Default)]
struct Material(Vec<(Range<u64>, u64)>);

impl Material {
    /// Writes the key material, and syncs.
    fn write(&self, on: &(impl Target + ?Sized), bytes: &[u8]) -> Result<()> {
        self.0.iter().try_for_each(|(area, place)| storage::write(on, *place, part(bytes, area)))?;
        storage::sync(on)
    }
}

impl Steps {
    /// Finds the steps. Fails with `NoRoom` when no header in between keeps the old keyslots or has
    /// the new ones; with `Io`.
    fn find(
        on: &(impl ReadAt + ?Sized),
        bytes: &[u8],
        old: &Phdr,
        new: &Phdr,
        within: Range<u64>,
    ) -> Result<Self> {
        let len = af::split_len(new.key_bytes) as u64;
        let area = |place: u64| place..place.saturating_add(len);
        let used: Vec<Range<u64>> = old.slots.iter().flatten().map(|slot| area(slot.offset)).collect();
        let at_once = order(old, new).is_some();
        let mut material = Material::default();
        let mut carried = Vec::new();
        for (number, slot) in new.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let own = area(slot.offset);
            let is_there = storage::read(on, own.start, part(bytes, &own).len())? == part(bytes, &own);
            let is_free = used.iter().all(|other| apart(&own, other));
            let is_split = !at_once && number >= super::STRADDLER && old.slots[number] != new.slots[number];
            if is_split || !(is_there || is_free) {
                carried.push(number);
            } else {
                // Bytes that are there already may be in memory only.
                material.0.push((own.clone(), own.start));
            }
        }
        if carried.is_empty() {
            return Ok(Self { carrier: None, material });
        }
        let mut search = Search { old, new, used, len, within, is_sound: old.is_sound() && new.is_sound() };
        let mut found = search.carry(&carried);
        if found.is_none() && search.is_sound {
            // A header that cryptsetup would refuse for an instant is better than one that does not
            // open.
            search.is_sound = false;
            found = search.carry(&carried);
        }
        let Some((carrier, places)) = found else {
            return Err(no_room("no room to keep all keyslots until the old header is gone"));
        };
        for (number, place) in carried.iter().zip(places) {
            material.0.push((area(new.places()[*number]), place));
        }
        Ok(Self { carrier: Some(carrier), material })
    }
}

/// The search for the header in between.
struct Search<'h> {
    old: &'h Phdr,
    new: &'h Phdr,
    /// The old header's areas.
    used: Vec<Range<u64>>,
    len: u64,
    within: Range<u64>,
    /// True when cryptsetup accepts both headers, so the ones in between must be accepted, too.
    is_sound: bool,
}

impl Search<'_> {
    /// Returns the new header with these keyslots at other places or numbers, and those places.
    fn carry(&self, carried: &[usize]) -> Option<(Phdr, Vec<u64>)> {
        let mut header = self.new.clone();
        carried.iter().for_each(|number| header.slots[*number] = None);
        let mut places = Vec::new();
        for &number in carried {
            let slot = self.new.slots[number].as_ref()?;
            let others = (0..SLOTS).filter(|other| self.new.slots[*other].is_none());
            let candidates =
                std::iter::once(number).chain(others).filter(|other| header.slots[*other].is_none());
            let with = |other: usize, place: u64| {
                let mut header = header.clone();
                header.slots[other] = Some(crate::luks1::phdr::Slot { offset: place, ..slot.clone() });
                header.set_place(other, place);
                header
            };
            let found = candidates.into_iter().find_map(|other| {
                let spare = free_place(&self.taken(&header, true), self.len, self.within.clone());
                let own = Some(header.places()[other]).filter(|place| self.is_free(&header, *place));
                let places = spare.into_iter().chain(own);
                places.map(|place| (with(other, place), place)).find(|(header, _)| self.leads(header))
            });
            let (next, place) = found?;
            header = next;
            places.push(place);
        }
        Some((header, places))
    }

    /// Returns the areas in use by any of the three headers, and with `all` also the unused ones.
    fn taken(&self, between: &Phdr, all: bool) -> Vec<Range<u64>> {
        let area = |place: u64| place..place.saturating_add(self.len);
        let mut taken = self.used.clone();
        for phdr in [self.new, between] {
            taken.extend(phdr.slots.iter().flatten().map(|slot| area(slot.offset)));
        }
        if all && self.is_sound {
            taken.extend([self.old, self.new].iter().flat_map(|phdr| phdr.places()).map(area));
        }
        taken
    }

    fn is_free(&self, between: &Phdr, place: u64) -> bool {
        let own = place..place.saturating_add(self.len);
        let is_within = self.within.start <= own.start && own.end <= self.within.end;
        is_within && self.taken(between, false).iter().all(|other| apart(&own, other))
    }

    /// Returns true when it can follow the old header, and the new one can follow it.
    fn leads(&self, between: &Phdr) -> bool {
        self.follows(self.old, between) && self.follows(between, self.new)
    }

    fn follows(&self, one: &Phdr, next: &Phdr) -> bool {
        let Some([first, _]) = order(one, next) else { return false };
        if !self.is_sound {
            return true;
        }
        let (mut bytes, after) = (one.encode(), next.encode());
        bytes[first.clone()].copy_from_slice(&after[first]);
        next.is_sound() && Phdr::parse(&bytes).is_ok_and(|half| half.is_sound())
    }
}
