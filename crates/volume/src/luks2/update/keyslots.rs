//! Adding, removing and changing keyslots: their areas, their entries in the metadata, and the
//! digest that they belong to.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use underseal_cipher::{CipherSpec, Key};

use super::room::Room;
use super::tokens::{self, NewToken};
use super::words;
use crate::keyslots::{free_number, last_keyslot, no_room, not_in_use};
use crate::luks2::format::digest;
use crate::luks2::keyslot::{
    self,
    new::{NewSlot, area_size},
};
use crate::luks2::metadata::{Keyslot, MAX_KEY_SIZE, MAX_OBJECTS, Metadata};
use crate::luks2::{Header, activate};
use crate::{Hash, NewKeyslot, Priority, Replace, Result, Target, Unlocked, VolumeKey, format, storage};

type Document = Map<String, Value>;

impl Header {
    /// See [`crate::Header::add_keyslot`].
    ///
    /// # Errors
    /// The kinds of [`crate::Header::add_keyslot`].
    pub fn add_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &VolumeKey,
        passphrase: &Key,
        new: &NewKeyslot,
    ) -> Result<u32> {
        let token = |document: &mut Document, metadata: &Metadata, number| match new.recovery {
            true => tokens::put(document, metadata, recovery_token(), NewToken::default(), number).map(drop),
            false => Ok(()),
        };
        self.add(on, (key, passphrase), new, token).map(|(number, ())| number)
    }

    /// Adds a keyslot and the token of its passphrase in one change, so that no reader finds only
    /// one of the two. Returns the keyslot's number and the token's number. The token names this
    /// keyslot only.
    ///
    /// # Errors
    /// The kinds of [`Header::add_keyslot`] and [`Header::add_token`].
    pub fn add_keyslot_with_token(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &VolumeKey,
        passphrase: &Key,
        new: &NewKeyslot,
        (token, place): (Document, NewToken),
    ) -> Result<(u32, u32)> {
        let token = tokens::checked(token)?;
        self.add(on, (key, passphrase), new, |document, metadata, number| {
            tokens::put(document, metadata, token, place, number)
        })
    }

    /// Adds a keyslot. `say` writes the other parts of the change into the document.
    fn add<T>(
        &mut self,
        on: &(impl Target + ?Sized),
        (key, passphrase): (&VolumeKey, &Key),
        new: &NewKeyslot,
        say: impl FnOnce(&mut Document, &Metadata, u32) -> Result<T>,
    ) -> Result<(u32, T)> {
        keyslot::confirm(&self.stored.metadata, key)?;
        let made = Made::new(&self.stored.metadata, &key.key, passphrase, new, None)?;
        self.put(on, &made, new, |document, metadata, number| {
            words::bind(document, key.digest, number)?;
            say(document, metadata, number)
        })
    }

    /// See [`crate::Header::add_unbound_keyslot`].
    pub(crate) fn add_unbound_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &Key,
        passphrase: &Key,
        new: &NewKeyslot,
    ) -> Result<u32> {
        if key.is_empty() || key.len() > MAX_KEY_SIZE as usize {
            return Err(format::bad(format!("a key of {} bytes: from 1 to {MAX_KEY_SIZE}", key.len())));
        }
        let made = Made::new(&self.stored.metadata, key, passphrase, new, None)?;
        let iterations = new.pbkdf.digest_iterations(made.hash, made.hash.output_len());
        let mut digest = digest(key, 0, made.hash, iterations)?;
        digest["segments"] = json!([]);
        let put = self.put(on, &made, new, |document, metadata, number| {
            digest["keyslots"] = json!([number.to_string()]);
            let free =
                free(&metadata.digests).ok_or_else(|| no_room("no room for another key's digest is left"))?;
            words::insert(document, "digests", free, digest)
        });
        put.map(|(number, ())| number)
    }

    /// Puts a new keyslot into free room, its area first. `bind` writes the digest of its key and
    /// the other parts of the change.
    fn put<T>(
        &mut self,
        on: &(impl Target + ?Sized),
        made: &Made,
        new: &NewKeyslot,
        bind: impl FnOnce(&mut Document, &Metadata, u32) -> Result<T>,
    ) -> Result<(u32, T)> {
        let header_size = self.stored.binary.size;
        let edit = |document: &mut Document, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            let number = number(metadata, new.number)?;
            let offset = Room::of(metadata, header_size).take(made.area_size())?;
            words::insert(document, "keyslots", number, made.json(offset))?;
            let told = bind(document, metadata, number)?;
            Ok((number, told, offset))
        };
        let added = self.update(on, edit, |&(_, _, offset)| made.write(on, offset));
        added.map(|(number, told, _)| (number, told))
    }

    /// See [`crate::Header::remove_keyslot`].
    ///
    /// # Errors
    /// The kinds of [`crate::Header::remove_keyslot`].
    pub fn remove_keyslot(&mut self, on: &(impl Target + ?Sized), number: u32, last: bool) -> Result<()> {
        let edit = |document: &mut Document, metadata: &Metadata| {
            let slot = usable(metadata, number)?;
            let mut digests = metadata.digests.values();
            if !last && digests.any(|digest| digest.keyslots == [number] && !digest.segments.is_empty()) {
                return Err(last_keyslot(number));
            }
            words::remove_keyslot(document, number)?;
            Ok(slot.area)
        };
        let removed = self.update(on, edit, |&(offset, size)| {
            storage::scrub(on, offset..offset + size)?;
            storage::sync(on)
        });
        removed.map(|_| ())
    }

    /// See [`crate::Header::change_keyslot`].
    pub(crate) fn change_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        opened: &Unlocked,
        passphrase: &Key,
        new: &NewKeyslot,
        how: Replace,
    ) -> Result<u32> {
        let metadata = &self.stored.metadata;
        keyslot::confirm(metadata, &opened.key)?;
        let old = usable(metadata, opened.slot)?;
        let made = Made::new(metadata, &opened.key.key, passphrase, new, Some(old))?;
        match how {
            Replace::InPlace => self.overwrite(on, &made, opened),
            Replace::Beside => {
                let (number, leftover) = self.put_beside(on, &made, new.number, opened)?;
                let removed = self.remove_keyslot(on, leftover, false);
                let context =
                    format_args!("keyslot {number} is new; the old one, now {leftover}, may still be there");
                removed.map_err(|e| e.within(context)).map(|()| number)
            }
        }
    }

    /// Writes a new keyslot beside the keyslot that it replaces. Returns the new keyslot's number
    /// and the old keyslot's new number.
    fn put_beside(
        &mut self,
        on: &(impl Target + ?Sized),
        made: &Made,
        chosen: Option<u32>,
        Unlocked { slot: old, key }: &Unlocked,
    ) -> Result<(u32, u32)> {
        let header_size = self.stored.binary.size;
        let edit = |document: &mut Document, metadata: &Metadata| {
            usable(metadata, *old)?;
            let other = number(metadata, chosen.filter(|chosen| chosen != old))?;
            let offset = Room::of(metadata, header_size).take(made.area_size())?;
            words::bind(document, key.digest, other)?;
            let numbers = if chosen.is_some_and(|chosen| chosen != *old) {
                words::name_in_tokens(document, *old, other)?;
                (other, *old)
            } else {
                // The new keyslot gets the number, and with it the tokens' references.
                words::rename_keyslot(document, *old, other)?;
                (*old, other)
            };
            words::insert(document, "keyslots", numbers.0, made.json(offset))?;
            Ok((numbers, offset))
        };
        let changed = self.update(on, edit, |&(_, offset)| made.write(on, offset));
        changed.map(|(numbers, _)| numbers)
    }

    /// Writes a keyslot over the keyslot that it replaces.
    fn overwrite(&mut self, on: &(impl Target + ?Sized), made: &Made, opened: &Unlocked) -> Result<u32> {
        let number = opened.slot;
        let edit = |document: &mut Document, metadata: &Metadata| {
            let (offset, size) = usable(metadata, number)?.area;
            if size < made.area_size() {
                return Err(no_room(format!(
                    "keyslot {number} has {size} bytes, which do not hold a new one"
                )));
            }
            words::insert(document, "keyslots", number, made.json(offset))?;
            Ok((offset, size))
        };
        let changed = self.update(on, edit, |&(offset, size)| {
            storage::scrub(on, offset..offset + size)?;
            made.write(on, offset)
        });
        changed.map(|_| number)
    }

    /// See [`crate::Header::set_priority`].
    pub(crate) fn set_priority(
        &mut self,
        on: &(impl Target + ?Sized),
        number: u32,
        priority: Priority,
    ) -> Result<()> {
        let edit = |document: &mut Document, metadata: &Metadata| {
            usable(metadata, number)?;
            words::set_priority(words::keyslot(document, number)?, priority);
            Ok(())
        };
        self.update(on, edit, |()| Ok(()))
    }
}

/// The result of all slow work for a keyslot that has no place yet.
pub(in crate::luks2) struct Made {
    slot: NewSlot,
    pub(in crate::luks2) hash: Hash,
    key_len: usize,
    sealed: Key,
    priority: Priority,
}

impl Made {
    /// Returns the length of the keyslot's area.
    pub(in crate::luks2) fn area_size(&self) -> u64 {
        area_size(self.key_len)
    }

    /// Parameters that `new` leaves out are the replaced keyslot's, if any.
    pub(in crate::luks2) fn new(
        metadata: &Metadata,
        key: &Key,
        passphrase: &Key,
        new: &NewKeyslot,
        old: Option<&Keyslot>,
    ) -> Result<Self> {
        let like = old.and_then(|old| old.passphrase.as_ref().ok());
        let hash = new.hash.or(like.map(|like| like.af_hash)).unwrap_or(Hash::Sha256);
        let slot = match (&new.cipher, like) {
            (Some((cipher, size)), _) => NewSlot::settle(cipher, *size, hash, &new.pbkdf)?,
            (None, Some(like)) if !like.cipher.is_null() => {
                NewSlot::settle(&like.cipher, Some(like.wrapping_size as usize), hash, &new.pbkdf)?
            }
            _ => NewSlot::settle_like_data(&data_cipher(metadata), hash, &new.pbkdf)?,
        };
        let sealed = slot.seal(passphrase, key)?;
        let kept = old.map_or(Priority::Normal, Keyslot::priority);
        Ok(Self { slot, hash, key_len: key.len(), sealed, priority: new.priority.unwrap_or(kept) })
    }

    pub(in crate::luks2) fn json(&self, offset: u64) -> Value {
        let mut json = self.slot.json(self.key_len, offset);
        if let Some(json) = json.as_object_mut() {
            words::set_priority(json, self.priority);
        }
        json
    }

    pub(in crate::luks2) fn write(&self, on: &(impl Target + ?Sized), offset: u64) -> Result<()> {
        storage::write(on, offset, self.sealed.as_bytes())?;
        storage::sync(on)
    }
}

/// The token that marks a keyslot's passphrase as a recovery key, as systemd does.
fn recovery_token() -> Document {
    Map::from_iter([("type".into(), "systemd-recovery".into()), ("keyslots".into(), json!([]))])
}

/// Returns an existing keyslot of a header that may be changed.
fn usable(metadata: &Metadata, number: u32) -> Result<&Keyslot> {
    activate::requirements(&metadata.config.requirements)?;
    metadata.keyslots.get(&number).ok_or_else(|| not_in_use(number))
}

/// Returns the cipher of the data, or the default cipher.
fn data_cipher(metadata: &Metadata) -> CipherSpec {
    let crypts = metadata.segments.values().filter(|s| !s.is_backup());
    let mut ciphers = crypts.filter_map(|s| Some(s.crypt.as_ref().ok()?.cipher.clone()));
    ciphers.next().unwrap_or_else(|| "aes-xts-plain64".parse().expect("a constant that parses"))
}

fn number(metadata: &Metadata, chosen: Option<u32>) -> Result<u32> {
    free_number(MAX_OBJECTS, chosen, |number| !metadata.keyslots.contains_key(number))
}

/// Returns the first free number in a part of the metadata.
pub(in crate::luks2) fn free<T>(part: &BTreeMap<u32, T>) -> Option<u32> {
    (0..MAX_OBJECTS).find(|number| !part.contains_key(number))
}
