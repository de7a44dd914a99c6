//! What a fuzzer does with bytes. Shared between `fuzz/` and the tests that replay its seeds and findings.

use sha2::{Digest, Sha256};
use underseal_cipher::Key;
use underseal_volume::{ActivateOptions, Header, KdfLimits, UnlockOptions};

const COPY: usize = 16 << 10;
const BINARY: usize = 4096;

/// The volume key of the seeds, so that mutations of them get as far as a volume.
pub(crate) const VOLUME_KEY: [u8; 64] = {
    let mut key = [0; 64];
    let mut i = 0;
    while i < 64 {
        key[i as usize] = i * 3 + 1;
        i += 1;
    }
    key
};

/// A LUKS1 header as it is.
pub(crate) fn luks1(bytes: &[u8]) -> bool {
    exercise(bytes)
}

/// A LUKS2 header: as it is, with its checksums made right, or made around JSON; the first byte says which.
pub(crate) fn luks2(bytes: &[u8]) -> bool {
    let Some((how, bytes)) = bytes.split_first() else { return false };
    match how % 3 {
        0 => exercise(bytes),
        1 => {
            let mut image = bytes.to_vec();
            image.resize(2 * COPY, 0);
            seal(&mut image, 0);
            seal(&mut image, COPY);
            exercise(&image)
        }
        _ => {
            let mut image = vec![0; 2 * COPY];
            let text = &bytes[..bytes.len().min(COPY - BINARY)];
            for (at, magic) in [(0, b"LUKS\xba\xbe\0\x02"), (COPY, b"SKUL\xba\xbe\0\x02")] {
                let copy = &mut image[at..at + COPY];
                copy[..8].copy_from_slice(magic);
                copy[8..16].copy_from_slice(&(COPY as u64).to_be_bytes());
                copy[72..78].copy_from_slice(b"sha256");
                copy[256..264].copy_from_slice(&(at as u64).to_be_bytes());
                copy[BINARY..BINARY + text.len()].copy_from_slice(text);
                seal(&mut image, at);
            }
            exercise(&image)
        }
    }
}

fn seal(image: &mut [u8], at: usize) {
    image[at + 448..at + 512].fill(0);
    let sum = Sha256::digest(&image[at..at + COPY]);
    image[at + 448..at + 480].copy_from_slice(&sum);
}

/// Reads, describes, unlocks and activates, cheaply; true when it came to a volume.
fn exercise(bytes: &[u8]) -> bool {
    let Ok(header) = Header::read(bytes) else { return false };
    let info = header.info();
    assert!(!info.to_string().is_empty());
    let limits = KdfLimits { memory_kib: 64, argon2_work_kib: 4096, lanes: 2, rounds: 10_000 };
    let options = UnlockOptions { limits, allow_null: true, ..UnlockOptions::default() };
    let passphrase = Key::new(b"x").unwrap();
    let _ = header.unlock(bytes, &passphrase, &options);
    let Ok(key) = header.volume_key(Key::new(&VOLUME_KEY).unwrap(), &options) else { return false };
    let mut opened = false;
    for size in [0, 1 << 20, 1 << 30, u64::MAX] {
        for detached in [false, true] {
            let options = ActivateOptions { detached, allow_null: true, ..ActivateOptions::default() };
            let Ok(volume) = header.activate(&key, size, &options) else { continue };
            opened = true;
            let mut at = 0;
            for segment in volume.segments() {
                assert_eq!(segment.start, at, "segments follow each other");
                let lower = segment.as_stored().map(|stored| stored.lower);
                let end = lower.and_then(|lower| lower.checked_add(segment.len));
                assert!(end.is_some_and(|end| end <= size), "within the device");
                at = segment.end();
            }
            assert_eq!(volume.size(), at);
        }
    }
    opened
}
