//! LUKS1 to LUKS2.

use std::ops::Range;

use base64ct::{Base64, Encoding};
use serde_json::{Map, Value, json};

use super::lacks;
use crate::backup::restore::{apart, free_place};
use crate::lock::LockTo;
use crate::luks1::phdr::{Phdr, SLOTS, Slot};
use crate::luks1::{self, FIRST_PLACE, unchanged};
use crate::luks2::binary::{self, Binary, SIZES};
use crate::luks2::keyslot::new::area_size;
use crate::luks2::store::Copies;
use crate::{Error, ErrorKind, Hash, Result, Target, af, storage};

/// The smallest header size: LUKS1 keeps key material close to the start.
const HEADER_SIZE: u64 = SIZES[0];
const KEYSLOTS_BEGIN: u64 = 2 * HEADER_SIZE;
/// cryptsetup's ceiling.
const MAX_KEYSLOTS_SIZE: u64 = 128 << 20;
/// The mark of luksmeta's data behind LUKS1's keyslots, which clevis uses.
const LUKSMETA: [u8; 8] = *b"LUKSMETA";

pub(super) fn convert(mut header: luks1::Header, on: &(impl Target + ?Sized)) -> Result<()> {
    let keyslots = room(&header, on)?;
    {
        // LUKS1's header counts until LUKS2's is whole, and key material moves from its areas.
        let _lock = on.lock(LockTo::Change)?;
        header.secure(on)?;
    }
    make_way(&mut header, on, &keyslots)?;
    let phdr = &header.phdr;
    let binary = Binary {
        size: HEADER_SIZE,
        seqid: 1,
        label: crate::text::FixedText::new("", "label")?,
        subsystem: crate::text::FixedText::new("", "subsystem")?,
        uuid: phdr.uuid.clone(),
        checksum: Hash::Sha256,
    };
    let copies = Copies::new(binary, &document(phdr, &keyslots))?;
    copies.metadata()?;
    let _lock = on.lock(LockTo::Change)?;
    unchanged(on, &header)?;
    copies.write_over_luks1(on)
}

/// Returns the room for LUKS2's keyslots.
fn room(header: &luks1::Header, on: &(impl Target + ?Sized)) -> Result<Range<u64>> {
    let phdr = &header.phdr;
    if phdr.cipher.is_null() {
        return Err(lacks("its cipher encrypts nothing, which LUKS2 does not take for keyslots"));
    }
    let size = storage::size(on)?;
    let after = header.keyslots_end();
    let mut magic = [0; LUKSMETA.len()];
    if after + magic.len() as u64 <= size {
        storage::read_into(on, after, &mut magic)?;
    }
    if magic == LUKSMETA {
        return Err(lacks(
            "luksmeta keeps something behind its keyslots (clevis?), for which LUKS2 has tokens",
        ));
    }
    let end = if phdr.payload_offset == 0 { size } else { phdr.payload_offset };
    let end = (end / 4096 * 4096).min(KEYSLOTS_BEGIN + MAX_KEYSLOTS_SIZE);
    let last =
        phdr.slots.iter().flatten().map(|slot| slot.offset + af::split_len(phdr.key_bytes) as u64).max();
    if end < KEYSLOTS_BEGIN + area_size(phdr.key_bytes) || last.is_some_and(|last| last > end) {
        let context =
            format!("LUKS2 keeps keyslots from byte {KEYSLOTS_BEGIN} on, and these end at byte {end}");
        return Err(Error::new(ErrorKind::NoRoom, context));
    }
    Ok(KEYSLOTS_BEGIN..end)
}

/// Moves key material out of the place of LUKS2's copies, while the header is still LUKS1's; if
/// possible, to adjacent places behind them: cryptsetup can then convert back, since eight keyslots
/// fit.
fn make_way(header: &mut luks1::Header, on: &(impl Target + ?Sized), keyslots: &Range<u64>) -> Result<()> {
    let len = area_size(header.phdr.key_bytes);
    let step = usize::try_from(len).unwrap_or(usize::MAX);
    let side_by_side: Vec<u64> = keyslots.clone().step_by(step).take(SLOTS).collect();
    // A keyslot that blocks the others is moved elsewhere once, and makes room.
    let mut detours: Vec<u32> = header.areas().into_iter().map(|(number, _)| number).collect();
    loop {
        header.spread(on, &side_by_side)?;
        let areas = header.areas();
        let mut odd = areas.iter().filter(|(_, area)| !side_by_side.contains(&area.start)).map(|(n, _)| *n);
        let direct = odd.clone().find_map(|number| way(header, number, &side_by_side, keyslots));
        let next = direct.or_else(|| {
            let places = header.phdr.places();
            let step = odd.find_map(|number| match detours.contains(&number) {
                true => way(header, number, &places, keyslots),
                false => None,
            });
            detours.retain(|number| step.as_ref().is_none_or(|(taken, _)| taken != number));
            step
        });
        let Some((number, way)) = next else { break };
        header.move_material(on, number, way)?;
    }
    for (number, area) in header.areas() {
        if area.start >= keyslots.start {
            continue;
        }
        let taken: Vec<Range<u64>> = header.areas().into_iter().map(|(_, area)| area).collect();
        let any = free_place(&taken, len, keyslots.clone());
        let places: Vec<u64> = any.into_iter().chain(header.phdr.places()).collect();
        let out = |place: &&u64| **place >= keyslots.start;
        let mut found =
            places.iter().filter(out).filter_map(|place| way(header, number, &[*place], keyslots));
        let Some((_, way)) = found.next() else {
            let why = "where LUKS2 keeps its copies, and no other place is free; remove a keyslot and add it again later";
            let context = format!("the key material of keyslot {number} lies {why}");
            return Err(Error::new(ErrorKind::NoRoom, context));
        };
        header.move_material(on, number, way)?;
    }
    Ok(())
}

/// Returns the moves of a keyslot's key material to the first of these places that is possible.
fn way(
    header: &luks1::Header,
    number: u32,
    places: &[u64],
    keyslots: &Range<u64>,
) -> Option<(u32, Vec<Phdr>)> {
    let len = af::split_len(header.phdr.key_bytes) as u64;
    let areas = header.areas();
    let is_free = |place: &u64| {
        let own = *place..*place + len;
        own.start >= FIRST_PLACE
            && own.end <= keyslots.end
            && areas.iter().all(|(_, other)| apart(&own, other))
    };
    let ways = places.iter().copied().filter(is_free);
    let within = FIRST_PLACE..keyslots.end;
    ways.into_iter().find_map(|place| header.way_to(number, place, within.clone())).map(|way| (number, way))
}

fn document(phdr: &Phdr, keyslots: &Range<u64>) -> Map<String, Value> {
    let slots: Vec<(usize, &Slot)> =
        phdr.slots.iter().enumerate().filter_map(|(number, slot)| Some((number, slot.as_ref()?))).collect();
    let numbers: Vec<String> = slots.iter().map(|(number, _)| number.to_string()).collect();
    let (hash, cipher) = (phdr.hash.name(), phdr.cipher.to_string());
    let keyslot = |slot: &Slot| {
        json!({
            "type": "luks2",
            "key_size": phdr.key_bytes,
            "af": { "type": "luks1", "stripes": af::STRIPES, "hash": hash },
            "area": {
                "type": "raw",
                "offset": slot.offset.to_string(),
                "size": size_of_area(phdr, slot, keyslots.end).to_string(),
                "encryption": cipher,
                "key_size": phdr.key_bytes,
            },
            "kdf": {
                "type": "pbkdf2",
                "hash": hash,
                "iterations": slot.iterations,
                "salt": Base64::encode_string(&slot.salt),
            },
        })
    };
    let keyslots_json: Map<String, Value> =
        slots.iter().map(|(number, slot)| (number.to_string(), keyslot(slot))).collect();
    let segment = json!({
        "type": "crypt",
        "offset": phdr.payload_offset.to_string(),
        "size": "dynamic",
        "iv_tweak": "0",
        "encryption": cipher,
        "sector_size": 512,
    });
    let digest = json!({
        "type": "pbkdf2",
        "keyslots": numbers,
        "segments": ["0"],
        "hash": hash,
        "iterations": phdr.digest_iterations,
        "salt": Base64::encode_string(&phdr.digest_salt),
        "digest": Base64::encode_string(&phdr.digest),
    });
    let config = json!({
        "json_size": (HEADER_SIZE - binary::LEN as u64).to_string(),
        "keyslots_size": (keyslots.end - keyslots.start).to_string(),
    });
    Map::from_iter([
        ("keyslots".into(), keyslots_json.into()),
        ("tokens".into(), json!({})),
        ("segments".into(), json!({ "0": segment })),
        ("digests".into(), json!({ "0": digest })),
        ("config".into(), config),
    ])
}

/// Returns the size of an area: whole pages, as in cryptsetup, unless another keyslot's key
/// material begins in the last page.
fn size_of_area(phdr: &Phdr, slot: &Slot, end: u64) -> u64 {
    let whole = area_size(phdr.key_bytes);
    let next =
        phdr.slots.iter().flatten().map(|other| other.offset).filter(|&other| other > slot.offset).min();
    if slot.offset + whole <= next.unwrap_or(end) { whole } else { af::split_len(phdr.key_bytes) as u64 }
}
