//! LUKS2 to LUKS1.

use std::ops::Range;

use super::lacks;
use crate::backup::restore::{apart, free_place};
use crate::lock::LockTo;
use crate::luks1::LEN as PHDR_LEN;
use crate::luks1::phdr::{Phdr, SLOTS, Slot};
use crate::luks2::keyslot::new::area_size;
use crate::luks2::metadata::{Crypt, Digest, DigestCheck, Keyslot, Metadata, PassphraseSlot};
use crate::luks2::{self, Header};
use crate::text::FixedText;
use crate::{Error, ErrorKind, Hash, Kdf, Result, Target, storage};

const SECTOR: usize = 512;
/// The place of LUKS1's first key material in every header that cryptsetup makes.
const FIRST_PLACE: u64 = 4096;
/// LUKS1's names are shorter than this.
const NAME_LEN: usize = 32;

pub(super) fn convert(mut header: Header, on: &(impl Target + ?Sized)) -> Result<()> {
    match translate(&header) {
        Err(e) if e.kind() != ErrorKind::NoRoom => return Err(e),
        _ => secure(&mut header, on)?,
    }
    arrange(&mut header, on)?;
    let new = translate(&header)?.encode();
    // From here on only the second copy counts for a moment.
    header.repair(on)?;
    let _lock = on.lock(LockTo::Change)?;
    header.is_unchanged(on)?;
    let mut second = [0; SECTOR];
    second[..PHDR_LEN - SECTOR].copy_from_slice(&new[SECTOR..]);
    storage::write(on, SECTOR as u64, &second)?;
    storage::sync(on)?;
    storage::write(on, 0, &new[..SECTOR])?;
    storage::sync(on)?;
    // The remains of the two copies would be found again if LUKS1's header were ever lost.
    let rest = usize::try_from(header.keyslots_begin()).unwrap_or(2 * SECTOR) - 2 * SECTOR;
    storage::write(on, 2 * SECTOR as u64, &vec![0; rest])?;
    storage::sync(on)
}

/// Puts on stable storage what key material moves from, and what counts until LUKS1's header is
/// whole.
fn secure(header: &mut Header, on: &(impl Target + ?Sized)) -> Result<()> {
    let _lock = on.lock(LockTo::Change)?;
    header.secure(on)
}

/// Moves key material, while the header is still LUKS2's, to where a new LUKS1 header would have
/// it, as far as there is room: cryptsetup converts back what it finds there.
fn arrange(header: &mut Header, on: &(impl Target + ?Sized)) -> Result<()> {
    let room = header.keyslots_begin()..header.keyslots_end();
    for (number, area) in header.areas() {
        let len = area.end - area.start;
        let taken: Vec<Range<u64>> = header.areas().into_iter().map(|(_, area)| area).collect();
        let is_free = |place: &u64| {
            let own = *place..*place + len;
            room.start <= own.start && own.end <= room.end && taken.iter().all(|other| apart(&own, other))
        };
        let is_usual = usual_places(len).any(|place| place == area.start);
        if let Some(place) = usual_places(len).find(is_free).filter(|_| !is_usual) {
            header.move_material(on, number, place)?;
        }
    }
    Ok(())
}

/// Returns the places of LUKS1's eight keyslots in every header that cryptsetup makes.
fn usual_places(len: u64) -> impl Iterator<Item = u64> {
    (0..SLOTS as u64).map(move |number| FIRST_PLACE + number * len)
}

/// Translates the header to LUKS1.
fn translate(header: &Header) -> Result<Phdr> {
    let metadata = header.metadata();
    luks2::activate::requirements(&metadata.config.requirements)?;
    let (offset, crypt) = data(metadata)?;
    let (digest, check) = digest(metadata)?;
    let Kdf::Pbkdf2 { hash, iterations, salt } = &check.kdf else {
        return Err(lacks("digests.0.type: LUKS1 has PBKDF2 only"));
    };
    if hash.output_len() < 20 {
        return Err(lacks(format!("digests.0.hash: {hash} has fewer than the 20 bytes of LUKS1's digest")));
    }
    let short = |text: &str, place: &str| {
        if text.len() < NAME_LEN {
            Ok(())
        } else {
            Err(lacks(format!("{place}: LUKS1 has no room for {text}")))
        }
    };
    short(crypt.cipher.cipher(), "segments.0.encryption")?;
    short(&crypt.cipher.mode(), "segments.0.encryption")?;
    short(hash.name(), "digests.0.hash")?;
    let key_bytes = metadata.keyslots.values().next().map_or(0, |slot| slot.key_size);
    let mut slots = [const { None }; SLOTS];
    for (&number, slot) in &metadata.keyslots {
        let place = || format!("keyslots.{number}");
        if !digest.keyslots.contains(&number) {
            return Err(lacks(format!(
                "{}: it does not open the data, and LUKS1 has no such keyslots",
                place()
            )));
        }
        if slot.key_size != key_bytes {
            return Err(lacks(format!("{}.key_size: all of a LUKS1 header have one size", place())));
        }
        let made = keyslot(slot, crypt, *hash).map_err(|e| e.within(place()))?;
        let free = slots.get_mut(number as usize);
        *free.ok_or_else(|| lacks(format!("{}: LUKS1 has keyslots 0 to {}", place(), SLOTS - 1)))? =
            Some(made);
    }
    if metadata.keyslots.is_empty() {
        return Err(lacks("keyslots: none is in use, so nobody could open it again"));
    }
    let key_bytes = key_bytes as usize;
    let places = places(&slots, area_size(key_bytes), offset, header.keyslots_end())?;
    let uuid = FixedText::<40>::new(header.info().uuid.as_str(), "UUID")?;
    let digest_salt = <[u8; 32]>::try_from(&salt[..]);
    Ok(Phdr {
        bytes: Phdr::blank(&crypt.cipher, *hash, &uuid, &places),
        cipher: crypt.cipher.clone(),
        hash: *hash,
        payload_offset: offset,
        key_bytes,
        digest: std::array::from_fn(|i| check.digest[i]),
        digest_salt: digest_salt.map_err(|_| lacks("digests.0.salt: LUKS1's has 32 bytes"))?,
        digest_iterations: *iterations,
        uuid,
        slots,
    })
}

/// Returns the single segment: its start, and its cipher.
fn data(metadata: &Metadata) -> Result<(u64, &Crypt)> {
    let [segment] = metadata.segments.values().collect::<Vec<_>>()[..] else {
        return Err(lacks("segments: LUKS1 has one"));
    };
    let crypt = segment.crypt.as_ref().map_err(lacks)?;
    if let Some(integrity) = &crypt.integrity {
        return Err(lacks(format!(
            "segments.0.integrity: LUKS1 has no {}",
            crate::printable(&integrity.name)
        )));
    }
    if crypt.sector_size.bytes() != SECTOR {
        let size = crypt.sector_size.bytes();
        return Err(lacks(format!("segments.0.sector_size: LUKS1 has 512 bytes a sector, not {size}")));
    }
    if segment.size.is_some() {
        return Err(lacks("segments.0.size: LUKS1's data reaches to the end of its device"));
    }
    if crypt.iv_tweak != 0 {
        return Err(lacks("segments.0.iv_tweak: LUKS1 has none"));
    }
    let cipher = &crypt.cipher;
    if cipher.is_null() || cipher.to_string().starts_with("capi:") || cipher.key_count() > 1 {
        return Err(lacks(format!("segments.0.encryption: LUKS1 has no word for {cipher}")));
    }
    if segment.offset / 512 > u32::MAX.into() {
        return Err(lacks("segments.0.offset: LUKS1's data begins within 2 TiB"));
    }
    Ok((segment.offset, crypt))
}

fn digest(metadata: &Metadata) -> Result<(&Digest, &DigestCheck)> {
    if !metadata.tokens.is_empty() {
        return Err(lacks("tokens: LUKS1 has none; remove them first"));
    }
    let [digest] = metadata.digests.values().collect::<Vec<_>>()[..] else {
        return Err(lacks("digests: LUKS1 has one, for one key"));
    };
    if digest.segments.is_empty() {
        return Err(lacks("digests.segments: LUKS1's key is the data's"));
    }
    Ok((digest, digest.check.as_ref().map_err(lacks)?))
}

fn keyslot(slot: &Keyslot, crypt: &Crypt, hash: Hash) -> Result<Slot> {
    let PassphraseSlot { kdf, af_hash, cipher, wrapping_size } = slot.passphrase.as_ref().map_err(lacks)?;
    let Kdf::Pbkdf2 { hash: own, iterations, salt } = kdf else {
        return Err(lacks("kdf: LUKS1 has PBKDF2 only; `underseal keyslot convert` changes it"));
    };
    if *own != hash || *af_hash != hash {
        return Err(lacks(format!("all of a LUKS1 header has one hash, and the digest's is {hash}")));
    }
    if *cipher != crypt.cipher || *wrapping_size != slot.key_size {
        return Err(lacks("area.encryption: LUKS1's keyslots have the data's cipher and key size"));
    }
    if slot.area.0 / 512 > u32::MAX.into() || !slot.area.0.is_multiple_of(512) {
        return Err(lacks("area.offset: LUKS1 keeps keyslots at whole sectors within 2 TiB"));
    }
    let salt = <[u8; 32]>::try_from(&salt[..]).map_err(|_| lacks("kdf.salt: LUKS1's has 32 bytes"))?;
    Ok(Slot { iterations: *iterations, salt, offset: slot.area.0 })
}

/// Returns the place of each of the eight keyslots: those in use stay, the others get the room
/// left.
fn places(slots: &[Option<Slot>; SLOTS], len: u64, data: u64, keyslots_end: u64) -> Result<[u64; SLOTS]> {
    let end = if data == 0 { keyslots_end } else { data };
    let mut taken: Vec<Range<u64>> =
        slots.iter().flatten().map(|slot| slot.offset..slot.offset + len).collect();
    let is_free = |taken: &[Range<u64>], place: u64| {
        place + len <= end && taken.iter().all(|other| apart(&(place..place + len), other))
    };
    let mut places = [0; SLOTS];
    for (place, slot) in places.iter_mut().zip(slots) {
        *place = match slot {
            Some(slot) => slot.offset,
            None => usual_places(len)
                .find(|place| is_free(&taken, *place))
                .or_else(|| free_place(&taken, len, FIRST_PLACE..end))
                .ok_or_else(|| {
                    let context =
                        format!("LUKS1 has eight keyslots, and byte {end} is too early for their end");
                    Error::new(ErrorKind::NoRoom, context)
                })?,
        };
        if slot.is_none() {
            taken.push(*place..*place + len);
        }
    }
    Ok(places)
}
