//! A LUKS2 header as [`Info`].

use super::metadata::{Crypt, Digest, Keyslot, Metadata, Segment};
use super::store::Stored;
use crate::Info;
use crate::af::STRIPES;
use crate::info::{DigestInfo, KdfInfo, KeyslotInfo, SegmentInfo, TokenInfo, hex};

pub(super) fn describe(stored: &Stored) -> Info {
    let Stored { binary, metadata, digest, damage } = stored;
    Info {
        format: "luks2",
        uuid: binary.uuid.as_str().into(),
        label: Some(binary.label.as_str().into()),
        subsystem: Some(binary.subsystem.as_str().into()),
        epoch: Some(binary.seqid),
        metadata_size: binary.size,
        keyslots_size: metadata.config.keyslots_size,
        checksum: Some(binary.checksum.name()),
        header_digest: digest.to_string(),
        damage: damage.as_ref().map(|damage| damage.why.clone()),
        flags: metadata.config.flags.clone(),
        requirements: metadata.config.requirements.clone(),
        segments: metadata.segments.iter().map(|(&number, s)| segment(metadata, number, s)).collect(),
        keyslots: metadata.keyslots.iter().map(|(&number, s)| keyslot(metadata, number, s)).collect(),
        tokens: metadata
            .tokens
            .iter()
            .map(|(&number, t)| TokenInfo { number, kind: t.kind.clone(), keyslots: t.keyslots.clone() })
            .collect(),
        digests: metadata.digests.iter().map(|(&number, d)| digest_info(number, d)).collect(),
        metadata: Some(metadata.document.clone().into()),
    }
}

fn segment(metadata: &Metadata, number: u32, segment: &Segment) -> SegmentInfo {
    let crypt = segment.crypt.as_ref().ok();
    let key_bytes = || {
        let digest = metadata.digests.values().find(|d| d.segments.contains(&number))?;
        digest.keyslots.iter().map(|slot| metadata.keyslots[slot].key_size).next()
    };
    SegmentInfo {
        number,
        kind: segment.kind.clone(),
        offset: segment.offset,
        size: segment.size,
        cipher: crypt.map(Crypt::written),
        key_bits: crypt.and_then(|_| key_bytes()).map(|bytes| bytes * 8),
        sector_size: crypt.map(|c| c.sector_size.bytes()),
        iv_offset: crypt.map(|c| c.iv_tweak),
        integrity: crypt.and_then(|c| Some(c.integrity.as_ref()?.name.clone())),
        integrity_key_bits: crypt.and_then(mac_bits),
        flags: segment.flags.clone(),
        problem: segment.crypt.as_ref().err().cloned(),
    }
}

/// Returns the bits of the key that belong to a MAC.
fn mac_bits(crypt: &Crypt) -> Option<u32> {
    let bytes = crypt.integrity.as_ref()?.mac_key(&crypt.cipher);
    u32::try_from(bytes * 8).ok().filter(|bits| *bits > 0)
}

fn keyslot(metadata: &Metadata, number: u32, slot: &Keyslot) -> KeyslotInfo {
    let own = slot.passphrase.as_ref().ok();
    let digest = metadata.digests.iter().find(|(_, d)| d.keyslots.contains(&number));
    KeyslotInfo {
        number,
        kind: slot.kind.clone(),
        key_bits: slot.key_size * 8,
        priority: slot.priority().name(),
        cipher: own.map(|s| s.cipher.to_string()),
        cipher_key_bits: own.map(|s| s.wrapping_size * 8),
        kdf: own.map(|s| KdfInfo::new(&s.kdf)),
        af_stripes: own.map(|_| STRIPES),
        af_hash: own.map(|s| s.af_hash.name()),
        area_offset: slot.area.0,
        area_size: slot.area.1,
        digest: digest.map(|(number, _)| *number),
        problem: slot.passphrase.as_ref().err().cloned(),
    }
}

fn digest_info(number: u32, digest: &Digest) -> DigestInfo {
    let check = digest.check.as_ref().ok();
    DigestInfo {
        number,
        kind: digest.kind.clone(),
        kdf: check.map(|c| KdfInfo::new(&c.kdf)),
        digest: check.map(|c| hex(&c.digest)),
        keyslots: digest.keyslots.clone(),
        segments: digest.segments.clone(),
        problem: digest.check.as_ref().err().cloned(),
    }
}
