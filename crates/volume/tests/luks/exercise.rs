//! The fuzzer's work on its input. Shared between `fuzz/` and the tests that replay its seeds and
//! findings.

use std::cell::RefCell;
use std::io;

use sha2::{Digest, Sha256};
use underseal_cipher::Key;
use underseal_volume::reencrypt::state::{Keys, State};
use underseal_volume::{
    ActivateOptions, Backup, Check, Header, KdfLimits, LockTo, ReadAt, RestoreOptions, Target, UnlockOptions,
};

const COPY: usize = 16 << 10;
const BINARY: usize = 4096;

/// The volume key of the seeds, so that their mutations can reach a volume.
pub(crate) const VOLUME_KEY: [u8; 64] = {
    let mut key = [0; 64];
    let mut i = 0;
    while i < 64 {
        key[i as usize] = i * 3 + 1;
        i += 1;
    }
    key
};

/// A LUKS1 header, unchanged.
pub(crate) fn luks1(bytes: &[u8]) -> bool {
    exercise(bytes)
}

/// A LUKS2 header: unchanged, with corrected checksums, or built around JSON. The first byte
/// selects the form.
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
        _ => exercise(&around(bytes)),
    }
}

/// Builds a header around this metadata, with correct checksums.
fn around(text: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 2 * COPY];
    let text = &text[..text.len().min(COPY - BINARY)];
    for (at, magic) in [(0, b"LUKS\xba\xbe\0\x02"), (COPY, b"SKUL\xba\xbe\0\x02")] {
        let copy = &mut image[at..at + COPY];
        copy[..8].copy_from_slice(magic);
        copy[8..16].copy_from_slice(&(COPY as u64).to_be_bytes());
        copy[72..78].copy_from_slice(b"sha256");
        copy[256..264].copy_from_slice(&(at as u64).to_be_bytes());
        copy[BINARY..BINARY + text.len()].copy_from_slice(text);
        seal(&mut image, at);
    }
    image
}

fn seal(image: &mut [u8], at: usize) {
    image[at + 448..at + 512].fill(0);
    let sum = Sha256::digest(&image[at..at + COPY]);
    image[at + 448..at + 480].copy_from_slice(&sum);
}

/// Reads, describes, unlocks and activates, cheaply. Returns true when it reached a volume.
fn exercise(bytes: &[u8]) -> bool {
    let Ok(header) = Header::read(bytes) else { return false };
    let info = header.info();
    assert!(!info.to_string().is_empty());
    let limits = KdfLimits { memory_kib: 64, argon2_work_kib: 4096, lanes: 2, rounds: 10_000, time: None };
    let options = UnlockOptions { limits, allow_null: true, ..UnlockOptions::default() };
    let passphrase = Key::new(b"x").unwrap();
    let _ = header.unlock(bytes, &passphrase, &options);
    if let Header::Luks2(header) = &header {
        let _ = header.reencryption();
    }
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

/// LUKS2's metadata behind a correct checksum: defects are reported, and the repaired header is
/// sound.
pub(crate) fn luks2_json(text: &[u8]) -> bool {
    let image = around(text);
    look(&image);
    exercise(&image)
}

/// The tokens of an otherwise sound header.
pub(crate) fn luks2_tokens(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    let metadata =
        include_str!("exercise/metadata.json").trim().replace("\"tokens\":{}", &format!("\"tokens\":{text}"));
    luks2_json(metadata.as_bytes())
}

/// A LUKS1 header that is repaired: then it can be read, no keyslot in use has changed, and a
/// second repair does nothing.
pub(crate) fn luks1_repair(bytes: &[u8]) -> bool {
    let mut image = bytes.to_vec();
    image.resize(image.len().clamp(4096, 1 << 20), 0);
    look(&image);
    let disk = Disk(image.clone().into());
    if underseal_volume::repair(&disk, true).is_err() {
        assert!(*disk.0.borrow() == image, "what cannot be repaired is left alone");
        return false;
    }
    let repaired = disk.0.borrow().clone();
    assert!(underseal_volume::repair(&disk, true).is_ok_and(|done| done.is_empty()));
    for slot in (0..8).map(|number| 208 + 48 * number) {
        if image[slot..slot + 4] == [0, 0xac, 0x71, 0xf3] {
            assert!(image[slot..slot + 48] == repaired[slot..slot + 48], "a keyslot in use has changed");
        }
    }
    exercise(&repaired)
}

/// An untrusted backup, restored to an empty disk and over itself: unchanged, with corrected
/// checksums, or built around JSON.
pub(crate) fn backup(bytes: &[u8]) -> bool {
    const LEN: usize = 1 << 20;
    let Some((how, bytes)) = bytes.split_first() else { return false };
    let mut image = match how % 3 {
        0 => bytes.to_vec(),
        1 => {
            let mut image = bytes.to_vec();
            image.resize(LEN, 0);
            seal(&mut image, 0);
            seal(&mut image, COPY);
            image
        }
        _ => around(bytes),
    };
    image.resize(LEN, 0x5a);
    let Ok(backup) = Backup::read(&image[..]) else { return false };
    let keyslots = |header: &Header| serde_json::to_value(header.info().keyslots).unwrap();
    let mut restored = false;
    image.resize(2 * LEN, 0x5a);
    for disk in [vec![0; 2 * LEN], image] {
        let disk = Disk(disk.into());
        let Ok(found) = backup.found_on(&disk) else { continue };
        let options = RestoreOptions { in_place: true, ..RestoreOptions::default() };
        let Ok(header) = backup.restore(&disk, &found, &options) else { continue };
        assert_eq!(keyslots(&header), keyslots(backup.header()));
        assert_eq!(header.damage(), None);
        assert!(Backup::take(&disk).is_ok());
        restored = true;
    }
    restored
}

/// A reencryption's state file around this document: its information can be read, and other keys
/// cannot resume it.
pub(crate) fn reencryption_state(text: &[u8]) -> bool {
    let magic = "underseal reencryption state\nsha256:";
    let mut rest = [format!("\nhmac-sha256:{}\n", "0".repeat(64)).as_bytes(), text].concat();
    rest.resize(COPY - magic.len() - 64, 0);
    let sum: String = Sha256::digest(&rest[1..]).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut image = [magic.as_bytes(), sum.as_bytes(), &rest].concat();
    image.resize(3 * COPY, 0);
    let disk = Disk(image.into());
    let Ok(state) = State::read(&disk, LockTo::Read) else { return false };
    let about = state.about();
    // The cost is limited, but the limit is too high for a fuzzer.
    let document: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let rounds =
        ["old", "new"].map(|form| document[form]["crypt"]["key"]["iterations"].as_u64().unwrap_or(0));
    if rounds.iter().all(|rounds| *rounds < 1000) {
        let key = Key::new(&VOLUME_KEY).unwrap();
        let keys = Keys { old: about.old.as_ref().map(|_| &key), new: about.new.as_ref().map(|_| &key) };
        assert!(state.unlock(keys, about.size).is_err(), "nobody has sealed this");
    }
    true
}

/// Defects are reported; a sound header can be read.
fn look(image: &[u8]) {
    let check = Check::of(image, Some(image.len() as u64)).unwrap();
    assert_eq!(check.format.is_some(), Header::read(image).is_ok());
    assert!(check.findings.iter().all(|finding| !finding.what.is_empty() && !finding.remedy.is_empty()));
}

/// A disk in memory.
struct Disk(RefCell<Vec<u8>>);

impl ReadAt for Disk {
    fn size(&self) -> io::Result<u64> {
        self.0.borrow()[..].size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.borrow()[..].read_exact_at(buf, offset)
    }
}

impl Target for Disk {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        self.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
