//! The results of a crash, and refusals.

use underseal_cipher::Key;

use super::*;
use crate::keyslots::{NewKeyslot, Replace};
use crate::storage::recorder::{Recorder, left_of, once};
use crate::{Cost, ErrorKind, FormatOptions, NewHeader, Pbkdf, PbkdfKind, UnlockOptions, VolumeKey};

/// The end of eight keyslots.
const DATA: usize = 4096 + 8 * (64 << 10);
const SIZE: usize = DATA + (64 << 10);

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn slot(number: Option<u32>) -> NewKeyslot {
    NewKeyslot { number, ..NewKeyslot::new(Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() }) }
}

/// A disk with a header that the passphrase `old` opens.
fn disk() -> (Recorder, Header, VolumeKey) {
    let disk = Recorder::new(vec![0; SIZE]);
    let cipher = "aes-cbc-essiv:sha256".parse().unwrap();
    let options = FormatOptions {
        pbkdf: slot(None).pbkdf,
        cipher,
        key_size: Some(16),
        data_offset: Some(DATA as u64),
        ..FormatOptions::luks1()
    };
    let new = NewHeader::prepare(SIZE as u64, &key("old"), options).unwrap();
    new.write(&disk).unwrap();
    disk.forget_events();
    let header = Header::read(&disk).unwrap().unwrap();
    (disk, header, new.into_key())
}

fn opens(disk: &[u8], passphrase: &str) -> Option<u32> {
    let header = Header::read(disk).unwrap().expect("a header");
    once(&[&header.phdr.bytes, &disk[4096..DATA], passphrase.as_bytes()], || {
        header.unlock(disk, &key(passphrase), &UnlockOptions::default()).ok().map(|opened| opened.slot)
    })
}

fn listed(disk: &[u8], number: usize) -> bool {
    Header::read(disk).unwrap().unwrap().phdr.slots[number].is_some()
}

/// Returns the bytes of a keyslot's key material.
fn material(disk: &Recorder, header: &Header, number: usize) -> Vec<u8> {
    let offset = usize::try_from(header.phdr.slots[number].as_ref().unwrap().offset).unwrap();
    disk.bytes()[offset..offset + 16 * 4000].to_vec()
}

#[test]
fn a_crash_while_a_keyslot_comes_or_goes_leaves_the_old_header_or_the_new_one() {
    for number in [1, 5, 6, 7] {
        let (disk, mut header, volume_key) = disk();
        let before = disk.bytes().clone();
        let added = header.add_keyslot(&disk, &volume_key, &key("new"), &slot(Some(number))).unwrap();
        assert_eq!(added, number);
        let mut seen = [false; 2];
        disk.each_crash(before, |disk, at| {
            assert_eq!(opens(disk, "old"), Some(0), "{number}, {at}");
            let listed = listed(disk, number as usize);
            assert_eq!(opens(disk, "new"), listed.then_some(number), "{number}, {at}");
            seen[usize::from(listed)] = true;
        });
        assert_eq!(seen, [true; 2], "both sides of the change were seen");

        let before = disk.bytes().clone();
        let gone = material(&disk, &header, number as usize);
        let at = usize::try_from(header.phdr.slots[number as usize].as_ref().unwrap().offset).unwrap();
        header.remove_keyslot(&disk, number, false).unwrap();
        assert_eq!(left_of(&gone, &disk.bytes()[at..at + gone.len()]), 0, "{number}");
        disk.each_crash(before, |disk, at| {
            assert_eq!(opens(disk, "old"), Some(0), "{number}, {at}");
            if !listed(disk, number as usize) {
                assert_eq!(opens(disk, "new"), None, "{number}, {at}");
            }
        });
        assert!(!listed(&disk.bytes(), number as usize));
    }
}

#[test]
fn a_crash_while_a_passphrase_changes_leaves_one_that_opens() {
    // The new keyslot gets the first free number: the one after these.
    for taken in [1, 6] {
        let (disk, mut header, volume_key) = disk();
        for number in 1..taken {
            header.add_keyslot(&disk, &volume_key, &key("x"), &slot(Some(number))).unwrap();
        }
        disk.forget_events();
        let before = disk.bytes().clone();
        let gone = material(&disk, &header, 0);
        let opened = header.unlock(&disk, &key("old"), &UnlockOptions::default()).unwrap();
        let number =
            header.change_keyslot(&disk, &opened, &key("new"), &slot(None), Replace::Beside).unwrap();
        assert_eq!(number, taken);
        assert_eq!(left_of(&gone, &disk.bytes()[4096..4096 + gone.len()]), 0);
        disk.each_crash(before, |disk, at| {
            let (old, new) = (opens(disk, "old"), opens(disk, "new"));
            assert!(old.is_some() || new.is_some(), "neither opens: {at}");
            assert!(!listed(disk, 0) || old.is_some() || new.is_some(), "{at}");
        });
        assert_eq!((opens(&disk.bytes(), "old"), opens(&disk.bytes(), "new")), (None, Some(taken)));
    }
}

#[test]
fn a_keyslot_that_keeps_its_number_is_never_gone_on_the_way() {
    for slots in [&[7][..], &[0, 1, 2, 3, 4, 5, 7]] {
        let (disk, mut header, volume_key) = disk();
        let number = slots[0];
        for &number in slots.iter().filter(|number| **number != 0) {
            let passphrase = if number == slots[0] { "first" } else { "x" };
            header.add_keyslot(&disk, &volume_key, &key(passphrase), &slot(Some(number))).unwrap();
        }
        let passphrase = if number == 0 { "old" } else { "first" };
        if number != 0 {
            header.remove_keyslot(&disk, 0, false).unwrap();
        }
        disk.forget_events();
        let before = disk.bytes().clone();
        let gone = material(&disk, &header, number as usize);
        let opened = header.unlock(&disk, &key(passphrase), &UnlockOptions::default()).unwrap();
        let new = slot(Some(number));
        let changed = header.change_keyslot(&disk, &opened, &key("new"), &new, Replace::Beside).unwrap();
        assert_eq!(changed, number);
        disk.each_crash(before, |disk, at| {
            assert!(opens(disk, passphrase).is_some() || opens(disk, "new").is_some(), "{slots:?}, {at}");
            assert_eq!(opens(disk, "x").is_some(), slots.len() > 1, "{slots:?}, {at}");
        });
        assert_eq!((opens(&disk.bytes(), passphrase), opens(&disk.bytes(), "new")), (None, Some(number)));
        let in_use: Vec<u32> = header.areas().into_iter().map(|(number, _)| number).collect();
        assert_eq!(in_use, slots, "the one on the way is free again");
        assert_eq!(left_of(&gone, &disk.bytes()[DATA - gone.len()..]), 0);
        assert!(!disk.bytes().windows(512).step_by(512).any(|sector| sector == &gone[512..1024]));
    }
}

#[test]
fn without_room_for_both_a_passphrase_changes_in_place_only_when_asked() {
    let (disk, mut header, volume_key) = disk();
    for number in 1..8 {
        assert_eq!(header.add_keyslot(&disk, &volume_key, &key("x"), &slot(None)).unwrap(), number);
    }
    disk.forget_events();
    let opened = header.unlock(&disk, &key("old"), &UnlockOptions::default()).unwrap();
    let full = header.change_keyslot(&disk, &opened, &key("new"), &slot(None), Replace::Beside).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::NoRoom);
    let full = header.add_keyslot(&disk, &volume_key, &key("new"), &slot(None)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::NoRoom);
    assert!(disk.is_untouched());
    let gone = material(&disk, &header, 0);
    let number = header.change_keyslot(&disk, &opened, &key("new"), &slot(None), Replace::InPlace).unwrap();
    assert_eq!(number, 0);
    assert_eq!(left_of(&gone, &material(&disk, &header, 0)), 0);
    assert_eq!((opens(&disk.bytes(), "old"), opens(&disk.bytes(), "new")), (None, Some(0)));
    assert_eq!(opens(&disk.bytes(), "x"), Some(1));
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_written() {
    let (disk, mut header, volume_key) = disk();
    let other = VolumeKey::new(Key::new(&[7; 16]).unwrap(), 0);
    let short = VolumeKey::new(Key::new(&[7; 15]).unwrap(), 0);
    let argon2 = NewKeyslot::new(Pbkdf { kind: PbkdfKind::Argon2id, ..slot(None).pbkdf });
    let hash = NewKeyslot { hash: Some(crate::Hash::Sha512), ..slot(None) };
    let cipher = NewKeyslot { cipher: Some(("aes-xts-plain64".parse().unwrap(), None)), ..slot(None) };
    let priority = NewKeyslot { priority: Some(crate::Priority::Normal), ..slot(None) };
    for (key_of, new, kind) in [
        (&volume_key, &slot(Some(0)), ErrorKind::BadOption),
        (&volume_key, &slot(Some(8)), ErrorKind::BadOption),
        (&volume_key, &argon2, ErrorKind::BadOption),
        (&volume_key, &hash, ErrorKind::BadOption),
        (&volume_key, &cipher, ErrorKind::BadOption),
        (&volume_key, &priority, ErrorKind::BadOption),
        (&other, &slot(None), ErrorKind::WrongKey),
        (&short, &slot(None), ErrorKind::WrongKey),
    ] {
        let refused = header.add_keyslot(&disk, key_of, &key("x"), new).unwrap_err();
        assert_eq!(refused.kind(), kind, "{new:?}");
    }
    for (number, kind) in [(0, ErrorKind::LastKeyslot), (1, ErrorKind::NoKeyslot), (8, ErrorKind::NoKeyslot)]
    {
        assert_eq!(header.remove_keyslot(&disk, number, false).unwrap_err().kind(), kind);
    }
    assert!(disk.is_untouched());

    let mut second = Header::read(&disk).unwrap().unwrap();
    header.add_keyslot(&disk, &volume_key, &key("new"), &slot(None)).unwrap();
    disk.forget_events();
    assert_eq!(second.remove_keyslot(&disk, 0, true).unwrap_err().kind(), ErrorKind::Busy);
    assert!(disk.is_untouched());
    header.remove_keyslot(&disk, 0, false).unwrap();
    header.remove_keyslot(&disk, 1, true).unwrap();
    assert_eq!(opens(&disk.bytes(), "new"), None);
}

#[test]
fn a_free_keyslot_whose_place_is_nonsense_gets_the_usual_one() {
    // Places in the header, beyond the data's start, over another keyslot: in 512-byte sectors.
    for nonsense in [0u32, u32::MAX, 4096, 8] {
        let (disk, _, volume_key) = disk();
        let at = 208 + 48;
        disk.write_all_at(&nonsense.to_be_bytes(), at + 40).unwrap();
        disk.write_all_at(&[0; 4], at + 44).unwrap();
        let mut header = Header::read(&disk).unwrap().unwrap();
        assert_eq!(header.add_keyslot(&disk, &volume_key, &key("new"), &slot(None)).unwrap(), 1);
        assert_eq!(header.phdr.slots[1].as_ref().unwrap().offset, 4096 + (64 << 10), "{nonsense}");
        assert_eq!((opens(&disk.bytes(), "old"), opens(&disk.bytes(), "new")), (Some(0), Some(1)));
    }
}

#[test]
fn a_keyslot_is_overwritten_by_itself_only() {
    let (disk, mut header, _) = disk();
    let opened = header.unlock(&disk, &key("old"), &UnlockOptions::default()).unwrap();
    let refused = header.change_keyslot(&disk, &opened, &key("new"), &slot(Some(3)), Replace::InPlace);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadOption);
    assert_eq!(opens(&disk.bytes(), "old"), Some(0), "nothing was touched");
}
