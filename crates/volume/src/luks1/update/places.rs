//! Moves of key material.
//!
//! cryptsetup refuses a header with overlapping places, even of unused keyslots. So a free keyslot
//! is moved before key material is written to its place.

use std::ops::Range;

use super::STRADDLER;
use crate::backup::restore::{apart, free_place};
use crate::lock::LockTo;
use crate::luks1::phdr::{Phdr, SLOTS};
use crate::luks1::{Header, unchanged};
use crate::{Error, ErrorKind, Result, Target, af, storage};

impl Header {
    /// Moves the places of free keyslots up to the highest possible ones of `to`, one at a time. In
    /// a header that cryptsetup refuses nothing is moved. Fails with the errors of an update.
    pub(crate) fn spread(&mut self, on: &(impl Target + ?Sized), to: &[u64]) -> Result<()> {
        if !self.phdr.is_sound() {
            return Ok(());
        }
        let mut free: Vec<usize> = (0..SLOTS).filter(|number| self.phdr.slots[*number].is_none()).collect();
        free.sort_by_key(|number| std::cmp::Reverse(self.phdr.places()[*number]));
        for number in free {
            let moved = to.iter().rev().map(|place| with_place(&self.phdr, number, *place));
            let from = self.phdr.places()[number];
            let better = moved.into_iter().find(|new| new.places()[number] > from && new.is_sound());
            if let Some(new) = better {
                self.put_whole(on, new, || Ok(()))?;
            }
        }
        Ok(())
    }

    /// Returns the sequence of headers by which a keyslot's key material gets to an unused place;
    /// the last one has it there. cryptsetup accepts each of them if it accepts this one. Returns
    /// `None` where no sequence exists.
    pub(crate) fn way_to(&self, number: u32, place: u64, within: Range<u64>) -> Option<Vec<Phdr>> {
        let (number, len) = (number as usize, af::split_len(self.phdr.key_bytes) as u64);
        let area = |place: u64| place..place.saturating_add(len);
        let was = self.phdr.slots[number].as_ref()?.offset;
        let mut way = vec![self.phdr.clone()];
        let mut given_up = Vec::new();
        if self.phdr.is_sound() {
            let is_free = |other: &usize| self.phdr.slots[*other].is_none();
            let places = self.phdr.places();
            for other in (0..SLOTS).filter(is_free).filter(|i| !apart(&area(places[*i]), &area(place))) {
                let now = way.last()?;
                let mut taken: Vec<Range<u64>> = now.places().map(area).to_vec();
                taken.push(area(place));
                match free_place(&taken, len, within.clone()) {
                    Some(spare) => way.push(with_place(now, other, spare)),
                    None => given_up.push(other),
                }
            }
        }
        let mut moved = with_place(way.last()?, number, place);
        match given_up[..] {
            [] => {}
            // Both places are in one sector, and are exchanged with one write.
            [other] if (other < STRADDLER) == (number < STRADDLER) => moved.set_place(other, was),
            _ => return None,
        }
        way.push(moved);
        let is_whole = !self.phdr.is_sound() || way.iter().all(Phdr::is_sound);
        way.remove(0);
        is_whole.then_some(way)
    }

    /// Moves a keyslot's key material along this sequence. It opens from one of the two places at
    /// every instant. Fails with the errors of an update.
    pub(crate) fn move_material(
        &mut self,
        on: &(impl Target + ?Sized),
        number: u32,
        way: Vec<Phdr>,
    ) -> Result<()> {
        let lost = || Error::new(ErrorKind::NoKeyslot, format!("keyslot {number} is not in use"));
        let areas = self.areas();
        let (_, area) = areas.into_iter().find(|(other, _)| *other == number).ok_or_else(lost)?;
        for new in way {
            let place = new.places()[number as usize];
            self.put_whole(on, new, || {
                if place == area.start {
                    return Ok(());
                }
                let len = usize::try_from(area.end - area.start).unwrap_or(usize::MAX);
                storage::write(on, place, &storage::read(on, area.start, len)?)?;
                storage::sync(on)
            })?;
        }
        let _lock = on.lock(LockTo::Change)?;
        unchanged(on, self)?;
        storage::scrub(on, area)?;
        storage::sync(on)
    }

    /// Replaces the whole header.
    pub(super) fn put_whole(
        &mut self,
        on: &(impl Target + ?Sized),
        new: Phdr,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let edit = |phdr: &mut Phdr| {
            *phdr = new;
            Ok(())
        };
        self.update(on, edit, |()| before())
    }
}

fn with_place(phdr: &Phdr, number: usize, place: u64) -> Phdr {
    let mut phdr = phdr.clone();
    phdr.set_place(number, place);
    phdr
}
