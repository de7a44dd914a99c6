//! What a crash leaves behind, what is kept, and what is refused.

use serde_json::json;
use underseal_cipher::Key;

use super::super::binary;
use super::*;
use crate::storage::recorder::Recorder;
use crate::{Cost, FormatOptions, Hash, NewHeader, Pbkdf, PbkdfKind, UnlockOptions, VolumeKey};
use keyslots::NewKeyslot;

const SIZE: usize = 3 << 20;

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn pbkdf() -> Pbkdf {
    Pbkdf { kind: PbkdfKind::Pbkdf2, cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() }
}

fn new_slot(number: Option<u32>) -> NewKeyslot {
    NewKeyslot { number, hash: Hash::Sha256, pbkdf: pbkdf() }
}

/// A disk with a header that the passphrase `old` opens.
fn disk() -> (Recorder, Header, VolumeKey) {
    let disk = Recorder::new(vec![0; SIZE]);
    let options = FormatOptions { data_offset: Some(2 << 20), pbkdf: pbkdf(), ..FormatOptions::luks2() };
    let new = NewHeader::prepare(SIZE as u64, &key("old"), options).unwrap();
    new.write(&disk).unwrap();
    disk.forget_events();
    let header = read(&disk);
    (disk, header, new.into_key())
}

fn read(disk: &(impl crate::ReadAt + ?Sized)) -> Header {
    Header::read(disk).unwrap().unwrap()
}

fn opens(disk: &[u8], passphrase: &str) -> Option<u32> {
    let opened = read(disk).unlock(disk, &key(passphrase), &UnlockOptions::default());
    opened.ok().map(|opened| opened.slot)
}

/// A disk of which one copy is bad, if any.
fn damaged(place: Option<HeaderCopy>) -> (Recorder, Header, VolumeKey) {
    let (disk, header, key) = disk();
    if let Some(place) = place {
        let at = place.offset(header.stored.binary.size) + 4096 + 20;
        disk.write_all_at(&[0xff], at).unwrap();
        disk.forget_events();
    }
    let header = read(&disk);
    assert_eq!(header.stored.damage.as_ref().map(|damage| damage.place), place);
    (disk, header, key)
}

#[test]
fn a_crash_while_a_header_changes_leaves_the_old_one_or_the_new_one() {
    for place in [None, Some(HeaderCopy::First), Some(HeaderCopy::Second)] {
        let (disk, mut header, volume_key) = damaged(place);
        let before = disk.bytes().clone();
        let added = header.add_keyslot(&disk, &volume_key, &key("new"), &new_slot(None)).unwrap();
        assert_eq!((added, header.damage()), (1, None));
        let mut seen = [false; 2];
        disk.each_crash(before, |disk, at| {
            assert_eq!(opens(disk, "old"), Some(0), "{place:?}, {at}");
            // A keyslot that is listed can be opened.
            let listed = read(disk).stored.metadata.keyslots.contains_key(&1);
            assert_eq!(opens(disk, "new"), listed.then_some(1), "{place:?}, {at}");
            seen[usize::from(listed)] = true;
        });
        assert_eq!(seen, [true; 2], "both sides of the change were seen");

        let before = disk.bytes().clone();
        header.remove_keyslot(&disk, 0, false).unwrap();
        disk.each_crash(before, |disk, at| {
            assert_eq!(opens(disk, "new"), Some(1), "{place:?}, {at}");
            if !read(disk).stored.metadata.keyslots.contains_key(&0) {
                assert_eq!(opens(disk, "old"), None, "{place:?}, {at}");
            }
        });
        assert_eq!(opens(&disk.bytes(), "old"), None);
    }
}

#[test]
fn what_is_not_understood_stays() {
    let (disk, mut header, volume_key) = disk();
    let odd = json!({ "type": "nobody-knows", "keyslots": ["0"], "x": { "y": [1.5, null] } });
    let put = |document: &mut Map<String, Value>, _: &Metadata| {
        document["tokens"]["3"] = odd.clone();
        document.insert("unheard-of".into(), json!(["z"]));
        Ok(())
    };
    header.update(&disk, put, |()| Ok(())).unwrap();
    let seqid = header.stored.binary.seqid;
    header.add_keyslot(&disk, &volume_key, &key("new"), &new_slot(Some(7))).unwrap();
    assert_eq!(header.stored.binary.seqid, seqid + 1);
    assert_eq!((&header.json()["tokens"]["3"], &header.json()["unheard-of"]), (&odd, &json!(["z"])));
    // Nothing may name a keyslot that is gone.
    header.remove_keyslot(&disk, 0, false).unwrap();
    assert_eq!(header.json()["tokens"]["3"]["keyslots"], json!([]));
    assert_eq!(header.json()["tokens"]["3"]["x"], odd["x"]);
    assert_eq!(read(&disk).json(), header.json());
    // Both copies have it.
    let bytes = disk.bytes().clone();
    let size = usize::try_from(header.stored.binary.size).unwrap();
    assert_eq!(bytes[binary::LEN..size], bytes[size + binary::LEN..2 * size]);
    assert_eq!(header.damage(), None);
}

#[test]
fn what_no_reader_would_take_is_never_written() {
    type Edit = fn(&mut Map<String, Value>);
    let edits: [(&str, ErrorKind, Edit); 5] = [
        ("no segments", ErrorKind::BadHeader, |document| document["segments"] = json!({})),
        ("no digests", ErrorKind::BadHeader, |document| drop(document.remove("digests"))),
        ("a slot that is not there", ErrorKind::BadHeader, |document| {
            document["digests"]["0"]["keyslots"] = json!(["0", "5"]);
        }),
        ("an area in the header", ErrorKind::BadHeader, |document| {
            document["keyslots"]["0"]["area"]["offset"] = json!("4096");
        }),
        ("too long", ErrorKind::BadOption, |document| {
            document.insert("x".into(), json!("x".repeat(16 << 10)));
        }),
    ];
    for (name, kind, edit) in edits {
        let (disk, mut header, _) = disk();
        let change = |document: &mut Map<String, Value>, _: &Metadata| {
            edit(document);
            Ok(())
        };
        let refused = header.update(&disk, change, |()| panic!("{name}: nothing is prepared for it"));
        assert_eq!(refused.unwrap_err().kind(), kind, "{name}");
        assert!(disk.is_untouched(), "{name}");
    }
}

#[test]
fn a_header_that_changed_meanwhile_is_left_alone() {
    let (disk, mut first, volume_key) = disk();
    let mut second = read(&disk);
    first.add_keyslot(&disk, &volume_key, &key("new"), &new_slot(None)).unwrap();
    disk.forget_events();
    for outcome in [
        second.add_keyslot(&disk, &volume_key, &key("x"), &new_slot(None)).map(|_| ()),
        second.remove_keyslot(&disk, 0, true),
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy);
    }
    assert!(disk.is_untouched());
    // The same number, but other contents: a backup that was put back.
    let mut stale = read(&disk);
    stale.stored.metadata.document.insert("x".into(), json!(1));
    assert_eq!(stale.remove_keyslot(&disk, 0, false).unwrap_err().kind(), ErrorKind::Busy);
    assert!(disk.is_untouched());
}

#[test]
fn areas_go_where_there_is_room_and_are_wiped_when_given_back() {
    let (disk, mut header, volume_key) = disk();
    let area = |header: &Header, number| header.stored.metadata.keyslots[&number].area;
    // 2 MiB hold the header and eight areas of 252 KiB.
    for number in 1..8 {
        assert_eq!(header.add_keyslot(&disk, &volume_key, &key("new"), &new_slot(None)).unwrap(), number);
    }
    disk.forget_events();
    let full = header.add_keyslot(&disk, &volume_key, &key("x"), &new_slot(None)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::TooSmall);
    assert!(disk.is_untouched());

    let (offset, len) = area(&header, 3);
    let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
    let material = disk.bytes()[range.clone()].to_vec();
    header.remove_keyslot(&disk, 3, false).unwrap();
    let wiped = disk.bytes()[range].to_vec();
    let same = material.iter().zip(&wiped).filter(|(old, new)| old == new).count();
    assert!(same < material.len() / 64, "{same} bytes of {} are as they were", material.len());
    assert_eq!(header.add_keyslot(&disk, &volume_key, &key("third"), &new_slot(Some(20))).unwrap(), 20);
    assert_eq!(area(&header, 20), (offset, len), "the room is used again");
    assert_eq!(opens(&disk.bytes(), "third"), Some(20));
    assert_eq!(opens(&disk.bytes(), "old"), Some(0));
}

#[test]
fn a_header_with_requirements_that_are_not_known_keeps_its_keyslots() {
    let (disk, mut header, volume_key) = disk();
    let require = |document: &mut Map<String, Value>, _: &Metadata| {
        document["config"]["requirements"] = json!({ "mandatory": ["online-reencrypt-v2"] });
        Ok(())
    };
    header.update(&disk, require, |()| Ok(())).unwrap();
    disk.forget_events();
    let added = header.add_keyslot(&disk, &volume_key, &key("new"), &new_slot(None)).unwrap_err();
    let removed = header.remove_keyslot(&disk, 0, true).unwrap_err();
    assert_eq!([added.kind(), removed.kind()], [ErrorKind::Unsupported; 2]);
    assert!(disk.is_untouched());
}

#[test]
fn keyslots_that_do_not_fit_are_refused() {
    let (disk, mut header, volume_key) = disk();
    let other = VolumeKey { key: Key::new(&[7; 64]).unwrap(), digest: 0 };
    let short = VolumeKey { key: Key::new(&[7; 32]).unwrap(), digest: 0 };
    for (key_of, number, kind) in [
        (&volume_key, Some(0), ErrorKind::BadOption),
        (&volume_key, Some(32), ErrorKind::BadOption),
        (&other, None, ErrorKind::WrongKey),
        (&short, None, ErrorKind::WrongKey),
    ] {
        let refused = header.add_keyslot(&disk, key_of, &key("x"), &new_slot(number)).unwrap_err();
        assert_eq!(refused.kind(), kind, "{number:?}");
    }
    assert_eq!(header.remove_keyslot(&disk, 1, true).unwrap_err().kind(), ErrorKind::NoKeyslot);
    assert_eq!(header.remove_keyslot(&disk, 0, false).unwrap_err().kind(), ErrorKind::BadOption);
    assert!(disk.is_untouched());
    header.remove_keyslot(&disk, 0, true).unwrap();
    assert_eq!(opens(&disk.bytes(), "old"), None);
}
