//! Keyslots that come and go: their areas, their words in the metadata, the digest that they are bound to.

use serde_json::{Map, Value};
use underseal_cipher::{CipherSpec, Key};

use crate::luks2::keyslot::{
    self,
    new::{NewSlot, area_size},
};
use crate::luks2::metadata::{MAX_OBJECTS, Metadata};
use crate::luks2::{Header, activate};
use crate::{Error, ErrorKind, Hash, Pbkdf, Result, Target, VolumeKey, storage};

/// What a new keyslot is to be like.
#[derive(Debug)]
pub struct NewKeyslot {
    /// Its number; none takes the first that is free.
    pub number: Option<u32>,
    /// The hash of its anti-forensic splitter.
    pub hash: Hash,
    /// How the passphrase becomes a key.
    pub pbkdf: Pbkdf,
}

impl Header {
    /// Gives the volume key another keyslot, which this passphrase opens: its number.
    ///
    /// # Errors
    /// `Unsupported` when the header requires what this build does not know, as while its data is reencrypted;
    /// `WrongKey` when the key is not this header's; `BadOption` when the number is taken, or none is free; `TooSmall` when no room
    /// for its area is left; `Busy`, `Ambiguous` when the header cannot be changed now; `Io`, `Memory`.
    pub fn add_keyslot(
        &mut self,
        on: &(impl Target + ?Sized),
        key: &VolumeKey,
        passphrase: &Key,
        new: &NewKeyslot,
    ) -> Result<u32> {
        // All that takes time, without the lock.
        keyslot::confirm(&self.stored.metadata, key)?;
        let slot = NewSlot::settle(&data_cipher(&self.stored.metadata), new.hash, &new.pbkdf)?;
        let sealed = slot.seal(passphrase, &key.key)?;
        let len = key.key.len();
        let header_size = self.stored.binary.size;
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            let number = free_number(metadata, new.number)?;
            let offset = free_area(metadata, header_size, area_size(len))?;
            insert(document, number, slot.json(len, offset))?;
            bind(document, key.digest, number)?;
            Ok((number, offset))
        };
        let added = self.update(on, edit, |&(_, offset)| {
            storage::write(on, offset, sealed.as_bytes())?;
            storage::sync(on)
        });
        added.map(|(number, _)| number)
    }

    /// Removes a keyslot. Its area is wiped first: after a crash in between it is still listed, and can be removed again.
    ///
    /// # Errors
    /// `Unsupported` as for [`Header::add_keyslot`]; `NoKeyslot` when it is not there; `BadOption` when it is the last one of its key, unless `last` allows that; `Busy`,
    /// `Ambiguous` when the header cannot be changed now; `Io`.
    pub fn remove_keyslot(&mut self, on: &(impl Target + ?Sized), number: u32, last: bool) -> Result<()> {
        let edit = |document: &mut Map<String, Value>, metadata: &Metadata| {
            activate::requirements(&metadata.config.requirements)?;
            let Some(slot) = metadata.keyslots.get(&number) else {
                return Err(Error::new(ErrorKind::NoKeyslot, format!("keyslot {number} is not in use")));
            };
            let mut digests = metadata.digests.values();
            if !last && digests.any(|digest| digest.keyslots == [number]) {
                let context = format!("keyslot {number} is the last one that holds its key");
                return Err(Error::new(ErrorKind::BadOption, context));
            }
            remove(document, number)?;
            Ok(slot.area)
        };
        let removed = self.update(on, edit, |&(offset, size)| {
            storage::scrub(on, offset..offset + size)?;
            storage::sync(on)
        });
        removed.map(|_| ())
    }
}

/// What encrypts the data, or what would.
fn data_cipher(metadata: &Metadata) -> CipherSpec {
    let crypts = metadata.segments.values().filter(|s| !s.is_backup());
    let mut ciphers = crypts.filter_map(|s| Some(s.crypt.as_ref().ok()?.cipher.clone()));
    ciphers.next().unwrap_or_else(|| "aes-xts-plain64".parse().expect("a constant that parses"))
}

fn free_number(metadata: &Metadata, chosen: Option<u32>) -> Result<u32> {
    let is_free = |number: &u32| !metadata.keyslots.contains_key(number);
    let context = match chosen {
        Some(number) if number < MAX_OBJECTS && is_free(&number) => return Ok(number),
        Some(number) if number < MAX_OBJECTS => format!("keyslot {number} is in use"),
        Some(number) => format!("there is no keyslot {number}: the last is {}", MAX_OBJECTS - 1),
        None => match (0..MAX_OBJECTS).find(is_free) {
            Some(number) => return Ok(number),
            None => "all keyslots are in use".into(),
        },
    };
    Err(Error::new(ErrorKind::BadOption, context))
}

/// The first place between the areas that are in use where another of `len` bytes fits.
pub(super) fn free_area(metadata: &Metadata, header_size: u64, len: u64) -> Result<u64> {
    const ALIGNMENT: u64 = 4096;
    let end = 2 * header_size + metadata.config.keyslots_size;
    let mut areas: Vec<(u64, u64)> = metadata.keyslots.values().map(|slot| slot.area).collect();
    areas.sort_unstable();
    // Whatever was read has its areas within the header and apart from each other.
    let mut at = 2 * header_size;
    for (offset, size) in areas {
        if offset.checked_sub(at).is_some_and(|room| room >= len) {
            return Ok(at);
        }
        at = at.max((offset + size).next_multiple_of(ALIGNMENT));
    }
    if end.checked_sub(at).is_some_and(|room| room >= len) {
        return Ok(at);
    }
    Err(Error::new(ErrorKind::TooSmall, format!("no {len} bytes are left for the keyslot's area")))
}

/// Puts a keyslot's words into the document.
fn insert(document: &mut Map<String, Value>, number: u32, slot: Value) -> Result<()> {
    object(document.get_mut("keyslots"), "keyslots")?.insert(number.to_string(), slot);
    Ok(())
}

/// Lets a digest tell whether the keyslot's key is right.
fn bind(document: &mut Map<String, Value>, digest: u32, number: u32) -> Result<()> {
    let digest = object(document.get_mut("digests"), "digests")?.get_mut(&digest.to_string());
    let slots = object(digest, "digests")?.get_mut("keyslots").and_then(Value::as_array_mut);
    slots.ok_or_else(|| missing("digests"))?.push(number.to_string().into());
    Ok(())
}

/// Takes a keyslot's words out of the document, and its number out of what names it.
pub(super) fn remove(document: &mut Map<String, Value>, number: u32) -> Result<()> {
    object(document.get_mut("keyslots"), "keyslots")?.remove(&number.to_string());
    for part in ["digests", "tokens"] {
        for entry in object(document.get_mut(part), part)?.values_mut() {
            let slots = entry.get_mut("keyslots").and_then(Value::as_array_mut);
            let slots = slots.ok_or_else(|| missing(part))?;
            slots.retain(|slot| slot.as_str() != Some(&number.to_string()));
        }
    }
    Ok(())
}

fn object<'d>(value: Option<&'d mut Value>, part: &str) -> Result<&'d mut Map<String, Value>> {
    value.and_then(Value::as_object_mut).ok_or_else(|| missing(part))
}

/// The document was parsed, so its parts are there.
fn missing(part: &str) -> Error {
    Error::new(ErrorKind::BadHeader, format!("{part}: not as they were read"))
}
