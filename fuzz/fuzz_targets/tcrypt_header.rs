//! A decrypted header of TrueCrypt or VeraCrypt, its checksums right, in a host of any size.
#![no_main]

use underseal_formats::tcrypt::{Chain, Derivation, Header, Pim, Place, Prf, Unlocked};

/// Bytes of a decrypted header.
const PLAIN: usize = 448;
const PLACES: [Place; 5] = [Place::Normal, Place::Hidden, Place::Backup, Place::BackupHidden, Place::System];

// Whatever opens lies within its host, in whole sectors; what protects it lies within the volume
// around it.
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((head, rest)) = input.split_at_checked(20) else { return };
    let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
    let (host, start) = (number(0) >> (head[16] % 64), number(8));
    let mut plain = [0; PLAIN];
    let len = rest.len().min(PLAIN);
    plain[..len].copy_from_slice(&rest[..len]);
    if head[17] & 1 == 0 {
        plain[..4].copy_from_slice(b"VERA");
    }
    let keys = crc32fast::hash(&plain[192..]);
    plain[8..12].copy_from_slice(&keys.to_be_bytes());
    let fields = crc32fast::hash(&plain[..188]);
    plain[188..192].copy_from_slice(&fields.to_be_bytes());
    let chains = [Chain::all(true), Chain::all(false)].concat();
    let unlocked = |place| {
        let header = Header::checked(&plain).ok()??;
        let derivation = Derivation::veracrypt(Prf::Sha512, Pim::default()).ok()?;
        let chain = chains[usize::from(head[18]) % chains.len()];
        Some(Unlocked { header, place, at: 0, derivation, chain })
    };
    let place = PLACES[usize::from(head[19]) % PLACES.len()];
    let (Some(this), Some(hidden)) = (unlocked(place), unlocked(Place::Hidden)) else { return };
    let partition = (head[17] & 2 != 0).then(|| start..start.saturating_add(1 << 20));
    if let Ok(opened) = this.open(host, partition.as_ref()) {
        let segment = &opened.volume.segments()[0];
        let (_, lower) = segment.lower(0).unwrap();
        assert!(lower % 512 == 0 && segment.len % 512 == 0);
        assert!(lower.checked_add(segment.len).unwrap() <= host);
    }
    if let Ok(opened) = this.open_around(&hidden, host) {
        assert!(opened.guards.iter().all(|of| of.range.end <= opened.volume.size()));
    }
});
