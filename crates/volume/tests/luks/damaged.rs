//! Headers with a lost copy, or more.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use underseal_volume::{ErrorKind, FormatOptions, Header, PbkdfKind, ReadAt, UnlockOptions, format};

use crate::support::*;
use crate::tampered::{COPY, Outcome, luks1, luks2, outcome};

/// The metadata sizes, equal to the places of the second copy.
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
        format(&open(&image), 12 << 20, &key(PASSPHRASE.as_bytes()), cheap(options)).unwrap();
        for (name, len) in [("its magic", 6), ("its binary header", 4096), ("all of it", place)] {
            let bytes = vec![0; usize::try_from(len).unwrap()];
            open(&image).write_all_at(&bytes, 0).unwrap();
            let mut header = Header::read(&open(&image)).unwrap();
            assert!(header.damage().is_some(), "{place} without {name}");
            activate(&image, PASSPHRASE.as_bytes()).unwrap_or_else(|e| panic!("{place} without {name}: {e}"));

            header.repair(&open(&image)).unwrap();
            assert_eq!(header.damage(), None);
            let repaired = Header::read(&open(&image)).unwrap();
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
        let mut header = Header::read(&file).unwrap();
        header.repair(&file).unwrap();
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

/// A disk with unreadable bytes.
struct BadSectors {
    bytes: Vec<u8>,
    bad: Range<u64>,
    also_bad: Range<u64>,
}

impl ReadAt for BadSectors {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        let end = offset + buf.len() as u64;
        if [&self.bad, &self.also_bad].iter().any(|bad| bad.start < end && offset < bad.end) {
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.bytes[..].read_exact_at(buf, offset)
    }
}

#[test]
fn a_copy_that_cannot_be_read_is_a_damaged_one() {
    let sound = luks2();
    let (first, second) = (0..4096, COPY as u64..COPY as u64 + 512);
    for bad in [first.clone(), 4096..4608, second.clone()] {
        let mut disk = BadSectors { bytes: sound.clone(), bad: bad.clone(), also_bad: 0..0 };
        let mut header = Header::read(&disk).unwrap_or_else(|e| panic!("{bad:?}: {e}"));
        assert!(header.damage().is_some(), "{bad:?}");
        header.unlock(&disk, &key(PASSPHRASE.as_bytes()), &UnlockOptions::default()).unwrap();
        if bad.start == 0 {
            // The sector works again, with unknown contents: no write goes there on its own.
            disk.bad = 0..0;
            let scratch = Scratch::new();
            let image = scratch.file("disk.img", &disk.bytes);
            assert_eq!(header.repair(&open(&image)).unwrap_err().kind(), ErrorKind::Io);
            assert!(std::fs::read(&image).unwrap() == sound);
        }
    }
    let disk = BadSectors { bytes: sound, bad: first, also_bad: second };
    assert_eq!(Header::read(&disk).unwrap_err().kind(), ErrorKind::Io);
    let disk = BadSectors { bytes: vec![0; 1 << 20], bad: 0..512, also_bad: 0..0 };
    assert_eq!(Header::read(&disk).unwrap_err().kind(), ErrorKind::Io);
}

/// The bytes at byte 0 in place of the first copy, and the reaction: `Some(true)` the copy is
/// repaired, `Some(false)` the volume opens and nothing is written, `None` an error. cryptsetup
/// gives the same errors, and repairs all other cases.
#[test]
fn what_is_no_damaged_header_is_never_overwritten_by_a_repair() {
    let sound = luks2();
    let put = |start: &[u8], parts: &[(usize, &[u8])]| {
        let mut image = sound.clone();
        image[..start.len()].copy_from_slice(start);
        parts.iter().for_each(|(at, bytes)| image[*at..at + bytes.len()].copy_from_slice(bytes));
        image
    };
    let zeros = [0; 4096];
    // A partition of type 0x83, from sector 2048 on.
    let dos: (usize, &[u8]) = (446, &[0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0]);
    let label: (usize, &[u8]) = (440, b"\x12\x34\x56\x78");
    let end: (usize, &[u8]) = (510, b"\x55\xaa");
    let ext4: [(usize, &[u8]); 3] = [(0x400, &[100, 0, 0, 0, 0, 16]), (0x438, b"\x53\xef"), (0x44c, &[1])];
    for (name, image, want) in [
        ("zeros", put(&zeros, &[]), Some(true)),
        ("a DOS partition table", put(&zeros, &[dos, label, end]), None),
        ("a boot sector's last bytes", put(&zeros, &[end]), None),
        ("a DOS partition table in the header's sector", put(&[], &[(440, &[0; 72]), dos, label, end]), None),
        ("ext4", put(&zeros, &ext4), None),
        ("ext4 in the header's padding", put(&[], &ext4), None),
        ("NTFS", put(&zeros, &[(3, b"NTFS    "), end]), None),
        ("swap", put(&zeros, &[(1024, &[1, 0, 0, 0, 100]), (4086, b"SWAPSPACE2")]), None),
        ("a byte that was flipped", put(&[], &[(100, b"!")]), Some(true)),
        ("no magic", put(&[0; 6], &[]), Some(true)),
        ("half a header", put(&[], &[(512, &[0x11; 3584])]), Some(true)),
        ("one byte of something", put(&zeros, &[(100, b"!")]), Some(false)),
        ("something", put(&[0x5a; 4096], &[]), Some(false)),
    ] {
        let scratch = Scratch::new();
        let path = scratch.file("disk.img", &image);
        let file = open(&path);
        match (Header::read(&file), want) {
            (Err(e), None) => {
                assert_eq!(e.kind(), ErrorKind::Ambiguous, "{name}: {e}");
                assert!(e.to_string().contains("byte 16384"), "{name}: {e}");
            }
            (Ok(mut header), Some(repaired)) => {
                assert!(header.damage().is_some(), "{name}");
                activate(&path, PASSPHRASE.as_bytes()).unwrap_or_else(|e| panic!("{name}: {e}"));
                match header.repair(&file) {
                    Ok(()) => assert!(repaired, "{name}: it was overwritten"),
                    Err(e) => assert!(!repaired && e.kind() == ErrorKind::Ambiguous, "{name}: {e}"),
                }
            }
            (Err(e), Some(_)) => panic!("{name}: {e}"),
            (Ok(_), None) => panic!("{name}: taken for a damaged header"),
        }
        let is = std::fs::read(&path).unwrap();
        match want {
            Some(true) => assert_eq!(outcome(&is), Outcome::Opens, "{name}"),
            _ => assert!(is == image, "{name}: not a byte was changed"),
        }
        // The real repair on the same image.
        let path = scratch.file("theirs", &image);
        let secret = scratch.passphrase();
        let args =
            ["open", "--test-passphrase", "--key-file", secret.to_str().unwrap(), path.to_str().unwrap()];
        let theirs = std::process::Command::new("cryptsetup").args(args).output().unwrap();
        let said = String::from_utf8_lossy(&theirs.stderr);
        assert_eq!(theirs.status.success(), want.is_some(), "{name}: {said}");
        assert_eq!(said.contains("ambiguous signatures"), want.is_none(), "{name}: {said}");
        assert!(want.is_some() || std::fs::read(&path).unwrap() == image, "{name}");
    }
}

#[test]
fn cryptsetup_repairs_the_same_damage_to_the_same_metadata() {
    let scratch = Scratch::new();
    let mut bytes = luks2();
    bytes[5000] ^= 1;
    let (ours, theirs) = (scratch.file("ours", &bytes), scratch.file("theirs", &bytes));
    Header::read(&open(&ours)).unwrap().repair(&open(&ours)).unwrap();
    cryptsetup(&["repair", theirs.to_str().unwrap()]);
    let json = |path| match Header::read(&open(path)).unwrap() {
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
        let header = Header::read(&open(&image)).unwrap();
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
    let mut header = Header::read(&open(&image)).unwrap();
    cryptsetup(&["repair", image.to_str().unwrap()]);
    cryptsetup(&["config", "--label", "newer", image.to_str().unwrap()]);
    let before = std::fs::read(&image).unwrap();
    assert_eq!(header.repair(&open(&image)).unwrap_err().kind(), ErrorKind::Busy);
    assert!(std::fs::read(&image).unwrap() == before);
}

#[test]
fn both_copies_lost_is_an_error_that_names_the_file() {
    let scratch = Scratch::new();
    let mut bytes = luks2();
    bytes[5000] ^= 1;
    bytes[COPY + 5000] ^= 1;
    let image = scratch.file("disk.img", &bytes);
    let error = Header::read(&open(&image)).unwrap_err().in_file(&image);
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

    /// No single flipped bit of a copy matters: the other copy is used.
    #[test]
    fn a_flipped_bit_in_one_copy_is_survived(copy in 0..2usize, bit in 0..COPY * 8) {
        let mut image = luks2();
        image[copy * COPY + bit / 8] ^= 1 << (bit % 8);
        let found = outcome(&image);
        // The unused end of the checksum field is not covered by any check.
        let harmless = (448 + 32..512).contains(&(bit / 8));
        prop_assert_eq!(found, if harmless { Outcome::Opens } else { Outcome::Damaged });
    }

    /// LUKS1 has neither a checksum nor a second copy: any outcome but a panic or another key is
    /// fine.
    #[test]
    fn a_flipped_bit_in_a_luks1_header_never_panics(bit in 0..592 * 8usize) {
        let mut image = luks1();
        image[bit / 8] ^= 1 << (bit % 8);
        outcome(&image);
    }
}
