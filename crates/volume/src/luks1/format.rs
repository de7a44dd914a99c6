//! A new LUKS1 header with one keyslot.

use underseal_cipher::{Key, SectorSize};

use super::phdr::{Phdr, SLOTS, Slot};
use crate::area::KeyArea;
use crate::format::{Copies, Parts, bad, leaves_data, try_cipher};
use crate::text::FixedText;
use crate::{FormatOptions, Kdf, KdfLimits, PbkdfKind, Result, af};

/// The first place of key material, and the alignment of all slots.
const ALIGNMENT: u64 = 4096;
/// The default alignment of the data, as in cryptsetup.
const DATA_ALIGNMENT: u64 = 1 << 20;

pub(crate) fn format(data_size: u64, passphrase: &Key, mut options: FormatOptions) -> Result<(Parts, Key)> {
    refuse_what_luks1_has_not(&options)?;
    let key = options.key()?;
    try_cipher(&options.cipher, &key, SectorSize::S512)?;
    let area = area_size(key.len());
    let places: [u64; SLOTS] = std::array::from_fn(|i| ALIGNMENT + area * i as u64);
    let number = options.keyslot as usize;
    if number >= SLOTS {
        return Err(bad(format!("there is no keyslot {number}: the last is {}", SLOTS - 1)));
    }
    let keyslots = ALIGNMENT..ALIGNMENT + area * SLOTS as u64;
    let payload_offset = payload_offset(&options, keyslots.end)?;
    let uuid = FixedText::new(&options.uuid_text()?, "UUID")?;
    leaves_data(data_size, payload_offset)?;
    let hash = options.hash;
    let kdf = options.pbkdf.settle(hash, key.len())?;
    let Kdf::Pbkdf2 { iterations, salt, .. } = &kdf else { unreachable!("PBKDF2 was asked for") };
    let slot_salt = std::array::from_fn(|i| salt[i]);
    let mut phdr = Phdr {
        cipher: options.cipher.clone(),
        hash,
        payload_offset,
        key_bytes: key.len(),
        digest: [0; 20],
        digest_salt: crate::random::bytes()?,
        digest_iterations: options.pbkdf.digest_iterations(hash, 20),
        bytes: Phdr::blank(&options.cipher, hash, &uuid, &places),
        uuid,
        slots: [const { None }; SLOTS],
    };
    phdr.slots[number] = Some(Slot { iterations: *iterations, salt: slot_salt, offset: places[number] });
    let digest = phdr.digest_kdf().derive(key.as_bytes(), phdr.digest.len(), &KdfLimits::NONE)?;
    phdr.digest.copy_from_slice(digest.as_bytes());
    let wrapping = kdf.derive(passphrase.as_bytes(), key.len(), &KdfLimits::NONE)?;
    let sealed = KeyArea { spec: &phdr.cipher, hash }.seal(&wrapping, &key)?;
    let copies = Copies::Luks1(Box::new(phdr.encode()));
    Ok((Parts { keyslots, data_offset: payload_offset, area: (places[number], sealed), copies }, key))
}

/// Returns the bytes from one keyslot's area to the next.
fn area_size(key_len: usize) -> u64 {
    (af::split_len(key_len) as u64).next_multiple_of(ALIGNMENT)
}

/// Returns the start of the volume's data.
pub(crate) fn data_begins(options: &FormatOptions, key_len: usize) -> Result<u64> {
    payload_offset(options, ALIGNMENT + area_size(key_len) * SLOTS as u64)
}

fn payload_offset(options: &FormatOptions, header_end: u64) -> Result<u64> {
    let offset = match options.data_offset {
        Some(offset) => offset,
        None if options.detached => 0,
        None => header_end.next_multiple_of(DATA_ALIGNMENT),
    };
    if offset == 0 && options.detached {
        return Ok(0);
    }
    if offset < header_end || !offset.is_multiple_of(512) || offset / 512 > u32::MAX.into() {
        let context = format!("data offset {offset} is no multiple of 512 from {header_end} to 2 TiB");
        return Err(bad(context));
    }
    Ok(offset)
}

fn refuse_what_luks1_has_not(options: &FormatOptions) -> Result<()> {
    let lacks = |what: &str| Err(bad(format!("LUKS1 has no {what}; use LUKS2")));
    if options.sector_size.is_some_and(|size| size != SectorSize::S512) {
        return lacks("sectors larger than 512 bytes");
    }
    if !options.label.is_empty() || !options.subsystem.is_empty() {
        return lacks("label or subsystem");
    }
    if options.keyslot_cipher.is_some() {
        return lacks("cipher of keyslots but the data's");
    }
    if options.pbkdf.kind != PbkdfKind::Pbkdf2 {
        return lacks("key derivation but PBKDF2");
    }
    if options.cipher.to_string().starts_with("capi:") {
        return lacks("room for ciphers in the capi: form");
    }
    if options.cipher.key_count() > 1 {
        return lacks("room for the number of keys");
    }
    let fits = |text: &str| text.len() < 32;
    if !fits(options.cipher.cipher()) || !fits(&options.cipher.mode()) {
        return lacks("room for a cipher name this long");
    }
    Ok(())
}
