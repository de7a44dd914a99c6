//! Adding and removing keyslots: eight of them, each with a place for its key material.

use std::ops::Range;

use crate::area::KeyArea;
use crate::format::bad;
use crate::kdf::Budget;
use crate::keyslots::{free_number, last_keyslot, no_room, not_in_use};
use crate::luks1::Header;
use crate::luks1::phdr::{LEN, Phdr, SLOT_COUNT, Slot};
use crate::{
    Error, ErrorKind, Kdf, KdfLimits, Key, NewKeyslot, PbkdfKind, Replace, Result, Target, Unlocked,
    VolumeKey, af, storage, unlock,
};

impl Header {
    /// Adds a keyslot; see [`crate::Header::add_keyslot`].
    pub(crate) fn add_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &VolumeKey,
        passphrase: &Key,
        new: &NewKeyslot,
    ) -> Result<u32> {
        let made = self.make(key, passphrase, new)?;
        self.put(on, &made, new.number)
    }

    /// Removes a keyslot; see [`crate::Header::remove_keyslot`].
    pub(crate) fn remove_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        number: u32,
        last: bool,
    ) -> Result<()> {
        let edit = |phdr: &mut Phdr| {
            let slot = phdr.slots.get_mut(number as usize).and_then(Option::take);
            let slot = slot.ok_or_else(|| not_in_use(number))?;
            if !last && phdr.slots.iter().all(Option::is_none) {
                return Err(last_keyslot(number));
            }
            Ok(slot.offset..slot.offset + af::split_len(phdr.key_bytes) as u64)
        };
        let removed = self.update(on, edit, |area| {
            storage::scrub(on, area.clone())?;
            storage::sync(on)
        });
        removed.map(|_| ())
    }

    /// Replaces a keyslot; see [`crate::Header::change_keyslot`].
    pub(crate) fn change_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        opened: &Unlocked,
        passphrase: &Key,
        new: &NewKeyslot,
        how: Replace,
    ) -> Result<u32> {
        let made = self.make(&opened.key, passphrase, new)?;
        match how {
            Replace::Beside => {
                let keeps_its_number = new.number == Some(opened.slot);
                let number = self.put(on, &made, new.number.filter(|_| !keeps_its_number))?;
                let removed = self.remove_keyslot(on, opened.slot, false);
                let context =
                    format_args!("keyslot {number} is new; the old one, {}, may still be there", opened.slot);
                removed.map_err(|e| e.within(context))?;
                if !keeps_its_number {
                    return Ok(number);
                }
                // The number is free now, and the passphrase opens the temporary keyslot until it
                // opens this one.
                let moved = self.put(on, &made, Some(opened.slot));
                let moved = moved.and_then(|_| self.remove_keyslot(on, number, false));
                let context =
                    format_args!("keyslot {number} is new, but not yet in place of {}", opened.slot);
                moved.map_err(|e| e.within(context)).map(|()| opened.slot)
            }
            Replace::InPlace if new.number.is_some_and(|number| number != opened.slot) => {
                Err(bad(format!("a keyslot in place of keyslot {0} is keyslot {0}", opened.slot)))
            }
            Replace::InPlace => {
                self.remove_keyslot(on, opened.slot, true)?;
                self.put(on, &made, Some(opened.slot))
            }
        }
    }

    /// Makes a keyslot without its place, which takes time.
    fn make(&self, key: &VolumeKey, passphrase: &Key, new: &NewKeyslot) -> Result<Made> {
        let Phdr { hash, cipher, key_bytes, .. } = &self.phdr;
        self.refuse_what_luks1_has_not(new)?;
        unlock::allow_null(cipher, false)?;
        let budget = Budget::new(KdfLimits::default());
        if key.key.len() != *key_bytes || !self.confirms(&key.key, &budget)? {
            return Err(Error::new(ErrorKind::WrongKey, "this is not the key of this volume"));
        }
        let kdf = new.pbkdf.settle(*hash, *key_bytes)?;
        let Kdf::Pbkdf2 { iterations, salt, .. } = &kdf else { unreachable!("PBKDF2 was asked for") };
        let wrapping = kdf.derive(passphrase.as_bytes(), *key_bytes, &KdfLimits::NONE)?;
        Ok(Made {
            iterations: *iterations,
            salt: std::array::from_fn(|i| salt[i]),
            sealed: KeyArea { spec: cipher, hash: *hash }.seal(&wrapping, &key.key)?,
        })
    }

    fn refuse_what_luks1_has_not(&self, new: &NewKeyslot) -> Result<()> {
        let lacks = |what: &str| Err(bad(format!("LUKS1 has no {what}")));
        if new.pbkdf.kind != PbkdfKind::Pbkdf2 {
            return lacks("key derivation but PBKDF2");
        }
        if let Some(hash) = new.hash
            && hash != self.phdr.hash
        {
            return Err(bad(format!(
                "all of a LUKS1 header has one hash, and this one's is {}",
                self.phdr.hash
            )));
        }
        if new.cipher.is_some() {
            return lacks("cipher of keyslots but the data's");
        }
        if new.priority.is_some() {
            return lacks("priorities of keyslots");
        }
        Ok(())
    }

    /// Puts the keyslot into a free place: its key material first.
    fn put(&mut self, on: &(impl Target + ?Sized), made: &Made, chosen: Option<u32>) -> Result<u32> {
        let &Made { iterations, salt, ref sealed } = made;
        let end = storage::size(on)?;
        let edit = |phdr: &mut Phdr| {
            let is_free = |number: &u32| phdr.slots[*number as usize].is_none();
            let number = free_number(SLOT_COUNT, chosen, is_free)?;
            let offset = place(phdr, number as usize, end)?;
            phdr.slots[number as usize] = Some(Slot { iterations, salt, offset });
            Ok((number, offset))
        };
        let added = self.update(on, edit, |&(_, offset)| {
            storage::write(on, offset, sealed.as_bytes())?;
            storage::sync(on)
        });
        added.map(|(number, _)| number)
    }
}

/// A keyslot without a place.
struct Made {
    iterations: u32,
    salt: [u8; 32],
    sealed: Key,
}

/// Returns the place for a free keyslot's key material: the header's, or where that is invalid, the
/// one of a new header.
fn place(phdr: &Phdr, number: usize, end: u64) -> Result<u64> {
    const ALIGNMENT: u64 = 4096;
    let len = af::split_len(phdr.key_bytes) as u64;
    let end = if phdr.payload_offset == 0 { end } else { end.min(phdr.payload_offset) };
    let apart = |one: &Range<u64>, other: &Range<u64>| one.end <= other.start || other.end <= one.start;
    let is_free = |offset: &u64| {
        let own = *offset..*offset + len;
        let mut others = phdr.slots.iter().flatten().map(|slot| slot.offset..slot.offset + len);
        own.start >= LEN as u64 && own.end <= end && others.all(|other| apart(&own, &other))
    };
    let usual = ALIGNMENT + len.next_multiple_of(ALIGNMENT) * number as u64;
    let mut places = [phdr.place(number), usual].into_iter();
    places
        .find(is_free)
        .ok_or_else(|| no_room(format!("no room for the key material of keyslot {number} is left")))
}
