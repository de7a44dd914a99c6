//! The fuzzer's seeds and everything it ever found, replayed; and held images with bytes changed.

use std::path::Path;
use std::time::{Duration, Instant};

use underseal_cipher::Key;
use underseal_formats::bitlk::{Bitlk, Secret};
use underseal_formats::{Error, OpenedFormat};
use underseal_volume::KdfLimits;

use crate::support::{entries, file, image, read_all, text, texts};
use crate::{exercise, fvault2};

/// A finding of the fuzzer joins its seeds as `finding-..`; a finding must never panic, and need
/// not open.
#[test]
fn every_seed_of_the_fuzzer_opens_and_no_finding_panics() {
    for (target, run) in [
        ("bitlk_metadata", exercise::bitlk_metadata as fn(&[u8]) -> bool),
        ("bitlk_startup_key", exercise::bitlk_startup_key),
        ("fvault2_metadata", exercise::fvault2_metadata),
        ("fvault2_keys", exercise::fvault2_keys),
        ("loopaes_key_file", exercise::loopaes_key_file),
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let path = entry.unwrap().path();
            let opened = run(&std::fs::read(&path).unwrap());
            // The startup keys are of two volumes, and one of them is the target's.
            let other = path.ends_with("bitlk_startup_key/001");
            let found = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("finding-"));
            assert!(opened || other || found, "{}", path.display());
        }
    }
}

/// Numbers that are the same in every run (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }

    /// Changes one to four bytes of a range.
    fn change(&mut self, image: &mut [u8], (start, len): (u64, u64)) -> Vec<u64> {
        let places: Vec<u64> = (0..=self.below(4)).map(|_| start + self.below(len)).collect();
        for at in &places {
            let byte = &mut image[usize::try_from(*at).unwrap()];
            // Often a value at an end of its range.
            *byte = match self.below(4) {
                0 => 0,
                1 => 0xff,
                _ => *byte ^ (1 << self.below(8)),
            };
        }
        places
    }
}

/// Opens a changed image, in bounded time, to an error or to the right plaintext. Where newer
/// metadata may be lost, the volume is read-only, and may be as small as it was before.
fn error_or_right(
    right: &[u8],
    image: &[u8],
    what: &str,
    open: impl FnOnce() -> Result<OpenedFormat, Error>,
) -> bool {
    let begun = Instant::now();
    let opened = open();
    assert!(begun.elapsed() < Duration::from_secs(20), "{what}: {:?}", begun.elapsed());
    let Ok(opened) = opened else { return false };
    let plaintext = read_all(&opened, &[image]);
    let older = opened.read_only.is_some() && right.starts_with(&plaintext);
    assert!(plaintext == right || older, "{what}: opened to other bytes");
    true
}

fn number(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
}

/// BitLocker with bytes of sector 0 and of the metadata changed, their CRCs made right or not.
#[test]
fn changed_bytes_of_bitlocker_give_an_error_or_the_right_bytes() {
    let mut dice = Dice(0x1234_5678_9abc_def1);
    let (mut opened, mut refused) = (0, 0);
    for entry in entries("bitlk").iter().filter(|entry| entry["expect"] == "open") {
        let whole = image(entry);
        let guid = if &whole[3..11] == b"MSWIN4.1" { 424 } else { 160 };
        let copies = [0, 1, 2].map(|nth| usize::try_from(number(&whole, guid + 16 + 8 * nth)).unwrap());
        let startup = texts(entry, "startup_keys").first().map(|name| Key::new(&file(name)).unwrap());
        let volume_key = Key::new(&hex::decode(text(entry, "volume_key").unwrap()).unwrap()).unwrap();
        let volume = Bitlk::read(whole.as_slice()).unwrap();
        let right = volume.activate(Key::new(volume_key.as_bytes()).unwrap()).unwrap();
        let right = read_all(&right, &[&whole]);
        for round in 0..36 {
            let mut image = whole.clone();
            let mut places = Vec::new();
            if round % 2 == 0 {
                places = dice.change(&mut image, (0, 512));
            }
            // The first copy that is read, or all of them alike.
            let at = copies[0];
            let len = usize::from(u16::from_le_bytes([image[at + 8], image[at + 9]])) * 16;
            if round % 4 != 0 {
                places.extend(dice.change(&mut image, (at as u64, len as u64 + 88)));
            }
            let sealed = round % 3 == 0;
            if sealed {
                let crc = crc32fast::hash(&image[at..at + len]).to_le_bytes();
                image[at + len + 4..at + len + 8].copy_from_slice(&crc);
                let block = image[at..at + 65536].to_vec();
                copies.iter().for_each(|at| image[*at..*at + 65536].copy_from_slice(&block));
            }
            let what = format!("{}, bytes {places:?} changed, sealed: {sealed}", entry["image"]);
            let is_open = error_or_right(&right, &image, &what, || {
                let volume = Bitlk::read(image.as_slice())?;
                // The secrets that cost nothing and have the seal checked; else the key, where the
                // CRC tells.
                let secret = match &startup {
                    _ if volume.has_clear_key() => Secret::Clear,
                    Some(key) => Secret::StartupKey(key),
                    None if sealed => return exercise::bitlk(image.as_slice()).and(Err(skipped())),
                    None => Secret::VolumeKey(&volume_key),
                };
                volume.activate(volume.unlock(&secret, &KdfLimits::default())?.key)
            });
            *if is_open { &mut opened } else { &mut refused } += 1;
        }
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
}

/// The error of a volume that was only read.
fn skipped() -> Error {
    Error::new(underseal_formats::ErrorKind::BadOption, "not unlocked")
}

/// CoreStorage with bytes of the header, the label, the descriptor and the encrypted blocks
/// changed.
#[test]
fn changed_bytes_of_corestorage_give_an_error_or_the_right_bytes() {
    let mut dice = Dice(0xfeed_beef_0bad_cafe);
    let (mut opened, mut refused) = (0, 0);
    for entry in entries("fvault2").iter().filter(|entry| entry["expect"] == "open") {
        let whole = image(entry);
        let passphrase = &texts(entry, "passphrases")[0];
        let right = read_all(&fvault2::open(&whole, passphrase).unwrap(), &[&whole]);
        // The maker's places: label, descriptor behind it, encrypted blocks.
        let regions = [(0, 512), (4096, 512), (4096 + 8192, 48), (200 * 4096, 3 * 8192)];
        for round in 0..120 {
            let mut image = whole.clone();
            let region = regions[round % regions.len()];
            let places = dice.change(&mut image, region);
            let sealed = round % 8 < 2;
            if sealed {
                for (at, len) in [(0, 512), (4096, 8192)] {
                    let sum = !crc32c::crc32c(&image[at + 8..at + len]);
                    image[at..at + 4].copy_from_slice(&sum.to_le_bytes());
                    image[at + 4..at + 8].fill(0xff);
                }
            }
            let what = format!("{}, bytes {places:?} changed, sealed: {sealed}", entry["image"]);
            let is_open = error_or_right(&right, &image, &what, || fvault2::open(&image, passphrase));
            *if is_open { &mut opened } else { &mut refused } += 1;
        }
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
}

/// Images that end anywhere are refused, or shorter.
#[test]
fn cut_images_are_read_to_their_end() {
    for format in ["bitlk", "fvault2"] {
        for entry in entries(format).iter().filter(|entry| entry["expect"] == "open").step_by(4) {
            let whole = image(entry);
            for len in (0..20).map(|nth| nth * 512 + nth % 7).chain((1..40).map(|nth| nth * 52_429)) {
                let cut = fvault2::File(whole[..len.min(whole.len())].to_vec());
                let _ = exercise::bitlk(&cut);
                let _ = exercise::fvault2(&[&cut], None);
            }
        }
    }
}
