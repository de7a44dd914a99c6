//! From a passphrase to the volume key, through any keyslot that it opens; `new` makes a keyslot.

pub(crate) mod new;

use underseal_cipher::Key;

use super::metadata::{Digest, Keyslot, LINEAR, Metadata};
use super::reencrypt;
use crate::area::KeyArea;
use crate::kdf::Budget;
use crate::storage::ReadAt;
use crate::{Error, ErrorKind, KdfLimits, KeyCheck, Result, UnlockOptions, Unlocked, VolumeKey};

/// Tries the passphrase on the chosen keyslot, or on all of them by priority, then by number.
/// During a reencryption it may open both keys, or one of them.
pub(super) fn unlock(
    metadata: &Metadata,
    from: &(impl ReadAt + ?Sized),
    passphrase: &Key,
    options: &UnlockOptions,
) -> Result<Unlocked> {
    let [these, others] = candidates(metadata, options)?;
    crate::unlock::within_limits(passphrase, options, |passphrase, budget| {
        let first_of = |slots: &[u32]| {
            crate::unlock::first_that_opens(slots.iter().copied(), |number| {
                let key = open(metadata, number, from, passphrase, options, budget)?;
                Ok(Unlocked { slot: number, key })
            })
        };
        if others.is_empty() {
            return first_of(&these);
        }
        match (first_of(&these), first_of(&others)) {
            (Ok(one), Ok(other)) => Ok(Unlocked { slot: one.slot, key: one.key.with(other.key) }),
            (_, Err(e)) | (Err(e), _) if matches!(e.kind(), ErrorKind::Io | ErrorKind::Memory) => Err(e),
            // The requested keyslot is among the first ones.
            (Err(e), Ok(_)) if options.slot.is_some() => Err(e),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(e), Err(_)) => Err(e),
        }
    })
}

/// Checks a given key against the digest of the data.
pub(super) fn verify(metadata: &Metadata, key: Key, options: &UnlockOptions) -> Result<VolumeKey> {
    let budget = Budget::new(options.limits);
    for (number, digest) in metadata.digests.iter().filter(|(_, d)| protects_data(metadata, d)) {
        if has_length(metadata, digest, key.len()) && matches(digest, &key, &budget)? {
            return Ok(VolumeKey::new(key, *number));
        }
    }
    Err(Error::new(ErrorKind::WrongKey, "this is not the key of this volume"))
}

/// Checks a key against the digest that it names: it may be another header's.
pub(super) fn confirm(metadata: &Metadata, key: &VolumeKey) -> Result<()> {
    let budget = Budget::new(KdfLimits::default());
    let digest = metadata.digests.get(&key.digest);
    match digest.filter(|digest| has_length(metadata, digest, key.key.len())) {
        Some(digest) if matches(digest, &key.key, &budget)? => Ok(()),
        _ => Err(Error::new(ErrorKind::WrongKey, "this is not the key of this volume")),
    }
}

/// Returns the digest of a key.
pub(super) fn key_check(metadata: &Metadata, key: &VolumeKey) -> Result<KeyCheck> {
    let check = metadata.digests.get(&key.digest).and_then(|digest| digest.check.as_ref().ok());
    let check = check.ok_or_else(|| Error::new(ErrorKind::WrongKey, "the header does not know this key"))?;
    Ok(KeyCheck { kdf: check.kdf.clone(), digest: check.digest.clone(), len: key.key.len() })
}

/// Returns true when a key of this digest has this length. PBKDF2 does not tell: a key and the same
/// key with zeros appended have one digest.
fn has_length(metadata: &Metadata, digest: &Digest, len: usize) -> bool {
    let mut slots = digest.keyslots.iter().map(|slot| metadata.keyslots[slot].key_size as usize).peekable();
    if slots.peek().is_some() {
        return slots.any(|size| size == len);
    }
    // Without any keyslot, the ciphers know the length.
    let ciphers = digest.segments.iter().filter_map(|number| metadata.segments[number].crypt.as_ref().ok());
    len > 0 && ciphers.into_iter().all(|crypt| crypt.takes_key(len))
}

/// Explains why no keyslot is tried: none has the data's key, or the data are decrypted and have
/// none.
fn no_keyslot(metadata: &Metadata) -> Error {
    let first = metadata.segments.get(&0).filter(|segment| segment.kind == LINEAR);
    match first.map(|segment| &segment.crypt) {
        Some(Err(why)) if !reencrypt::is_under_way(metadata) => Error::new(ErrorKind::Unsupported, why),
        _ => Error::new(ErrorKind::NoKeyslot, "no keyslot opens this volume's data"),
    }
}

/// Returns the slots to try. An unbound one, which opens no data, is tried only when it is named,
/// or all are requested. During a reencryption the keyslots of the other key form a second list,
/// any of which suffices beside the named one.
fn candidates(metadata: &Metadata, options: &UnlockOptions) -> Result<[Vec<u32>; 2]> {
    let fits =
        |number: &u32| options.except != Some(*number) && (options.unbound || opens_data(metadata, *number));
    let usable = metadata.keyslots.iter().filter(|(number, slot)| slot.priority > 0 && fits(number));
    let mut usable: Vec<(u32, &Keyslot)> = usable.map(|(number, slot)| (*number, slot)).collect();
    usable.sort_by_key(|(number, slot)| (std::cmp::Reverse(slot.priority), *number));
    let mut usable: Vec<u32> = usable.into_iter().map(|(number, _)| number).collect();
    // The key of the first segment comes first.
    let begins =
        |number: &u32| digest_of(metadata, *number).is_some_and(|(_, digest)| digest.segments.contains(&0));
    usable.sort_by_key(|number| reencrypt::is_under_way(metadata) && !begins(number));
    let first = match options.slot {
        Some(number) if !metadata.keyslots.contains_key(&number) => {
            return Err(Error::new(ErrorKind::NoKeyslot, format!("keyslot {number} is not in use")));
        }
        Some(number) => number,
        None => *usable.first().ok_or_else(|| no_keyslot(metadata))?,
    };
    let key = |number: u32| digest_of(metadata, number).map(|(digest, _)| digest);
    let (these, others): (Vec<u32>, Vec<u32>) = usable
        .into_iter()
        .partition(|number| !reencrypt::is_under_way(metadata) || key(*number) == key(first));
    let named = options.slot.map(|number| vec![number]);
    Ok([named.unwrap_or(these), others])
}

/// Returns true when a keyslot holds a key of the data. During a reencryption both keys are.
pub(super) fn opens_data(metadata: &Metadata, number: u32) -> bool {
    digest_of(metadata, number).is_some_and(|(_, digest)| protects_data(metadata, digest))
}

fn open(
    metadata: &Metadata,
    number: u32,
    from: &(impl ReadAt + ?Sized),
    passphrase: &Key,
    options: &UnlockOptions,
    budget: &Budget,
) -> Result<VolumeKey> {
    // `candidates` took the number from the metadata.
    let keyslot = &metadata.keyslots[&number];
    let slot = keyslot.passphrase.as_ref().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    let Some((digest_number, digest)) = digest_of(metadata, number) else {
        return Err(Error::new(ErrorKind::BadHeader, "no digest tells whether its key is right"));
    };
    crate::unlock::allow_null(&slot.cipher, options.allow_null).map_err(|e| e.within("area.encryption"))?;
    let wrapping = budget.derive(&slot.kdf, passphrase.as_bytes(), slot.wrapping_size as usize);
    let wrapping = wrapping.map_err(|e| e.within("kdf"))?;
    let area = KeyArea { spec: &slot.cipher, hash: slot.af_hash };
    let key = area.read(from, keyslot.area.0, &wrapping, keyslot.key_size as usize);
    let key = key.map_err(|e| e.within("area"))?;
    if !matches(digest, &key, budget).map_err(|e| e.within(format_args!("digests.{digest_number}")))? {
        return Err(crate::unlock::wrong_passphrase());
    }
    Ok(VolumeKey::new(key, digest_number))
}

/// Returns true when the digest is this key's.
fn matches(digest: &Digest, key: &Key, budget: &Budget) -> Result<bool> {
    let check = digest.check.as_ref().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    let found = budget.derive(&check.kdf, key.as_bytes(), check.digest.len())?;
    // The comparison of keys takes constant time.
    Ok(crate::kdf::to_key(&check.digest)? == found)
}

fn digest_of(metadata: &Metadata, slot: u32) -> Option<(u32, &Digest)> {
    let mut digests = metadata.digests.iter();
    digests.find(|(_, digest)| digest.keyslots.contains(&slot)).map(|(number, digest)| (*number, digest))
}

fn protects_data(metadata: &Metadata, digest: &Digest) -> bool {
    let under_way = reencrypt::is_under_way(metadata);
    digest.segments.iter().any(|number| under_way || !metadata.segments[number].is_backup())
}
