//! Replaces a whole header by a backup.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::backup::restore::{Plan, copy, elsewhere};
use crate::lock::LockTo;
use crate::luks2::binary::Binary;
use crate::luks2::metadata::Metadata;
use crate::luks2::{Header, store};
use crate::{Error, ErrorKind, Result, Target, storage};

impl Header {
    /// Fails with `BadOption` unless this header keeps data and keyslots in the same places as
    /// `old`.
    pub(crate) fn fits_over(&self, old: &Self) -> Result<()> {
        if self.data_offset() != old.data_offset() {
            return Err(elsewhere("data"));
        }
        let keyslots = |header: &Self| (header.stored.binary.size, header.keyslots_end());
        if keyslots(self) == keyslots(old) { Ok(()) } else { Err(elsewhere("keyslots")) }
    }

    /// Replaces this header by `new`, with its keyslots from `bytes`. The replacement counts as an
    /// update of this header.
    pub(crate) fn restore(
        mut self,
        on: &(impl Target + ?Sized),
        new: &Self,
        bytes: &[u8],
        in_place: bool,
    ) -> Result<()> {
        let keyslots = 2 * new.stored.binary.size..new.keyslots_end();
        match self.plan(on, new, bytes, keyslots.clone()) {
            Ok(plan) if plan.moved.is_empty() => {
                self.replace(on, new, new.json().clone(), || plan.write(on, bytes))?;
            }
            Ok(plan) => {
                let mut document = new.json().clone();
                plan.moved
                    .iter()
                    .try_for_each(|(number, _, place)| move_area(&mut document, *number, *place))?;
                self.replace(on, new, document, || plan.write(on, bytes))?;
                // The old areas are not needed any more.
                self.replace(on, new, new.json().clone(), || {
                    plan.moved.iter().try_for_each(|(_, area, _)| copy(on, bytes, area.clone()))
                })?;
            }
            Err(e) if e.kind() == ErrorKind::NoRoom && in_place => {
                self.replace(on, new, new.json().clone(), || copy(on, bytes, keyslots.clone()))?;
            }
            Err(e) => return Err(e),
        }
        let _lock = on.lock(LockTo::Change)?;
        store::unchanged(on, &self.stored)?;
        copy(on, bytes, keyslots)
    }

    /// Moves a keyslot's area to byte `place`, which is free. The keyslot can be opened at every
    /// instant, from the old or the new place.
    ///
    /// Fails with the errors of an update.
    pub(crate) fn move_material(
        &mut self,
        on: &(impl Target + ?Sized),
        number: u32,
        place: u64,
    ) -> Result<()> {
        let lost = || Error::new(ErrorKind::NoKeyslot, format!("keyslot {number} is not in use"));
        let (_, area) = self.areas().into_iter().find(|(other, _)| *other == number).ok_or_else(lost)?;
        let edit = |document: &mut Map<String, Value>, _: &Metadata| move_area(document, number, place);
        self.update(on, edit, |()| {
            let len = usize::try_from(area.end - area.start).unwrap_or(usize::MAX);
            storage::write(on, place, &storage::read(on, area.start, len)?)?;
            storage::sync(on)
        })?;
        let _lock = on.lock(LockTo::Change)?;
        store::unchanged(on, &self.stored)?;
        storage::scrub(on, area)?;
        storage::sync(on)
    }

    fn plan(
        &self,
        on: &(impl Target + ?Sized),
        new: &Self,
        bytes: &[u8],
        within: Range<u64>,
    ) -> Result<Plan> {
        let old: Vec<Range<u64>> = self.areas().into_iter().map(|(_, area)| area).collect();
        let plan = Plan::new(on, bytes, &new.areas(), &old, within)?;
        // A reencryption's digest covers the place of its area.
        let fixed = |number: &u32| new.stored.metadata.keyslots[number].kind != "luks2";
        if let Some((number, ..)) = plan.moved.iter().find(|(number, ..)| fixed(number)) {
            let context =
                format!("keyslot {number} is no passphrase's, and cannot stand elsewhere for a while");
            return Err(Error::new(ErrorKind::NoRoom, context));
        }
        Ok(plan)
    }

    fn replace(
        &mut self,
        on: &(impl Target + ?Sized),
        new: &Self,
        document: Map<String, Value>,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let edit = |binary: &mut Binary, old: &mut Map<String, Value>, _: &Metadata| {
            *binary = new.stored.binary.clone();
            *old = document;
            Ok(())
        };
        self.update_all(on, edit, |()| before())
    }
}

/// Changes the beginning of a keyslot's area to byte `place`.
fn move_area(document: &mut Map<String, Value>, number: u32, place: u64) -> Result<()> {
    let area =
        document.get_mut("keyslots").and_then(|slots| slots.pointer_mut(&format!("/{number}/area/offset")));
    let lost = || Error::new(ErrorKind::BadHeader, format!("keyslots.{number}: not as it was read"));
    *area.ok_or_else(lost)? = place.to_string().into();
    Ok(())
}
