//! Tokens: cryptsetup's decision on sound tokens, and both programs on one header.

use serde_json::{Value, json};
use underseal_volume::luks2::{NewToken, token_from_json};
use underseal_volume::{FormatOptions, Header, UnlockOptions, format};

use crate::support::*;
use crate::tampered::{luks2, with_value};

#[test]
fn a_header_with_an_odd_token_is_taken_or_refused_as_cryptsetup_does() {
    let scratch = Scratch::new();
    let token = |kind: Value, slots: Value| json!({ "type": kind, "keyslots": slots });
    let mut taken = 0;
    for (path, value) in [
        ("/tokens/0", token(json!("x"), json!([]))),
        ("/tokens/0", token(json!("x"), json!(["0", "0"]))),
        ("/tokens/31", json!({ "type": "x", "keyslots": ["0"], "y": { "z": [1.5, null, "\u{4e2d}\n"] } })),
        ("/tokens/5", token(json!("luks2-foo"), json!([]))),
        ("/tokens/0", json!({ "type": "luks2-keyring", "keyslots": ["0"], "key_description": "", "x": 1 })),
        ("/tokens/0", token(json!("luks2-keyring"), json!(["0"]))),
        ("/tokens/0", token(json!(""), json!(["0"]))),
        ("/tokens/0", token(json!(7), json!(["0"]))),
        ("/tokens/0", json!({ "keyslots": ["0"] })),
        ("/tokens/0", json!({ "type": "x" })),
        ("/tokens/0", token(json!("x"), json!({}))),
        ("/tokens/0", token(json!("x"), json!([0]))),
        ("/tokens/0", token(json!("x"), json!(["5"]))),
        ("/tokens/0", json!([])),
        ("/tokens/first", token(json!("x"), json!([]))),
    ] {
        let image = with_value(path, value.clone());
        let name = scratch.file("odd.img", &image);
        let theirs = std::process::Command::new("cryptsetup").arg("luksDump").arg(&name).output().unwrap();
        let ours = Header::read(&image[..]);
        assert_eq!(ours.is_ok(), theirs.status.success(), "{path} {value}: {ours:?}");
        if let Ok(header) = ours {
            header.unlock(&image[..], &key(PASSPHRASE.as_bytes()), &UnlockOptions::default()).unwrap();
            taken += 1;
        }
    }
    assert_eq!(taken, 6);
    // cryptsetup prints this token, and opening it ends in an assertion in cryptsetup.
    let beyond = with_value("/tokens/32", token(json!("x"), json!([])));
    assert!(Header::read(&beyond[..]).is_err());
    assert!(Header::read(&luks2()[..]).is_ok());
}

#[test]
fn an_import_is_refused_where_cryptsetup_refuses_it_and_each_reads_what_the_other_imported() {
    let scratch = Scratch::new();
    let image = scratch.image("disk.img", 20 << 20);
    format(&open(&image), 20 << 20, &key(b"a"), cheap(FormatOptions::luks2())).unwrap();
    let name = image.to_str().unwrap();
    let nested = |depth| json!({ "type": "x", "keyslots": [], "d": (0..depth).fold(json!(1), |inner, _| json!([inner])) });
    let mut both = 0;
    for token in [
        json!({ "type": "luks2-keyring", "keyslots": ["0"], "key_description": "a b" }),
        json!({ "type": "org.example", "keyslots": [], "x": { "y": [1, 2.5, true] } }),
        json!({ "type": "luks2-keyring", "keyslots": ["0"], "key_description": "" }),
        json!({ "type": "luks2-keyring", "keyslots": ["0"], "key_description": "a", "more": 1 }),
        json!({ "type": "luks2-foo", "keyslots": [] }),
        json!({ "type": "x", "keyslots": ["3"] }),
        json!({ "type": "", "keyslots": [] }),
        nested(28),
    ] {
        let text = serde_json::to_vec(&token).unwrap();
        let file = scratch.file("token.json", &text);
        let arguments = ["token", "import", "--json-file", file.to_str().unwrap(), name];
        let theirs = std::process::Command::new("cryptsetup").args(arguments).output().unwrap();
        let Header::Luks2(mut header) = Header::read(&open(&image)).unwrap() else { unreachable!() };
        let ours = token_from_json(&text)
            .and_then(|parsed| header.add_token(&open(&image), parsed, NewToken::default()));
        assert_eq!(ours.is_ok(), theirs.status.success(), "{token}: {ours:?}");
        let Ok(number) = ours else { continue };
        both += 1;
        // cryptsetup's token was added just before underseal's.
        assert_eq!(header.token(number - 1).unwrap(), token.as_object().unwrap());
        let exported = cryptsetup(&["token", "export", "--token-id", &number.to_string(), name]);
        assert_eq!(serde_json::from_str::<Value>(&exported).unwrap(), token);
    }
    assert_eq!(both, 3);
    cryptsetup(&["luksDump", name]);
    // cryptsetup would take the header for none.
    for (token, why) in [
        (nested(29), "nested deeper"),
        (json!({ "type": "x", "keyslots": ["0"], "keyslots\0": 5 }), "a NUL in the name"),
        (json!({ "type": "x", "keyslots": [], "x": [{ "\0": 5 }] }), "a NUL in the name"),
    ] {
        let refused = token_from_json(&serde_json::to_vec(&token).unwrap()).unwrap_err();
        assert!(refused.to_string().contains(why), "{token}: {refused}");
    }
}
