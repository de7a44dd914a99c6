//! The repair of a header that another program wrote badly, as far as no key is needed.

use super::phdr::{ACTIVE, FIRST_SLOT, INACTIVE, LEN, MAGIC, Phdr, SLOT_LEN, SLOTS, STRIPES, word};
use super::{FIRST_PLACE, write_new};
use crate::lock::LockTo;
use crate::{ErrorKind, ReadAt, Result, Target, af, storage};

/// The end of the first sector of a disk with a partition table; it lies in keyslot 6.
const PARTITION_MARK: [u8; 2] = [0x55, 0xaa];
/// Key lengths for which the places of keyslots are known.
const KEY_SIZES: [u32; 3] = [16, 32, 64];

/// Returns the possible repairs; `None` without a LUKS1 header, and an empty list for a sound one.
/// Fails with `Io`; the inner error says why no repair would make it a header.
pub(crate) fn repairs(from: &(impl ReadAt + ?Sized)) -> Result<Option<Result<Vec<String>>>> {
    let Some(bytes) = read(from)? else { return Ok(None) };
    Ok(Some(repaired(&bytes).map(|(_, done)| done)))
}

/// Repairs the header, and returns the repairs. Fails with `NoHeader` without a LUKS1 header; with
/// `BadHeader`, `Unsupported` when no repair would make it one; with `Busy`, `Io`.
pub(crate) fn repair(on: &(impl Target + ?Sized)) -> Result<Vec<String>> {
    let _lock = on.lock(LockTo::Change)?;
    let Some(bytes) = read(on)? else {
        return Err(crate::Error::new(ErrorKind::NoHeader, "no LUKS1 header"));
    };
    let (new, done) = repaired(&bytes)?;
    // Also where nothing differs: an earlier repair may be in memory only.
    write_new(on, &new)?;
    Ok(done)
}

fn read(from: &(impl ReadAt + ?Sized)) -> Result<Option<[u8; LEN]>> {
    let mut bytes = [0; LEN];
    match storage::read_into(from, 0, &mut bytes) {
        Ok(()) => Ok(Some(bytes).filter(|bytes| bytes.starts_with(&MAGIC))),
        Err(e) if e.kind() == ErrorKind::TooSmall => Ok(None),
        Err(e) => Err(e),
    }
}

/// Returns the header as it should be, and the differences. Keyslots in use are never changed.
fn repaired(bytes: &[u8; LEN]) -> Result<([u8; LEN], Vec<String>)> {
    let (mut new, mut done) = (*bytes, Vec::new());
    if let Some(mode) = bytes.get(40..72).filter(|mode| mode.starts_with(b"ecb-")) {
        done.push(format!("its mode {} is \"ecb\"", shown(mode)));
        new[43..72].fill(0);
    }
    let name_end = bytes[72..104].iter().position(|&b| b == 0).unwrap_or(0);
    let name = 72..72 + name_end;
    if bytes[name.clone()].iter().any(u8::is_ascii_uppercase) {
        done.push(format!("its hash {} is written in small letters", shown(&bytes[name.clone()])));
        new[name].make_ascii_lowercase();
    }
    if KEY_SIZES.contains(&word(bytes, 108)) && word(bytes, FIRST_SLOT + 40) >= 8 {
        // A repaired slot may make room for another one: the loop ends when no slot needs repair.
        while let Some(slot) = (0..SLOTS).find_map(|number| free_slot(&mut new, number)) {
            done.push(slot);
        }
    }
    Phdr::parse(&new)?;
    Ok((new, done))
}

/// Resets a keyslot that is not in use to its state in a new header, if it differs.
fn free_slot(bytes: &mut [u8; LEN], number: usize) -> Option<String> {
    let at = FIRST_SLOT + number * SLOT_LEN;
    let state = word(bytes, at);
    if state == ACTIVE {
        return None;
    }
    let len = af::split_len(word(bytes, 108) as usize) as u64;
    let place = u64::from(word(bytes, at + 40)) * 512;
    let marked = number == 6 && bytes[510..512] == PARTITION_MARK;
    let lost = word(bytes, at + 44) != STRIPES || place < FIRST_PLACE || past_payload(bytes, place + len);
    // A slot with an unknown state and iterations may have been in use.
    let unknown = state != INACTIVE && (word(bytes, at + 4) == 0 || lost || marked);
    if !(marked || lost || unknown) {
        return None;
    }
    // Readers require all eight places to be disjoint, used or not.
    let others = (0..SLOTS).filter(|other| *other != number);
    let others = others.map(|other| u64::from(word(bytes, FIRST_SLOT + other * SLOT_LEN + 40)) * 512);
    let others: Vec<u64> = others.collect();
    let is_free = |at: &u64| {
        let apart = |other: &u64| at + len <= *other || other + len <= *at;
        *at >= FIRST_PLACE && !past_payload(bytes, at + len) && others.iter().all(apart)
    };
    let usual = |number: usize| FIRST_PLACE + len.next_multiple_of(FIRST_PLACE) * number as u64;
    let mut places = [place, usual(number)].into_iter().chain((0..SLOTS).map(usual));
    let fresh = places.find(is_free)?;
    let mut put = |at: usize, field: [u8; 4]| bytes[at..at + 4].copy_from_slice(&field);
    put(at, INACTIVE.to_be_bytes());
    // All places are below 8 MiB, with keys of at most 64 bytes.
    put(at + 40, u32::try_from(fresh / 512).unwrap_or(0).to_be_bytes());
    put(at + 44, STRIPES.to_be_bytes());
    if number == 6 {
        bytes[at + 4..at + 40].fill(0);
    }
    let why = if marked { "a partition table's mark lies in it" } else { "its values are invalid" };
    Some(format!("keyslot {number} is not in use, and {why}"))
}

fn past_payload(bytes: &[u8; LEN], end: u64) -> bool {
    let payload = u64::from(word(bytes, 104)) * 512;
    payload != 0 && end > payload
}

fn shown(text: &[u8]) -> String {
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    crate::printable(&String::from_utf8_lossy(&text[..end]))
}
