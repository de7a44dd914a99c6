//! TPM fields of a header, and the authorization value of a PIN. `crates/underseal/tests/token` has
//! a TPM.

use super::*;

fn token() -> Token {
    let blob = Base64::encode_string(&[0, 2, 1, 2, 0, 3, 4, 5, 6]);
    crate::object(json!({
        "type": "systemd-tpm2", "keyslots": [], "tpm2-blob": blob, "tpm2-pcrs": [7, 0, 7],
        "tpm2-pcr-bank": "sha256", "tpm2-primary-alg": "rsa", "tpm2-policy-hash": "00".repeat(32), "tpm2-pin": true,
    }))
}

#[test]
fn a_token_is_read_as_systemd_writes_it() {
    let token = token();
    let found = Found::parse(Members(&token)).unwrap();
    assert_eq!((&found.policy.pcrs[..], found.policy.pin), (&[0, 7][..], true));
    assert_eq!(found.parent, Parent::Primary(Primary::Rsa));
    assert_eq!(found.sealed.to_bytes(), [0, 2, 1, 2, 0, 3, 4, 5, 6]);
    // A machine without a TPM needs no PIN.
    let refused = open(&token, None, &Options::default()).unwrap_err().kind();
    assert!([ErrorKind::PinWanted, ErrorKind::NoHardware].contains(&refused), "{refused:?}");
    // systemd 254 stores a number, a name, and more.
    let srk = [&[0x81, 0, 0, 1, 0, 34, 0, 11][..], &[7; 32], &[0, 0, 0, 1, 0, 0]].concat();
    let mut stored = token.clone();
    stored.insert("tpm2_srk".into(), Base64::encode_string(&srk).into());
    let name = [&[0, 11][..], &[7; 32]].concat();
    assert_eq!(Found::parse(Members(&stored)).unwrap().parent, Parent::Stored { handle: 0x8100_0001, name });
}

#[test]
fn what_is_malformed_or_not_known_is_refused_and_named() {
    for (name, value) in [
        ("tpm2-blob", json!("!")),
        ("tpm2-blob", json!("AAI=")),
        ("tpm2-blob", json!(["AAI="])),
        ("tpm2-blob", json!(Base64::encode_string(&[0, 0, 0, 0, 1]))),
        ("tpm2-pcrs", json!([24])),
        ("tpm2-pcrs", json!(7)),
        ("tpm2-pcr-bank", json!("md5")),
        ("tpm2-primary-alg", json!("dsa")),
        ("tpm2-policy-hash", json!("00")),
        ("tpm2-policy-hash", json!(["00", "00"])),
        ("tpm2-pin", json!("yes")),
        ("tpm2_srk", json!("AAAA")),
        ("tpm2_pcrlock", json!(true)),
        ("tpm2_pubkey", json!("AAAA")),
    ] {
        let mut token = token();
        token.insert(name.into(), value);
        let error = open(&token, Some(&Key::new(b"1").unwrap()), &Options::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotUsable, "{name}");
        assert!(error.to_string().contains(name), "{name}: {error}");
    }
}

#[test]
fn the_value_of_a_pin_is_a_hash_without_zeros_at_its_end() {
    let auth = |pin: &str, salt: Option<&[u8]>| auth_value(&Key::new(pin.as_bytes()).unwrap(), salt).unwrap();
    assert_eq!(auth("1234", None).as_bytes(), sha256(&[b"1234"]));
    let zero = (0..).map(|n| n.to_string()).find(|pin| sha256(&[pin.as_bytes()])[31] == 0).unwrap();
    assert_eq!(auth(&zero, None).as_bytes(), &sha256(&[zero.as_bytes()])[..31]);
    let mut salted = [0; 32];
    pbkdf2::pbkdf2::<Hmac<Sha256>>(b"1234", b"salt", 10_000, &mut salted).unwrap();
    assert_eq!(auth("1234", Some(b"salt")).as_bytes(), sha256(&[Base64::encode_string(&salted).as_bytes()]));
}
