//! The state after a crash, the parts that are kept, and refused changes.

use serde_json::json;
use underseal_cipher::Key;

use super::super::binary;
use super::tokens::NewToken;
use super::*;
use crate::storage::recorder::{Recorder, left_of, once};
use crate::{
    Cost, FormatOptions, NewHeader, NewKeyslot, Pbkdf, PbkdfKind, Priority, Replace, UnlockOptions, VolumeKey,
};

const SIZE: usize = 3 << 20;

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn pbkdf() -> Pbkdf {
    Pbkdf { kind: PbkdfKind::Pbkdf2, cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() }
}

fn new_slot(number: Option<u32>) -> NewKeyslot {
    NewKeyslot { number, ..NewKeyslot::new(pbkdf()) }
}

/// A disk with a header that the passphrase `old` opens.
fn disk() -> (Recorder, Header, VolumeKey) {
    with_header(SIZE, FormatOptions { data_offset: Some(2 << 20), pbkdf: pbkdf(), ..FormatOptions::luks2() })
}

/// The same, small and with short keys, for cases with many runs.
fn small_disk() -> (Recorder, Header, VolumeKey) {
    let cipher = "aes-cbc-essiv:sha256".parse().unwrap();
    let (data_offset, key_size) = (Some(256 << 10), Some(16));
    with_header(
        512 << 10,
        FormatOptions { cipher, key_size, data_offset, pbkdf: pbkdf(), ..FormatOptions::luks2() },
    )
}

fn with_header(size: usize, options: FormatOptions) -> (Recorder, Header, VolumeKey) {
    let disk = Recorder::new(vec![0; size]);
    let new = NewHeader::prepare(size as u64, &key("old"), options).unwrap();
    new.write(&disk).unwrap();
    disk.forget_events();
    let header = read(&disk);
    (disk, header, new.into_key())
}

fn read(disk: &(impl crate::ReadAt + ?Sized)) -> Header {
    Header::read(disk).unwrap().unwrap()
}

fn opens(disk: &[u8], passphrase: &str) -> Option<u32> {
    let header = read(disk);
    let json = serde_json::to_vec(header.json()).unwrap();
    let keyslots = 2 * usize::try_from(header.stored.binary.size).unwrap();
    let keyslots = keyslots..usize::try_from(header.data_offset()).unwrap();
    once(&[&json, &disk[keyslots], passphrase.as_bytes()], || {
        let opened = header.unlock(disk, &key(passphrase), &UnlockOptions::default());
        opened.ok().map(|opened| opened.slot)
    })
}

/// A disk with one bad copy, if any.
fn damaged(place: Option<HeaderCopy>) -> (Recorder, Header, VolumeKey) {
    let (disk, header, key) = small_disk();
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
            // A keyslot in the document can be opened.
            let listed = read(disk).stored.metadata.keyslots.contains_key(&1);
            assert_eq!(opens(disk, "new"), listed.then_some(1), "{place:?}, {at}");
            seen[usize::from(listed)] = true;
        });
        assert_eq!(seen, [true; 2], "both sides of the change were seen");

        let before = disk.bytes().clone();
        let (range, material) = area(&disk, &header, 0);
        header.remove_keyslot(&disk, 0, false).unwrap();
        assert_eq!(left_of(&material, &disk.bytes()[range]), 0, "{place:?}");
        disk.each_crash(before, |disk, at| {
            assert_eq!(opens(disk, "new"), Some(1), "{place:?}, {at}");
            if !read(disk).stored.metadata.keyslots.contains_key(&0) {
                assert_eq!(opens(disk, "old"), None, "{place:?}, {at}");
            }
        });
        assert_eq!(opens(&disk.bytes(), "old"), None);
    }
}

/// The place of a keyslot's area, and its contents.
fn area(disk: &Recorder, header: &Header, number: u32) -> (std::ops::Range<usize>, Vec<u8>) {
    let (offset, len) = header.stored.metadata.keyslots[&number].area;
    let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
    (range.clone(), disk.bytes()[range].to_vec())
}

/// Opens the keyslot and changes its passphrase to `new`.
fn change(disk: &Recorder, header: &mut Header, new: &NewKeyslot, how: Replace) -> crate::Result<u32> {
    let opened = header.unlock(disk, &key("old"), &UnlockOptions::default()).unwrap();
    header.change_keyslot(disk, &opened, &key("new"), new, how)
}

#[test]
fn a_crash_while_a_token_is_enrolled_leaves_neither_its_keyslot_nor_the_token_or_both() {
    for place in [None, Some(HeaderCopy::First), Some(HeaderCopy::Second)] {
        let (disk, mut header, volume_key) = damaged(place);
        let before = disk.bytes().clone();
        let token = Map::from_iter([("type".into(), json!("nobody-knows")), ("x".into(), json!(1))]);
        let number = NewToken { number: Some(4), replace: false };
        let added = header
            .add_keyslot_with_token(&disk, &volume_key, &key("new"), &new_slot(Some(9)), (token, number))
            .unwrap();
        assert_eq!(added, (9, 4));
        assert_eq!(header.token(4).unwrap()["keyslots"], json!(["9"]));
        let mut seen = [false; 2];
        disk.each_crash(before, |disk, at| {
            let now = read(disk);
            let listed = now.stored.metadata.keyslots.contains_key(&9);
            assert_eq!(now.token(4).is_ok(), listed, "{place:?}, {at}");
            assert_eq!(opens(disk, "new"), listed.then_some(9), "{place:?}, {at}");
            assert_eq!(opens(disk, "old"), Some(0), "{place:?}, {at}");
            seen[usize::from(listed)] = true;
        });
        assert_eq!(seen, [true; 2], "both sides of the change were seen");
        // A refused change is refused as a whole.
        let mut refused = |token: Value, slot, number| {
            let Value::Object(token) = token else { panic!("no token") };
            let place = NewToken { number: Some(number), replace: false };
            let new = new_slot(Some(slot));
            let added = header.add_keyslot_with_token(&disk, &volume_key, &key("x"), &new, (token, place));
            assert_eq!(added.unwrap_err().kind(), ErrorKind::BadOption);
        };
        disk.forget_events();
        refused(json!({ "type": "nobody-knows" }), 10, 4);
        refused(json!({ "type": "nobody-knows" }), 9, 5);
        refused(json!({ "type": "luks2-odd" }), 10, 5);
        assert!(disk.is_untouched());
    }
}

#[test]
fn a_crash_while_a_passphrase_changes_leaves_one_that_opens() {
    for (place, number) in
        [(None, None), (Some(HeaderCopy::First), Some(5)), (Some(HeaderCopy::Second), None)]
    {
        let (disk, mut header, _) = damaged(place);
        let before = disk.bytes().clone();
        let (range, material) = area(&disk, &header, 0);
        let changed = change(&disk, &mut header, &new_slot(number), Replace::Beside).unwrap();
        assert_eq!(changed, number.unwrap_or(0));
        assert_eq!(left_of(&material, &disk.bytes()[range]), 0, "{place:?}");
        let mut seen = [false; 2];
        disk.each_crash(before, |disk, at| {
            let (old, new) = (opens(disk, "old"), opens(disk, "new"));
            assert!(old.is_some() || new == Some(changed), "{place:?}, {at}");
            seen[usize::from(new.is_some())] = true;
        });
        assert_eq!(seen, [true; 2], "both sides of the change were seen");
        assert_eq!((opens(&disk.bytes(), "old"), opens(&disk.bytes(), "new")), (None, Some(changed)));
        assert_eq!(header.stored.metadata.keyslots.len(), 1);
    }
}

#[test]
fn a_crash_in_any_other_change_leaves_the_old_header_or_the_new_one() {
    type Change = fn(&Recorder, &mut Header);
    let changes: [(&str, Change); 2] = [
        ("priority", |disk, header| header.set_priority(disk, 0, Priority::Preferred).unwrap()),
        ("unbound", |disk, header| {
            let other = Key::new(&[9; 24]).unwrap();
            assert_eq!(header.add_unbound_keyslot(disk, &other, &key("new"), &new_slot(None)).unwrap(), 1);
        }),
    ];
    for (name, change) in changes {
        let (disk, mut header, _) = small_disk();
        let (before, old) = (disk.bytes().clone(), header.json().clone());
        change(&disk, &mut header);
        let mut seen = [false; 2];
        disk.each_crash(before, |disk, at| {
            let read = read(disk);
            assert!([&old, header.json()].contains(&read.json()), "{name}, {at}");
            seen[usize::from(read.json() == header.json())] = true;
            assert_eq!(opens(disk, "old"), Some(0), "{name}, {at}");
        });
        assert_eq!(seen, [true; 2], "{name}: both sides of the change were seen");
    }
}

#[test]
fn who_gets_another_passphrase_keeps_its_number_its_tokens_and_its_priority() {
    for (number, how) in [(None, Replace::Beside), (Some(3), Replace::Beside), (None, Replace::InPlace)] {
        let (disk, mut header, _) = disk();
        let token = json!({ "type": "nobody-knows", "keyslots": ["0"] });
        let put = |document: &mut Map<String, Value>, _: &Metadata| {
            document["tokens"]["3"] = token.clone();
            Ok(())
        };
        header.update(&disk, put, |()| Ok(())).unwrap();
        header.set_priority(&disk, 0, Priority::Preferred).unwrap();
        let changed = change(&disk, &mut header, &new_slot(number), how).unwrap();
        assert_eq!(changed, number.unwrap_or(0));
        let name = changed.to_string();
        assert_eq!(header.json()["tokens"]["3"]["keyslots"], json!([name]), "{number:?}");
        assert_eq!(header.json()["digests"]["0"]["keyslots"], json!([name]), "{number:?}");
        assert_eq!(header.json()["keyslots"][&name]["priority"], json!(2));
        assert_eq!(header.json()["keyslots"].as_object().unwrap().len(), 1);
        assert_eq!((opens(&disk.bytes(), "old"), opens(&disk.bytes(), "new")), (None, Some(changed)));
    }
}

#[test]
fn without_room_for_both_a_passphrase_changes_in_place_only_when_asked() {
    let (disk, mut header, volume_key) = disk();
    // 2 MiB hold the header and eight areas of 252 KiB.
    for number in 1..8 {
        assert_eq!(header.add_keyslot(&disk, &volume_key, &key("x"), &new_slot(None)).unwrap(), number);
    }
    disk.forget_events();
    let full = change(&disk, &mut header, &new_slot(None), Replace::Beside).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::NoRoom);
    assert!(disk.is_untouched());
    let (range, material) = area(&disk, &header, 0);
    assert_eq!(change(&disk, &mut header, &new_slot(None), Replace::InPlace).unwrap(), 0);
    assert_eq!(area(&disk, &header, 0).0, range);
    assert_eq!(left_of(&material, &disk.bytes()[range]), 0);
    assert_eq!((opens(&disk.bytes(), "old"), opens(&disk.bytes(), "new")), (None, Some(0)));
    assert_eq!(opens(&disk.bytes(), "x"), Some(1));
}

#[test]
fn another_key_has_a_keyslot_and_a_digest_of_its_own() {
    let (disk, mut header, volume_key) = disk();
    let other = Key::new(&[9; 24]).unwrap();
    let added = header.add_unbound_keyslot(&disk, &other, &key("new"), &new_slot(Some(4))).unwrap();
    assert_eq!(added, 4);
    assert_eq!(header.json()["digests"]["1"]["segments"], json!([]));
    // The keyslot opens no data, so it is tried only on request.
    assert_eq!(opens(&disk.bytes(), "new"), None);
    let chosen = UnlockOptions { slot: Some(4), ..UnlockOptions::default() };
    let opened = header.unlock(&disk, &key("new"), &chosen).unwrap();
    assert!(*opened.key.key() == other);
    assert_eq!((opened.key.digest, volume_key.digest), (1, 0));
    // A second keyslot of that key is bound to the same digest.
    assert_eq!(header.add_keyslot(&disk, &opened.key, &key("too"), &new_slot(None)).unwrap(), 1);
    assert_eq!(header.json()["digests"]["1"]["keyslots"], json!(["4", "1"]));
    // Neither is the last keyslot of the data's key. The digest is removed with the last keyslot of
    // its own key.
    header.remove_keyslot(&disk, 4, false).unwrap();
    header.remove_keyslot(&disk, 1, false).unwrap();
    assert!(header.json()["digests"].get("1").is_none());
    assert_eq!(header.remove_keyslot(&disk, 0, false).unwrap_err().kind(), ErrorKind::LastKeyslot);
    disk.forget_events();
    for len in [0, 1025] {
        let key_of = Key::zeroed(len).unwrap();
        let refused = header.add_unbound_keyslot(&disk, &key_of, &key("x"), &new_slot(None)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadOption, "{len}");
    }
    assert!(disk.is_untouched());
}

#[test]
fn a_keyslot_has_the_cipher_that_is_asked_for_or_that_of_the_one_it_replaces() {
    let (disk, mut header, volume_key) = disk();
    let with =
        |cipher: &str, size| NewKeyslot { cipher: Some((cipher.parse().unwrap(), size)), ..new_slot(None) };
    for (new, kind) in [
        (with("cipher_null-ecb", None), ErrorKind::BadOption),
        (with("capi:xts(aes)-plain64", None), ErrorKind::BadOption),
        (with("aes-xts-plain64", Some(16)), ErrorKind::BadOption),
        (with("rot13-xts-plain64", None), ErrorKind::Unsupported),
    ] {
        let refused = header.add_keyslot(&disk, &volume_key, &key("x"), &new).unwrap_err();
        assert_eq!(refused.kind(), kind, "{new:?}");
    }
    assert!(disk.is_untouched());
    let cbc = with("aes-cbc-essiv:sha256", Some(16));
    assert_eq!(change(&disk, &mut header, &cbc, Replace::Beside).unwrap(), 0);
    let area = |header: &Header| header.json()["keyslots"]["0"]["area"].clone();
    assert_eq!(
        (&area(&header)["encryption"], &area(&header)["key_size"]),
        (&json!("aes-cbc-essiv:sha256"), &json!(16))
    );
    let opened = header.unlock(&disk, &key("new"), &UnlockOptions::default()).unwrap();
    header.change_keyslot(&disk, &opened, &key("new"), &new_slot(None), Replace::Beside).unwrap();
    assert_eq!(
        (&area(&header)["encryption"], &area(&header)["key_size"]),
        (&json!("aes-cbc-essiv:sha256"), &json!(16))
    );
    assert_eq!(opens(&disk.bytes(), "new"), Some(0));
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
    // No token may name a removed keyslot.
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
    // The same number, but other contents: a restored backup.
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
    assert_eq!(full.kind(), ErrorKind::NoRoom);
    assert!(disk.is_untouched());

    let (offset, len) = area(&header, 3);
    let range = usize::try_from(offset).unwrap()..usize::try_from(offset + len).unwrap();
    let material = disk.bytes()[range.clone()].to_vec();
    header.remove_keyslot(&disk, 3, false).unwrap();
    let wiped = disk.bytes()[range].to_vec();
    assert_eq!(left_of(&material, &wiped), 0);
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
    let other = VolumeKey::new(Key::new(&[7; 64]).unwrap(), 0);
    let short = VolumeKey::new(Key::new(&[7; 32]).unwrap(), 0);
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
    assert_eq!(header.remove_keyslot(&disk, 0, false).unwrap_err().kind(), ErrorKind::LastKeyslot);
    assert!(disk.is_untouched());
    header.remove_keyslot(&disk, 0, true).unwrap();
    assert_eq!(opens(&disk.bytes(), "old"), None);
}
