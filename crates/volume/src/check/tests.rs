//! Findings of damaged headers, and no damage in sound ones.

use super::*;
use crate::storage::recorder::Recorder;
use crate::{Cost, FormatOptions, Key, NewHeader, Pbkdf, repair};

const SIZE: usize = 3 << 20;

fn image(options: FormatOptions) -> Vec<u8> {
    let disk = Recorder::new(vec![0; SIZE]);
    let pbkdf = Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
    let options = FormatOptions { pbkdf, data_offset: Some(2 << 20), ..options };
    NewHeader::prepare(SIZE as u64, &Key::new(b"old").unwrap(), options).unwrap().write(&disk).unwrap();
    disk.bytes().clone()
}

fn damages(bytes: &[u8]) -> Vec<String> {
    let check = Check::of(bytes, Some(bytes.len() as u64)).unwrap();
    assert_eq!(check.sound, check.findings.iter().all(|finding| !finding.damage));
    let damages = check.findings.into_iter().filter(|finding| finding.damage);
    damages.map(|finding| format!("{}: {}; {}", finding.place, finding.what, finding.remedy)).collect()
}

#[track_caller]
fn finds(bytes: &[u8], words: &[&str]) {
    let found = damages(bytes);
    assert_eq!(found.len(), 1, "{found:?}");
    words.iter().for_each(|word| assert!(found[0].contains(word), "{found:?} lacks {word}"));
}

#[test]
fn a_new_header_is_sound() {
    for options in [FormatOptions::luks1(), FormatOptions::luks2()] {
        assert_eq!(damages(&image(options)), [""; 0]);
    }
}

#[test]
fn each_damage_is_named_with_what_could_be_done() {
    let luks2 = image(FormatOptions::luks2());
    let put = |changes: &[(usize, &[u8])]| {
        let mut bytes = luks2.clone();
        changes.iter().for_each(|(at, new)| bytes[*at..*at + new.len()].copy_from_slice(new));
        bytes
    };
    finds(&put(&[(5000, b"x")]), &["header", "at byte 0", "checksum does not match", "header repair"]);
    finds(&put(&[(20_000, b"x")]), &["header", "at byte 16384", "header repair"]);
    finds(&put(&[(5000, b"x"), (20_000, b"x")]), &["both header copies are bad", "header restore"]);
    finds(&put(&[(0, &[0; 32 << 10])]), &["no LUKS header", "--header"]);
    finds(&put(&[(0, b"XFSB")]), &["ambiguous", "an XFS filesystem", "header repair"]);
    finds(
        &put(&[(40_960, &[0; 4096])]),
        &["keyslots.0.area", "4096 bytes at byte 40960 are zeros", "another keyslot"],
    );
    finds(&put(&[(33_000, &[b'a'; 1500])]), &["keyslots.0.area", "2048 bytes at byte 32768 are a pattern"]);
    finds(&luks2[..2 << 20], &["segments.0.offset", "ends at byte 2097152", "cut short"]);
    assert_eq!(damages(&luks2[..1 << 20]).len(), 1);
    assert_eq!(damages(&luks2[..100 << 10]).len(), 2, "the keyslot is cut off, too");
    assert_eq!(damages(&luks2[..20 << 10]).len(), 3, "and the second copy, too");
}

#[test]
fn what_a_repair_can_make_good_is_said_and_done() {
    // Each case has the words of the finding, and whether it may be another format's bytes.
    let luks2 = image(FormatOptions::luks2());
    let luks1 = image(FormatOptions::luks1());
    let put = |bytes: &[u8], changes: &[(usize, &[u8])]| {
        let mut bytes = bytes.to_vec();
        changes.iter().for_each(|(at, new)| bytes[*at..*at + new.len()].copy_from_slice(new));
        bytes
    };
    let slot = |number: usize| 208 + 48 * number;
    let mut sixth = [0; 16];
    sixth[14..].copy_from_slice(&[0x55, 0xaa]);
    for (name, bytes, over) in [
        ("first copy", put(&luks2, &[(5000, b"x")]), false),
        ("second copy", put(&luks2, &[(20_000, b"x")]), false),
        ("a partition table", put(&luks2, &[(0, &[0; 510]), (510, &[0x55, 0xaa])]), true),
        ("hash in capitals", put(&luks1, &[(72, b"SHA256")]), false),
        ("a free slot's stripes", put(&luks1, &[(slot(3) + 44, &[0; 4])]), false),
        ("a free slot's place", put(&luks1, &[(slot(3) + 40, &[0xff; 4])]), false),
        ("a slot of zeros", put(&luks1, &[(slot(7), &[0; 48])]), false),
        ("a partition mark", put(&luks1, &[(496, &sixth)]), false),
    ] {
        let before = damages(&bytes);
        assert_eq!(before.len(), 1, "{name}: {before:?}");
        assert!(before[0].contains("header repair"), "{name}: {before:?}");
        let disk = Recorder::new(bytes.clone());
        if over {
            assert_eq!(repair(&disk, false).unwrap_err().kind(), ErrorKind::Ambiguous, "{name}");
            assert!(disk.is_untouched());
        }
        let done = repair(&disk, over).unwrap();
        assert_eq!(done.len(), 1, "{name}: {done:?}");
        assert_eq!(damages(&disk.bytes()), [""; 0], "{name}");
        Header::read(&disk).unwrap();
        let repaired = disk.bytes().clone();
        assert_eq!(repair(&disk, over).unwrap(), [""; 0], "{name}");
        assert!(*disk.bytes() == repaired, "{name}: what is sound is left alone");
    }
}

#[test]
fn a_keyslot_in_use_is_never_repaired() {
    let luks1 = image(FormatOptions::luks1());
    for (at, byte) in [(208 + 44, 0xff), (208 + 40, 0xff), (208, 0x11)] {
        let mut bytes = luks1.clone();
        bytes[at] = byte;
        let disk = Recorder::new(bytes.clone());
        let found = damages(&bytes);
        assert!(found.len() == 1 && !found[0].contains("header repair"), "{found:?}");
        assert_eq!(repair(&disk, true).unwrap_err().kind(), ErrorKind::BadHeader);
        assert!(disk.is_untouched());
    }
}
