//! The state of a token after a crash, and accepted and refused tokens. `tests/luks/tokens.rs`
//! compares both with cryptsetup.

use serde_json::json;
use underseal_cipher::Key;

use super::*;
use crate::luks2::TokenChoice;
use crate::storage::recorder::Recorder;
use crate::{Cost, FormatOptions, NewHeader, Pbkdf, PbkdfKind};

const SIZE: usize = 3 << 20;

fn disk() -> (Recorder, Header) {
    let disk = Recorder::new(vec![0; SIZE]);
    let pbkdf = Pbkdf { kind: PbkdfKind::Pbkdf2, cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
    let options = FormatOptions { data_offset: Some(2 << 20), pbkdf, ..FormatOptions::luks2() };
    let key = Key::new(b"old").unwrap();
    NewHeader::prepare(SIZE as u64, &key, options).unwrap().write(&disk).unwrap();
    disk.forget_events();
    let header = read(&disk);
    (disk, header)
}

fn read(disk: &(impl crate::ReadAt + ?Sized)) -> Header {
    Header::read(disk).unwrap().unwrap()
}

fn token(value: &Value) -> Map<String, Value> {
    token_from_json(&serde_json::to_vec(value).unwrap()).unwrap()
}

/// The tokens of a disk.
fn tokens_of(disk: &[u8]) -> Value {
    read(disk).json()["tokens"].clone()
}

#[test]
fn a_crash_while_tokens_change_leaves_the_old_ones_or_the_new_ones() {
    let (disk, mut header) = disk();
    let odd = json!({ "type": "org.example", "keyslots": ["0"], "big": 9_007_199_254_740_993_u64, "x": [1.5, null] });
    type Change = fn(&mut Header, &Recorder, &Value);
    let changes: [Change; 4] = [
        |header, disk, odd| assert_eq!(header.add_token(disk, token(odd), NewToken::default()).unwrap(), 0),
        |header, disk, _| header.assign_token(disk, 0, 0, false).unwrap(),
        |header, disk, _| header.assign_token(disk, 0, 0, true).unwrap(),
        |header, disk, _| header.remove_token(disk, 0).unwrap(),
    ];
    let expected = [json!({ "0": odd }), json!([]), json!(["0"]), json!({})];
    for (change, expected) in changes.into_iter().zip(expected) {
        let before = disk.bytes().clone();
        change(&mut header, &disk, &odd);
        let (old, new) = (tokens_of(&before), tokens_of(&disk.bytes()));
        assert_ne!(old, new);
        assert_eq!(if expected.is_array() { &new["0"]["keyslots"] } else { &new }, &expected);
        let mut seen = [false; 2];
        disk.each_crash(before, |disk, at| {
            let found = tokens_of(disk);
            assert!(found == old || found == new, "{at}: {found}");
            seen[usize::from(found == new)] = true;
        });
        assert_eq!(seen, [true; 2], "both sides of the change were seen");
        disk.forget_events();
    }
}

#[test]
fn only_what_a_header_may_hold_is_taken_and_only_where_there_is_room() {
    let (disk, mut header) = disk();
    for (bad, why) in [
        (json!({ "keyslots": [] }), "no \"type\""),
        (json!({ "type": "", "keyslots": [] }), "empty"),
        (json!({ "type": 1, "keyslots": [] }), "a string"),
        (json!({ "type": "x" }), "no \"keyslots\""),
        (json!({ "type": "x", "keyslots": {} }), "array"),
        (json!({ "type": "x", "keyslots": [0] }), "array of strings"),
        (json!({ "type": "x", "keyslots": ["32"] }), "numbers"),
        (json!({ "type": "luks2-foo", "keyslots": [] }), "cryptsetup's own"),
        (json!({ "type": "luks2-keyring", "keyslots": [] }), "key_description"),
        (json!({ "type": "luks2-keyring", "keyslots": [], "key_description": "" }), "key_description"),
        (json!({ "type": "luks2-keyring", "keyslots": [], "key_description": "a", "x": 1 }), "no others"),
    ] {
        let error = token_from_json(&serde_json::to_vec(&bad).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadOption, "{bad}");
        assert!(error.to_string().contains(why), "{error}: {why}");
    }
    for text in [&b"[]"[..], b"", b"{} {}"] {
        assert_eq!(token_from_json(text).unwrap_err().kind(), ErrorKind::BadOption);
    }

    let plain = || token(&json!({ "type": "x", "keyslots": ["0", "0"], "n": 1 }));
    let at = |number, replace| NewToken { number: Some(number), replace };
    assert_eq!(header.add_token(&disk, plain(), at(31, false)).unwrap(), 31);
    disk.forget_events();
    let absent = token(&json!({ "type": "x", "keyslots": ["7"] }));
    let huge = token(&json!({ "type": "x", "keyslots": [], "x": "x".repeat(20_000) }));
    for refused in [
        header.add_token(&disk, plain(), at(31, false)).map(|_| ()),
        header.add_token(&disk, plain(), at(32, true)).map(|_| ()),
        header.add_token(&disk, absent, NewToken::default()).map(|_| ()),
        header.add_token(&disk, huge, NewToken::default()).map(|_| ()),
        header.remove_token(&disk, 3),
        header.assign_token(&disk, 3, 0, true),
        header.assign_token(&disk, 31, 5, true),
        header.assign_token(&disk, 31, 5, false),
        header.token(3).map(|_| ()),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadOption);
    }
    assert!(disk.is_untouched());
    assert_eq!(header.token(31).unwrap(), &plain());
    header.add_token(&disk, token(&json!({ "type": "y", "keyslots": [] })), at(31, true)).unwrap();
    assert_eq!(header.info().tokens[0].kind, "y");
    // A slot that is listed twice is removed as a whole.
    header.add_token(&disk, plain(), at(4, false)).unwrap();
    header.assign_token(&disk, 4, 0, false).unwrap();
    assert_eq!(header.token(4).unwrap()["keyslots"], json!([]));
    for number in [0, 1, 2, 3] {
        assert_eq!(header.add_token(&disk, plain(), NewToken::default()).unwrap(), number);
    }
}

#[test]
fn tokens_of_preferred_keyslots_come_first_and_ignored_ones_only_when_named() {
    let (disk, mut header) = disk();
    let options = crate::UnlockOptions::default();
    let key = header.unlock(&disk, &Key::new(b"old").unwrap(), &options).unwrap().key;
    for number in [1, 2] {
        let pbkdf = Pbkdf { kind: PbkdfKind::Pbkdf2, cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() };
        let new = crate::NewKeyslot { number: Some(number), ..crate::NewKeyslot::new(pbkdf) };
        header.add_keyslot(&disk, &key, &Key::new(b"new").unwrap(), &new).unwrap();
    }
    let edit = |document: &mut Map<String, Value>, _: &Metadata| {
        document["keyslots"]["1"]["priority"] = 0.into();
        document["keyslots"]["2"]["priority"] = 2.into();
        document["tokens"] = json!({
            "0": { "type": "a", "keyslots": ["0"] },
            "1": { "type": "b", "keyslots": ["1"] },
            "2": { "type": "a", "keyslots": ["0", "2", "1"] },
            "3": { "type": "a", "keyslots": [] },
        });
        Ok(())
    };
    header.update(&disk, edit, |()| Ok(())).unwrap();
    let order = |choice: TokenChoice<'_>| -> Vec<(u32, Vec<u32>)> {
        let found = header.tokens_to_try(choice).unwrap();
        found.into_iter().map(|token| (token.number, token.keyslots)).collect()
    };
    let any = TokenChoice::default();
    assert_eq!(order(any), [(2, vec![2, 0]), (0, vec![0])]);
    assert_eq!(order(TokenChoice { kind: Some("b"), ..any }), []);
    assert_eq!(order(TokenChoice { token: Some(1), ..any }), [(1, vec![1])]);
    assert_eq!(order(TokenChoice { token: Some(2), ..any }), [(2, vec![2, 0, 1])]);
    assert_eq!(order(TokenChoice { slot: Some(1), ..any }), [(1, vec![1]), (2, vec![1])]);
    assert_eq!(order(TokenChoice { token: Some(3), ..any }), []);
    let missing = TokenChoice { token: Some(9), ..any };
    assert_eq!(header.tokens_to_try(missing).unwrap_err().kind(), ErrorKind::BadOption);
}

#[test]
fn members_of_a_token_stay_in_the_order_in_which_they_were_written() {
    let (disk, mut header) = disk();
    let text = r#"{"type":"org.example","zeta":1,"keyslots":["0"],"alpha":{"z":[],"a":2},"b":3}"#;
    let other = token(&json!({ "type": "org.example", "keyslots": [] }));
    header.add_token(&disk, other, NewToken::default()).unwrap();
    header.add_token(&disk, token_from_json(text.as_bytes()).unwrap(), NewToken::default()).unwrap();
    header.remove_token(&disk, 0).unwrap();
    header.assign_token(&disk, 1, 0, true).unwrap();
    assert_eq!(serde_json::to_string(read(&disk).token(1).unwrap()).unwrap(), text);
    let whole = serde_json::to_string(read(&disk).json()).unwrap();
    let parts = ["keyslots", "tokens", "segments", "digests", "config"]
        .map(|part| whole.find(&format!("\"{part}\":{{")));
    assert!(parts.is_sorted() && parts[0] == Some(1), "as cryptsetup orders it: {whole}");
}

#[test]
fn of_members_written_twice_the_last_counts() {
    let text = br#"{"type":"clevis","keyslots":["0"],"jwe":{"ciphertext":"A","ciphertext":"B","tag":"x"}}"#;
    let token = token_from_json(text).unwrap();
    assert_eq!(token["jwe"], json!({ "ciphertext": "B", "tag": "x" }));
}
