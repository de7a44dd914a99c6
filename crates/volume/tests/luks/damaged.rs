//! Headers of which a copy, or more, is lost.

use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use underseal_volume::{ErrorKind, FormatOptions, Header, PbkdfKind, format};

use crate::support::*;
use crate::tampered::{COPY, Outcome, luks1, luks2, outcome};

/// The metadata sizes, which are also the places of the second copy.
const PLACES: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

#[test]
fn the_second_copy_is_found_in_all_nine_places() {
    for place in PLACES {
        let scratch = Scratch::new();
        let image = scratch.image("disk.img", 12 << 20);
        let mut options = FormatOptions { metadata_size: place, ..FormatOptions::luks2() };
        options.data_offset = Some(10 << 20);
        options.pbkdf.kind = PbkdfKind::Pbkdf2;
        format(&open(&image), &image, 12 << 20, &key(PASSPHRASE.as_bytes()), cheap(options)).unwrap();
        for (name, len) in [("its magic", 6), ("its binary header", 4096), ("all of it", place)] {
            let bytes = vec![0; usize::try_from(len).unwrap()];
            open(&image).write_all_at(&bytes, 0).unwrap();
            let mut header = Header::read(&open(&image), &image).unwrap();
            assert!(header.damage().is_some(), "{place} without {name}");
            activate(&image, PASSPHRASE.as_bytes()).unwrap_or_else(|e| panic!("{place} without {name}: {e}"));

            header.repair(&open(&image), &image).unwrap();
            assert_eq!(header.damage(), None);
            let repaired = Header::read(&open(&image), &image).unwrap();
            assert_eq!(repaired.damage(), None, "{place} without {name}");
        }
        cryptsetup(&["luksDump", image.to_str().unwrap()]);
    }
}

#[test]
fn either_copy_is_repaired_from_the_other_with_a_fresh_salt() {
    let salt = |image: &[u8], at: usize| image[at + 104..at + 168].to_vec();
    for broken in [0, COPY] {
        let scratch = Scratch::new();
        let sound = luks2();
        let mut bytes = sound.clone();
        bytes[broken + 5000] ^= 1;
        assert_eq!(outcome(&bytes), Outcome::Damaged);
        let image = scratch.file("disk.img", &bytes);
        let file = open(&image);
        let mut header = Header::read(&file, &image).unwrap();
        header.repair(&file, &image).unwrap();
        let repaired = std::fs::read(&image).unwrap();
        assert_eq!(outcome(&repaired), Outcome::Opens);
        assert!(salt(&repaired, broken) != salt(&sound, broken));
        let other = COPY - broken;
        assert!(repaired[other..other + COPY] == sound[other..other + COPY], "the good copy is left alone");
        assert!(repaired[2 * COPY..] == sound[2 * COPY..], "and so is all else");
        let secret = scratch.passphrase();
        let secret = secret.to_str().unwrap();
        cryptsetup(&["open", "--test-passphrase", "--key-file", secret, image.to_str().unwrap()]);
    }
}

#[test]
fn cryptsetup_repairs_the_same_damage_to_the_same_metadata() {
    let scratch = Scratch::new();
    let mut bytes = luks2();
    bytes[5000] ^= 1;
    let (ours, theirs) = (scratch.file("ours", &bytes), scratch.file("theirs", &bytes));
    Header::read(&open(&ours), &ours).unwrap().repair(&open(&ours), &ours).unwrap();
    cryptsetup(&["repair", theirs.to_str().unwrap()]);
    let json = |path| match Header::read(&open(path), path).unwrap() {
        Header::Luks2(header) if header.damage().is_none() => header.json().clone(),
        _ => panic!("not repaired"),
    };
    assert_eq!(json(&ours), json(&theirs));
}

#[test]
fn the_newer_copy_wins_and_the_stale_one_is_reported() {
    let scratch = Scratch::new();
    for stale in [0, COPY] {
        let old = luks2();
        let image = scratch.file("disk.img", &old);
        cryptsetup(&["config", "--label", "newer", image.to_str().unwrap()]);
        open(&image).write_all_at(&old[stale..stale + COPY], stale as u64).unwrap();
        let header = Header::read(&open(&image), &image).unwrap();
        assert_eq!(header.info().label.as_deref(), Some("newer"), "copy at {stale} is stale");
        assert!(header.damage().is_some_and(|why| why.contains("out of date")), "{:?}", header.damage());
    }
}

#[test]
fn a_repair_never_overwrites_what_somebody_else_changed_meanwhile() {
    let scratch = Scratch::new();
    let mut bytes = luks2();
    bytes[5000] ^= 1;
    let image = scratch.file("disk.img", &bytes);
    let mut header = Header::read(&open(&image), &image).unwrap();
    cryptsetup(&["repair", image.to_str().unwrap()]);
    cryptsetup(&["config", "--label", "newer", image.to_str().unwrap()]);
    let before = std::fs::read(&image).unwrap();
    assert_eq!(header.repair(&open(&image), &image).unwrap_err().kind(), ErrorKind::Busy);
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn both_copies_lost_is_an_error_that_names_the_file() {
    let scratch = Scratch::new();
    let mut bytes = luks2();
    bytes[5000] ^= 1;
    bytes[COPY + 5000] ^= 1;
    let image = scratch.file("disk.img", &bytes);
    let error = Header::read(&open(&image), &image).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadHeader);
    assert!(error.to_string().contains("disk.img") && error.to_string().contains("byte 16384"), "{error}");
}

#[test]
fn files_that_end_early_are_refused() {
    let (one, two) = (luks1(), luks2());
    let mut lone = two.clone();
    lone[COPY..2 * COPY].fill(0);
    for (name, image, want) in [
        ("nothing", &two[..0], Outcome::Read(ErrorKind::NoHeader)),
        ("7 bytes", &two[..7], Outcome::Read(ErrorKind::NoHeader)),
        ("half a binary header", &two[..2048], Outcome::Read(ErrorKind::NoHeader)),
        ("no JSON", &two[..4096], Outcome::Read(ErrorKind::TooSmall)),
        ("half of the JSON", &two[..8192], Outcome::Read(ErrorKind::TooSmall)),
        ("one copy", &two[..COPY], Outcome::Unlock(ErrorKind::TooSmall)),
        ("no keyslot", &two[..2 * COPY], Outcome::Unlock(ErrorKind::TooSmall)),
        ("half a keyslot", &two[..2 * COPY + 65536], Outcome::Unlock(ErrorKind::TooSmall)),
        ("no data", &two[..1 << 20], Outcome::Activate(ErrorKind::TooSmall)),
        ("less than a sector", &two[..(1 << 20) + 100], Outcome::Activate(ErrorKind::BadLayout)),
        ("half a sector", &two[..(1 << 20) + 2048], Outcome::Activate(ErrorKind::BadLayout)),
        ("one sector", &two[..(1 << 20) + 4096], Outcome::Opens),
        ("luks1: half a header", &one[..300], Outcome::Read(ErrorKind::TooSmall)),
        ("luks1: no key material", &one[..592], Outcome::Unlock(ErrorKind::TooSmall)),
        ("luks1: no data", &one[..2 << 20], Outcome::Activate(ErrorKind::TooSmall)),
        ("luks1: less than a sector", &one[..(2 << 20) + 511], Outcome::Activate(ErrorKind::BadLayout)),
        ("luks1: one sector", &one[..(2 << 20) + 512], Outcome::Opens),
    ] {
        assert_eq!(outcome(image), want, "{name}");
    }
    assert_eq!(outcome(&lone), Outcome::Damaged);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// No single flipped bit of one copy matters: the other copy serves.
    #[test]
    fn a_flipped_bit_in_one_copy_is_survived(copy in 0..2usize, bit in 0..COPY * 8) {
        let mut image = luks2();
        image[copy * COPY + bit / 8] ^= 1 << (bit % 8);
        let found = outcome(&image);
        // The unused tail of the checksum field is covered by nothing.
        let harmless = (448 + 32..512).contains(&(bit / 8));
        prop_assert_eq!(found, if harmless { Outcome::Opens } else { Outcome::Damaged });
    }

    /// LUKS1 has neither checksum nor second copy: any outcome but a panic will do, and never another key.
    #[test]
    fn a_flipped_bit_in_a_luks1_header_never_panics(bit in 0..592 * 8usize) {
        let mut image = luks1();
        image[bit / 8] ^= 1 << (bit % 8);
        outcome(&image);
    }
}
