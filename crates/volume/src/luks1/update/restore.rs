//! All of a header in place of another, out of a backup.

use std::ops::Range;

use crate::backup::restore::{Plan, copy, elsewhere};
use crate::lock::LockTo;
use crate::luks1::phdr::{LEN, Phdr};
use crate::luks1::{Header, unchanged};
use crate::{ErrorKind, Result, Target};

impl Header {
    /// # Errors
    /// `BadOption` unless this header keeps its data where the other does, under a key as long.
    pub(crate) fn fits_over(&self, old: &Self) -> Result<()> {
        if self.phdr.payload_offset != old.phdr.payload_offset {
            return Err(elsewhere("data"));
        }
        if self.phdr.key_bytes == old.phdr.key_bytes { Ok(()) } else { Err(elsewhere("keyslots")) }
    }

    /// Puts `new` in place of this header, with its keyslots out of `bytes`.
    pub(crate) fn restore(
        mut self,
        on: &(impl Target + ?Sized),
        new: &Self,
        bytes: &[u8],
        in_place: bool,
    ) -> Result<()> {
        let keyslots = LEN.next_multiple_of(512) as u64..new.keyslots_end();
        let within = keyslots.start..keyslots.end.max(self.keyslots_end());
        let old: Vec<Range<u64>> = self.areas().into_iter().map(|(_, area)| area).collect();
        match Plan::new(on, bytes, &new.areas(), &old, within) {
            Ok(plan) if plan.moved.is_empty() => {
                self.replace(on, new.phdr.clone(), || plan.write(on, bytes))?;
            }
            Ok(plan) => {
                let mut elsewhere = new.phdr.clone();
                for (number, _, place) in &plan.moved {
                    if let Some(slot) = &mut elsewhere.slots[*number as usize] {
                        slot.offset = *place;
                    }
                }
                self.replace(on, elsewhere, || plan.write(on, bytes))?;
                // Nobody needs the old areas any more.
                self.replace(on, new.phdr.clone(), || {
                    plan.moved.iter().try_for_each(|(_, area, _)| copy(on, bytes, area.clone()))
                })?;
            }
            Err(e) if e.kind() == ErrorKind::NoRoom && in_place => {
                self.replace(on, new.phdr.clone(), || copy(on, bytes, keyslots.clone()))?;
            }
            Err(e) => return Err(e),
        }
        let _lock = on.lock(LockTo::Change)?;
        unchanged(on, &self)?;
        copy(on, bytes, keyslots)
    }

    /// Keyslot 6 lies in both sectors: where another comes in place of one, there is none in between.
    fn replace(
        &mut self,
        on: &(impl Target + ?Sized),
        mut new: Phdr,
        before: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        const STRADDLER: usize = 6;
        let last = new.slots[STRADDLER].clone();
        if self.phdr.slots[STRADDLER].is_some() && last.is_some() && self.phdr.slots[STRADDLER] != last {
            let mut without = new.clone();
            without.slots[STRADDLER] = None;
            self.put_whole(on, without, before)?;
            new.bytes = self.phdr.bytes;
            return self.put_whole(on, new, || Ok(()));
        }
        self.put_whole(on, new, before)
    }

    fn put_whole(
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
