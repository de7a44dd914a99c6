//! From a passphrase to the volume key, through any keyslot that it opens; `new` makes one.

pub(crate) mod new;

use underseal_cipher::Key;

use super::metadata::{Digest, Keyslot, Metadata};
use crate::area::KeyArea;
use crate::kdf::Budget;
use crate::storage::ReadAt;
use crate::{Error, ErrorKind, KdfLimits, KeyCheck, Result, UnlockOptions, Unlocked, VolumeKey};

/// Tries the passphrase on the chosen keyslot, or on all of them by priority, then by number.
pub(super) fn unlock(
    metadata: &Metadata,
    from: &(impl ReadAt + ?Sized),
    passphrase: &Key,
    options: &UnlockOptions,
) -> Result<Unlocked> {
    let candidates = candidates(metadata, options)?;
    crate::unlock::within_limits(passphrase, options, |passphrase, budget| {
        crate::unlock::first_that_opens(candidates.iter().copied(), |number| {
            let key = open(metadata, number, from, passphrase, options, budget)?;
            Ok(Unlocked { slot: number, key })
        })
    })
}

/// Checks a key that came from elsewhere against the digest of the data.
pub(super) fn verify(metadata: &Metadata, key: Key, options: &UnlockOptions) -> Result<VolumeKey> {
    let budget = Budget::new(options.limits);
    for (number, digest) in metadata.digests.iter().filter(|(_, d)| protects_data(metadata, d)) {
        if has_length(metadata, digest, key.len()) && matches(digest, &key, &budget)? {
            return Ok(VolumeKey { key, digest: *number });
        }
    }
    Err(Error::new(ErrorKind::WrongKey, "this is not the key of this volume"))
}

/// Checks that a key is the one of the digest that it says it is of: it may be another header's.
pub(super) fn confirm(metadata: &Metadata, key: &VolumeKey) -> Result<()> {
    let budget = Budget::new(KdfLimits::default());
    let digest = metadata.digests.get(&key.digest);
    match digest.filter(|digest| has_length(metadata, digest, key.key.len())) {
        Some(digest) if matches(digest, &key.key, &budget)? => Ok(()),
        _ => Err(Error::new(ErrorKind::WrongKey, "this is not the key of this volume")),
    }
}

/// What the digest of a key knows of it.
pub(super) fn key_check(metadata: &Metadata, key: &VolumeKey) -> Result<KeyCheck> {
    let check = metadata.digests.get(&key.digest).and_then(|digest| digest.check.as_ref().ok());
    let check = check.ok_or_else(|| Error::new(ErrorKind::WrongKey, "the header does not know this key"))?;
    Ok(KeyCheck { kdf: check.kdf.clone(), digest: check.digest.clone(), len: key.key.len() })
}

/// Whether a key of this digest is this long. PBKDF2 cannot tell: a key and the same key with zeros appended have one
/// digest.
fn has_length(metadata: &Metadata, digest: &Digest, len: usize) -> bool {
    let mut slots = digest.keyslots.iter().map(|slot| metadata.keyslots[slot].key_size as usize).peekable();
    if slots.peek().is_some() {
        return slots.any(|size| size == len);
    }
    // All keyslots were killed: the ciphers know.
    let ciphers = digest.segments.iter().filter_map(|number| metadata.segments[number].crypt.as_ref().ok());
    let fits = |spec| underseal_cipher::key_sizes(spec).is_ok_and(|sizes| sizes.contains(&len));
    len > 0 && ciphers.into_iter().all(|crypt| fits(&crypt.cipher))
}

/// The slots to try. One that opens no data (an unbound one) is tried only when it, or all of them, are asked for.
fn candidates(metadata: &Metadata, options: &UnlockOptions) -> Result<Vec<u32>> {
    if let Some(number) = options.slot {
        return match metadata.keyslots.get(&number) {
            Some(_) => Ok(vec![number]),
            None => Err(Error::new(ErrorKind::NoKeyslot, format!("keyslot {number} is not in use"))),
        };
    }
    let fits =
        |number: &u32| options.except != Some(*number) && (options.unbound || opens_data(metadata, *number));
    let usable = metadata.keyslots.iter().filter(|(number, slot)| slot.priority > 0 && fits(number));
    let mut usable: Vec<(u32, &Keyslot)> = usable.map(|(number, slot)| (*number, slot)).collect();
    usable.sort_by_key(|(number, slot)| (std::cmp::Reverse(slot.priority), *number));
    if usable.is_empty() {
        return Err(Error::new(ErrorKind::NoKeyslot, "no keyslot opens this volume's data"));
    }
    Ok(usable.into_iter().map(|(number, _)| number).collect())
}

/// Whether a keyslot holds the key of the data, and not one of nothing.
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
    Ok(VolumeKey { key, digest: digest_number })
}

/// Whether the digest is this key's.
fn matches(digest: &Digest, key: &Key, budget: &Budget) -> Result<bool> {
    let check = digest.check.as_ref().map_err(|why| Error::new(ErrorKind::Unsupported, why))?;
    let found = budget.derive(&check.kdf, key.as_bytes(), check.digest.len())?;
    // Comparing keys takes constant time.
    Ok(crate::kdf::to_key(&check.digest)? == found)
}

fn digest_of(metadata: &Metadata, slot: u32) -> Option<(u32, &Digest)> {
    let mut digests = metadata.digests.iter();
    digests.find(|(_, digest)| digest.keyslots.contains(&slot)).map(|(number, digest)| (*number, digest))
}

fn protects_data(metadata: &Metadata, digest: &Digest) -> bool {
    digest.segments.iter().any(|number| !metadata.segments[number].is_backup())
}
