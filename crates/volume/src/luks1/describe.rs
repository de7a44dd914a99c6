//! A LUKS1 header as [`Info`].

use super::phdr::{LEN, Phdr, Slot};
use crate::af::{STRIPES, split_len};
use crate::info::{DigestInfo, KdfInfo, KeyslotInfo, SegmentInfo, hex};
use crate::{HeaderDigest, Info, Kdf};

pub(super) fn describe(phdr: &Phdr) -> Info {
    let slots: Vec<(u32, &Slot)> =
        (0..).zip(&phdr.slots).filter_map(|(number, slot)| Some((number, slot.as_ref()?))).collect();
    let area_size = split_len(phdr.key_bytes) as u64;
    Info {
        format: "luks1",
        uuid: phdr.uuid.as_str().into(),
        label: None,
        subsystem: None,
        epoch: None,
        metadata_size: LEN as u64,
        keyslots_size: area_size.next_multiple_of(4096) * phdr.slots.len() as u64,
        checksum: None,
        header_digest: HeaderDigest::of(&[&phdr.bytes]).to_string(),
        damage: None,
        flags: vec![],
        requirements: vec![],
        segments: vec![SegmentInfo {
            number: 0,
            kind: "crypt".into(),
            offset: phdr.payload_offset,
            size: None,
            cipher: Some(phdr.cipher.to_string()),
            key_bits: Some(key_bits(phdr)),
            sector_size: Some(512),
            iv_offset: Some(0),
            integrity: None,
            integrity_key_bits: None,
            flags: vec![],
            problem: None,
        }],
        keyslots: slots.iter().map(|&(number, slot)| keyslot(phdr, number, slot, area_size)).collect(),
        tokens: vec![],
        digests: vec![DigestInfo {
            number: 0,
            kind: "pbkdf2".into(),
            kdf: Some(KdfInfo::new(&phdr.digest_kdf())),
            digest: Some(hex(&phdr.digest)),
            keyslots: slots.iter().map(|(number, _)| *number).collect(),
            segments: vec![0],
            problem: None,
        }],
        metadata: None,
    }
}

fn keyslot(phdr: &Phdr, number: u32, slot: &Slot, area_size: u64) -> KeyslotInfo {
    let kdf = Kdf::Pbkdf2 { hash: phdr.hash, iterations: slot.iterations, salt: slot.salt.to_vec() };
    KeyslotInfo {
        number,
        kind: "luks1".into(),
        key_bits: key_bits(phdr),
        priority: "normal",
        cipher: Some(phdr.cipher.to_string()),
        cipher_key_bits: Some(key_bits(phdr)),
        kdf: Some(KdfInfo::new(&kdf)),
        af_stripes: Some(STRIPES),
        af_hash: Some(phdr.hash.name()),
        area_offset: slot.offset,
        area_size,
        digest: Some(0),
        problem: None,
    }
}

fn key_bits(phdr: &Phdr) -> u32 {
    u32::try_from(phdr.key_bytes * 8).expect("at most 1024 bytes of key")
}
