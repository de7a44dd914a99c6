//! Segments that an attacker or a failing disk would write. Each row is one rule.

use serde_json::{Map, Value, json};
use underseal_volume::{ErrorKind, Header};

use crate::tampered::Outcome::{Activate, Opens, Read};
use crate::tampered::{Outcome, check, luks1, luks2, with_json, with_value, without};

#[test]
fn luks2_segments_that_break_a_rule_are_refused() {
    let bad = || Read(ErrorKind::BadHeader);
    let segment = |name: &str, value| with_value(&format!("/segments/0/{name}"), value);
    let second = |offset: &str, size: &str| {
        with_json(|m| {
            let mut twin = m["segments"]["0"].clone();
            m["segments"]["0"]["size"] = json!("4096");
            (twin["offset"], twin["size"]) = (json!(offset), json!(size));
            m["segments"]["1"] = twin;
            m["digests"]["0"]["segments"] = json!(["0", "1"]);
        })
    };
    let backup = |number: &str| {
        with_json(|m| {
            m["segments"][number] =
                json!({"type": "linear", "offset": "512", "size": "512", "flags": ["backup-x"]});
        })
    };
    let rows: Vec<(&str, Vec<u8>, Outcome)> = vec![
        (
            "none",
            with_json(|m| (m["segments"], m["digests"]["0"]["segments"]) = (json!({}), json!([]))),
            bad(),
        ),
        ("only a backup", segment("flags", json!(["backup-final"])), bad()),
        (
            "not from 0",
            with_json(|m| {
                let first = m["segments"]["0"].take();
                m["segments"] = json!({"1": first});
                m["digests"]["0"]["segments"] = json!(["1"]);
            }),
            bad(),
        ),
        ("type unknown", segment("type", json!("linear")), Activate(ErrorKind::Unsupported)),
        ("a drive's own", segment("type", json!("hw-opal-crypt")), Activate(ErrorKind::Unsupported)),
        (
            "cipher unknown",
            segment("encryption", json!("rot13-xts-plain64")),
            Activate(ErrorKind::Unsupported),
        ),
        ("cipher no text", segment("encryption", json!(7)), bad()),
        ("cipher empty", segment("encryption", json!("")), bad()),
        ("a backup behind a gap", backup("2"), bad()),
        ("a backup", backup("1"), Opens),
        (
            "a backup in between",
            with_json(|m| {
                let twin = m["segments"]["0"].clone();
                m["segments"]["0"]["flags"] = json!(["backup-final"]);
                m["segments"]["1"] = twin;
            }),
            bad(),
        ),
        ("cipher null", segment("encryption", json!("cipher_null-ecb")), Activate(ErrorKind::NullCipher)),
        (
            "cipher of another key",
            segment("encryption", json!("aes-cbc-essiv:sha256")),
            Activate(ErrorKind::BadHeader),
        ),
        (
            "tags without a word of their journal",
            segment("integrity", json!({"type": "hmac(sha256)"})),
            bad(),
        ),
        ("offset in the header", segment("offset", json!("4096")), bad()),
        ("offset 0", segment("offset", json!("0")), Activate(ErrorKind::BadLayout)),
        ("offset odd", segment("offset", json!("1048577")), bad()),
        ("offset beyond", segment("offset", json!("2097152")), Activate(ErrorKind::TooSmall)),
        (
            "offset at the end of 64 bits",
            segment("offset", json!("18446744073709551104")),
            Activate(ErrorKind::TooSmall),
        ),
        ("size 0", segment("size", json!("0")), bad()),
        ("size odd", segment("size", json!("512")), bad()),
        ("size word", segment("size", json!("static")), bad()),
        ("size beyond", segment("size", json!("2097152")), Activate(ErrorKind::TooSmall)),
        // No device has this length, but metadata may name it.
        ("size wraps", segment("size", json!("18446744073709547520")), Activate(ErrorKind::TooSmall)),
        ("size of 65 bits", segment("size", json!("18446744073709551616")), bad()),
        ("size fits", segment("size", json!("1048576")), Opens),
        ("sector 8192", segment("sector_size", json!(8192)), bad()),
        ("sector 0", segment("sector_size", json!(0)), bad()),
        ("sector 1000", segment("sector_size", json!(1000)), bad()),
        ("sector a string", segment("sector_size", json!("4096")), bad()),
        ("tweak odd", segment("iv_tweak", json!("1")), bad()),
        ("tweak missing", without("/segments/0/iv_tweak"), bad()),
        ("tweak large", segment("iv_tweak", json!("18446744073709551608")), Opens),
        ("two", second("1052672", "dynamic"), Opens),
        ("two overlap", second("1048576", "dynamic"), Activate(ErrorKind::BadLayout)),
        (
            "dynamic first",
            with_json(|m| {
                m["segments"]["1"] = m["segments"]["0"].clone();
                m["digests"]["0"]["segments"] = json!(["0", "1"]);
            }),
            bad(),
        ),
        (
            "of another digest",
            with_json(|m| {
                let mut twin = m["segments"]["0"].clone();
                m["segments"]["0"]["size"] = json!("4096");
                twin["offset"] = json!("1052672");
                m["segments"]["1"] = twin;
            }),
            Activate(ErrorKind::WrongKey),
        ),
        (
            "33 of them",
            with_json(|m| {
                let one = m["segments"]["0"].clone();
                let all: Map<String, Value> = (0..33).map(|i: u32| (i.to_string(), one.clone())).collect();
                m["segments"] = Value::Object(all);
            }),
            bad(),
        ),
    ];
    check(rows);
}

#[test]
fn the_size_of_the_data_is_known_where_every_segment_says_its_own() {
    let size = |image: &[u8]| Header::read(image).unwrap().data_size();
    assert_eq!(size(&luks2()), None);
    assert_eq!(size(&luks1()), None);
    let fixed = with_value("/segments/0/size", json!("524288"));
    assert_eq!(size(&fixed), Some(524_288));
    let two = |second: &str| {
        with_json(|metadata| {
            let mut other = metadata["segments"]["0"].clone();
            (other["offset"], other["size"]) = (json!("1572864"), json!(second));
            metadata["segments"]["0"]["size"] = json!("524288");
            metadata["segments"]["1"] = other;
            metadata["digests"]["0"]["segments"] = json!(["0", "1"]);
        })
    };
    assert_eq!(size(&two("4096")), Some(528_384));
    assert_eq!(size(&two("dynamic")), None);
}
