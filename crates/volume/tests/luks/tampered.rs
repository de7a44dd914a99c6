//! Headers that an attacker or a failing disk would write. Each row is one rule, with its own small
//! generator.

use std::sync::OnceLock;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use underseal_volume::{
    ActivateOptions, ErrorKind, FormatOptions, Header, KdfLimits, PbkdfKind, UnlockOptions, format,
};

use crate::support::*;

pub(crate) const COPY: usize = 16 << 10;
const BINARY: usize = 4096;

/// The last stage that an image reaches.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The image opens, without any finding.
    Opens,
    /// The image opens, and a copy of the header is reported as damaged.
    Damaged,
    Read(ErrorKind),
    Unlock(ErrorKind),
    Activate(ErrorKind),
}

use Outcome::{Activate, Damaged, Opens, Read, Unlock};

pub(crate) fn outcome(image: &[u8]) -> Outcome {
    outcome_with(image, image.len() as u64)
}

fn outcome_with(image: &[u8], data_size: u64) -> Outcome {
    let header = match Header::read(image) {
        Ok(header) => header,
        Err(e) => return Read(e.kind()),
    };
    let _ = (header.info().to_string(), header.uuid());
    // Low enough that a changed count of iterations does not delay the tests.
    let limits = KdfLimits { rounds: 1 << 22, ..KdfLimits::default() };
    let options = UnlockOptions { limits, ..UnlockOptions::default() };
    let opened = match header.unlock(image, &key(PASSPHRASE.as_bytes()), &options) {
        Ok(opened) => opened,
        Err(e) => return Unlock(e.kind()),
    };
    match header.activate(&opened.key, data_size, &ActivateOptions::default()) {
        Ok(_) if header.damage().is_some() => Damaged,
        Ok(_) => Opens,
        Err(e) => Activate(e.kind()),
    }
}

/// Returns a sound image of 2 MiB, with its data from 1 MiB on.
pub(crate) fn luks2() -> Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let mut options = FormatOptions { data_offset: Some(1 << 20), ..FormatOptions::luks2() };
        options.pbkdf.kind = PbkdfKind::Pbkdf2;
        made(options, 2 << 20)
    };
    IMAGE.get_or_init(make).clone()
}

pub(crate) fn luks1() -> Vec<u8> {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| made(FormatOptions::luks1(), 3 << 20)).clone()
}

fn made(options: FormatOptions, size: u64) -> Vec<u8> {
    let scratch = Scratch::new();
    let image = scratch.image("disk.img", size);
    format(&open(&image), size, &key(PASSPHRASE.as_bytes()), cheap(options)).unwrap();
    std::fs::read(&image).unwrap()
}

/// Corrects the checksum of the copy at `at`.
fn seal(image: &mut [u8], at: usize) {
    image[at + 448..at + 512].fill(0);
    let sum = Sha256::digest(&image[at..at + COPY]);
    image[at + 448..at + 480].copy_from_slice(&sum);
}

/// Changes the binary header of both copies, with correct checksums.
fn with_binary(change: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut image = luks2();
    for at in [0, COPY] {
        change(&mut image[at..at + BINARY]);
        seal(&mut image, at);
    }
    image
}

/// Puts this text into both JSON areas, with correct checksums.
fn with_text(text: &[u8]) -> Vec<u8> {
    let mut image = luks2();
    for at in [0, COPY] {
        let area = &mut image[at + BINARY..at + COPY];
        area.fill(0);
        area[..text.len()].copy_from_slice(text);
        seal(&mut image, at);
    }
    image
}

fn metadata() -> Value {
    let Header::Luks2(header) = Header::read(&luks2()[..]).unwrap() else { unreachable!() };
    Value::Object(header.json().clone())
}

/// Changes the metadata of both copies, with correct checksums.
pub(crate) fn with_json(change: impl Fn(&mut Value)) -> Vec<u8> {
    let mut metadata = metadata();
    change(&mut metadata);
    with_text(&serde_json::to_vec(&metadata).unwrap())
}

/// Sets a value, and creates its missing parents.
pub(crate) fn with_value(path: &str, value: Value) -> Vec<u8> {
    with_json(|metadata| {
        let (parent, name) = path.rsplit_once('/').unwrap();
        let parent = metadata.pointer_mut(parent).unwrap_or_else(|| panic!("{parent}"));
        parent.as_object_mut().unwrap().insert(name.into(), value.clone());
    })
}

pub(crate) fn without(path: &str) -> Vec<u8> {
    with_json(|metadata| {
        let (parent, name) = path.rsplit_once('/').unwrap();
        let gone = metadata.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
        assert!(gone.is_some(), "{path}");
    })
}

#[test]
fn the_untouched_images_open() {
    assert_eq!(outcome(&luks1()), Opens);
    assert_eq!(outcome(&luks2()), Opens);
    assert_eq!(outcome(&with_binary(|_| ())), Opens, "the generator's checksums are right");
    assert_eq!(outcome(&with_json(|_| ())), Opens, "the generator's metadata is right");
}

#[test]
fn luks2_metadata_that_breaks_a_rule_is_refused() {
    let bad = || Read(ErrorKind::BadHeader);
    let slot = "/keyslots/0";
    let rows: Vec<(&str, Vec<u8>, Outcome)> = vec![
        // Every part must exist and have its type.
        ("no keyslots", without("/keyslots"), bad()),
        ("no tokens", without("/tokens"), bad()),
        ("no segments", without("/segments"), bad()),
        ("no digests", without("/digests"), bad()),
        ("no config", without("/config"), bad()),
        ("keyslots an array", with_value("/keyslots", json!([])), bad()),
        ("a keyslot a number", with_value("/keyslots/0", json!(1)), bad()),
        ("a keyslot's name", with_value("/keyslots/x", json!({})), bad()),
        ("a keyslot's number", with_value("/keyslots/32", json!({})), bad()),
        ("a leading zero", with_value("/keyslots/01", json!({})), bad()),
        ("a sign", with_value("/keyslots/+1", json!({})), bad()),
        ("no keyslot type", without("/keyslots/0/type"), bad()),
        ("no area", without("/keyslots/0/area"), bad()),
        ("no kdf", without("/keyslots/0/kdf"), bad()),
        ("no af", without("/keyslots/0/af"), bad()),
        ("key size a string", with_value("/keyslots/0/key_size", json!("64")), bad()),
        ("key size 0", with_value("/keyslots/0/key_size", json!(0)), bad()),
        ("key size negative", with_value("/keyslots/0/key_size", json!(-1)), bad()),
        ("key size huge", with_value("/keyslots/0/key_size", json!(1u64 << 40)), bad()),
        ("key size fractional", with_value("/keyslots/0/key_size", json!(64.5)), bad()),
        ("priority 3", with_value("/keyslots/0/priority", json!(3)), bad()),
        ("stripes 1", with_value("/keyslots/0/af/stripes", json!(1)), bad()),
        ("stripes huge", with_value("/keyslots/0/af/stripes", json!(u64::MAX)), bad()),
        // Offsets and sizes are strings of 64 bits.
        ("offset a number", with_value("/keyslots/0/area/offset", json!(32768)), bad()),
        ("offset signed", with_value("/keyslots/0/area/offset", json!("-32768")), bad()),
        ("offset spaced", with_value("/keyslots/0/area/offset", json!(" 32768")), bad()),
        ("offset hex", with_value("/keyslots/0/area/offset", json!("0x8000")), bad()),
        ("offset empty", with_value("/keyslots/0/area/offset", json!("")), bad()),
        ("offset of 65 bits", with_value("/keyslots/0/area/offset", json!("18446744073709551616")), bad()),
        ("offset at the end", with_value("/keyslots/0/area/offset", json!("18446744073709551615")), bad()),
        ("area in the header", with_value("/keyslots/0/area/offset", json!("4096")), bad()),
        ("area in the data", with_value("/keyslots/0/area/offset", json!("1048576")), bad()),
        ("area too small", with_value("/keyslots/0/area/size", json!("4096")), bad()),
        ("area huge", with_value("/keyslots/0/area/size", json!("18446744073709551615")), bad()),
        ("wrapping key 0", with_value("/keyslots/0/area/key_size", json!(0)), bad()),
        (
            "wrapping key odd",
            with_value("/keyslots/0/area/key_size", json!(63)),
            Unlock(ErrorKind::BadHeader),
        ),
        (
            "areas overlap",
            with_json(|m| {
                let mut twin = m.pointer(slot).unwrap().clone();
                twin["area"]["offset"] = json!("36864");
                m["keyslots"]["1"] = twin;
            }),
            bad(),
        ),
        ("areas are one", with_json(|m| m["keyslots"]["1"] = m["keyslots"]["0"].clone()), bad()),
        // Key derivation.
        ("salt no base64", with_value("/keyslots/0/kdf/salt", json!("not base64!")), bad()),
        ("salt empty", with_value("/keyslots/0/kdf/salt", json!("")), bad()),
        ("iterations 0", with_value("/keyslots/0/kdf/iterations", json!(0)), bad()),
        ("iterations 2^32", with_value("/keyslots/0/kdf/iterations", json!(1u64 << 32)), bad()),
        (
            "iterations",
            with_value("/keyslots/0/kdf/iterations", json!(u32::MAX)),
            Unlock(ErrorKind::TooCostly),
        ),
        (
            "digest iterations",
            with_value("/digests/0/iterations", json!(u32::MAX)),
            Unlock(ErrorKind::TooCostly),
        ),
        (
            "argon2 memory",
            with_value(&format!("{slot}/kdf"), argon2(4, u32::MAX, 1)),
            Unlock(ErrorKind::TooCostly),
        ),
        (
            "argon2 passes",
            with_value(&format!("{slot}/kdf"), argon2(u32::MAX, 1024, 1)),
            Unlock(ErrorKind::TooCostly),
        ),
        (
            "argon2 lanes",
            with_value(&format!("{slot}/kdf"), argon2(4, 1 << 20, 100)),
            Unlock(ErrorKind::TooCostly),
        ),
        ("argon2 too little", with_value(&format!("{slot}/kdf"), argon2(4, 8, 4)), bad()),
        ("argon2 no passes", with_value(&format!("{slot}/kdf"), argon2(0, 1024, 1)), bad()),
        ("argon2 no lanes", with_value(&format!("{slot}/kdf"), argon2(4, 1024, 0)), bad()),
        // Unknown values are kept, and matter only when they are needed.
        ("kdf unknown", with_value("/keyslots/0/kdf/type", json!("scrypt")), Unlock(ErrorKind::Unsupported)),
        (
            "kdf hash unknown",
            with_value("/keyslots/0/kdf/hash", json!("md5")),
            Unlock(ErrorKind::Unsupported),
        ),
        ("af hash unknown", with_value("/keyslots/0/af/hash", json!("md5")), Unlock(ErrorKind::Unsupported)),
        ("slot type unknown", with_value("/keyslots/0/type", json!("luks3")), Unlock(ErrorKind::Unsupported)),
        (
            "slot cipher",
            with_value("/keyslots/0/area/encryption", json!("rot13-x-y")),
            Unlock(ErrorKind::Unsupported),
        ),
        (
            "slot null",
            with_value("/keyslots/0/area/encryption", json!("cipher_null-ecb")),
            Unlock(ErrorKind::NullCipher),
        ),
        ("digest type", with_value("/digests/0/type", json!("hmac")), Unlock(ErrorKind::Unsupported)),
        ("another slot unknown", with_value("/keyslots/1", other_slot()), Opens),
        (
            "another token",
            with_value("/tokens/0", json!({"type": "x", "keyslots": [], "y": {"z": 1.5}})),
            Opens,
        ),
        // Digests.
        ("digest empty", with_value("/digests/0/digest", json!("")), bad()),
        ("digest short", with_value("/digests/0/digest", json!("AAAAAAAAAAAAAAAAAAAAAA==")), bad()),
        (
            "digest wrong",
            with_value("/digests/0/digest", json!("A".repeat(43) + "=")),
            Unlock(ErrorKind::WrongPassphrase),
        ),
        ("digest of no slot", with_value("/digests/0/keyslots", json!(["7"])), bad()),
        ("digest of no segment", with_value("/digests/0/segments", json!(["7"])), bad()),
        ("digest twice", with_value("/digests/0/keyslots", json!(["0", "0"])), bad()),
        ("a slot of no digest", with_value("/digests/0/keyslots", json!([])), bad()),
        ("two digests", with_json(|m| m["digests"]["1"] = m["digests"]["0"].clone()), bad()),
        ("references as numbers", with_value("/digests/0/keyslots", json!([0])), bad()),
        ("token of no slot", with_value("/tokens/0", json!({"type": "x", "keyslots": ["9"]})), bad()),
        ("digest of nothing", with_value("/digests/0/segments", json!([])), Unlock(ErrorKind::NoKeyslot)),
        (
            "no slots",
            with_json(|m| (m["keyslots"], m["digests"]["0"]["keyslots"]) = (json!({}), json!([]))),
            Unlock(ErrorKind::NoKeyslot),
        ),
        ("slots all ignored", with_value("/keyslots/0/priority", json!(0)), Unlock(ErrorKind::NoKeyslot)),
        // Config.
        ("json size", with_value("/config/json_size", json!("16384")), bad()),
        ("keyslots size odd", with_value("/config/keyslots_size", json!("4097")), bad()),
        ("keyslots size huge", with_value("/config/keyslots_size", json!("18446744073709547520")), bad()),
        ("keyslots over data", with_value("/config/keyslots_size", json!("2097152")), bad()),
        ("flags an object", with_value("/config/flags", json!({})), bad()),
        ("flag unknown", with_value("/config/flags", json!(["no-such-flag"])), Opens),
        (
            "requirements",
            with_value("/config/requirements", json!({"mandatory": ["x"]})),
            Activate(ErrorKind::Unsupported),
        ),
        (
            "reencryption",
            with_value("/config/requirements", json!({"mandatory": ["online-reencrypt-v2"]})),
            Activate(ErrorKind::BadHeader),
        ),
        ("requirements odd", with_value("/config/requirements", json!({"mandatory": "x"})), bad()),
        ("requirements none", with_value("/config/requirements", json!({"mandatory": []})), Opens),
    ];
    check(rows);
}

#[test]
fn luks2_text_that_is_no_sound_json_is_refused() {
    let good = serde_json::to_string(&metadata()).unwrap();
    let inside = |extra: &str| format!("{{{extra},{}", &good[1..]).into_bytes();
    let bad = || Read(ErrorKind::BadHeader);
    let rows: Vec<(&str, Vec<u8>, Outcome)> = vec![
        ("empty", with_text(b""), bad()),
        ("not JSON", with_text(b"{hello}"), bad()),
        ("cut off", with_text(&good.as_bytes()[..good.len() - 1]), bad()),
        ("an array", with_text(format!("[{good}]").as_bytes()), bad()),
        ("leading space", with_text(format!(" {good}").as_bytes()), bad()),
        ("something after", with_text(format!("{good}{good}").as_bytes()), bad()),
        ("hidden after the NUL", with_text(format!("{good}\0{good}").as_bytes()), bad()),
        ("no NUL", with_text(&[good.as_bytes(), &vec![b' '; COPY - BINARY - good.len()]].concat()), bad()),
        ("a name twice", with_text(&inside(r#""config":{}"#)), bad()),
        (
            "a name twice inside",
            with_text(good.replacen(r#""type":"crypt""#, r#""type":"crypt","type":"crypt""#, 1).as_bytes()),
            bad(),
        ),
        ("deep", with_text(&inside(&format!(r#""x":{}{}"#, "[".repeat(5000), "]".repeat(5000)))), bad()),
        ("deep, unclosed", with_text("{\"x\":".repeat(2000).as_bytes()), bad()),
        ("a huge number", with_text(&inside(r#""x":1e400"#)), bad()),
        (
            "no UTF-8",
            with_text(
                &inside("\"x\":\"y\"").iter().map(|&b| if b == b'y' { 0xff } else { b }).collect::<Vec<_>>(),
            ),
            bad(),
        ),
        ("more names", with_text(&inside(r#""x":{"y":[1,2.5,"z",null,true]}"#)), Opens),
    ];
    check(rows);
}

#[test]
fn luks2_binary_headers_that_break_a_rule_are_refused() {
    let bad = || Read(ErrorKind::BadHeader);
    let number =
        |at: usize, value: u64| with_binary(move |b| b[at..at + 8].copy_from_slice(&value.to_be_bytes()));
    let text = |at: usize, value: &'static [u8]| {
        with_binary(move |b| b[at..at + value.len()].copy_from_slice(value))
    };
    let rows: Vec<(&str, Vec<u8>, Outcome)> = vec![
        ("version 0", with_binary(|b| b[7] = 0), bad()),
        ("version 3", with_binary(|b| b[7] = 3), bad()),
        ("size 0", number(8, 0), bad()),
        ("size 4096", number(8, 4096), bad()),
        ("size odd", number(8, 20_000), bad()),
        ("size huge", number(8, u64::MAX), bad()),
        ("size of another place", number(8, 32 << 10), bad()),
        ("standing elsewhere", number(256, 4096), bad()),
        ("checksum unknown", text(72, b"crc32\0\0"), bad()),
        ("checksum endless", text(72, &[b'a'; 32]), bad()),
        ("label endless", text(24, &[b'a'; 48]), bad()),
        ("label of another encoding", text(24, b"\xff\xfe\0"), Opens),
        ("UUID endless", text(168, &[b'1'; 40]), bad()),
        ("UUID no UUID", text(168, b"not-a-uuid\0"), Opens),
        ("seqid highest", number(16, u64::MAX), Opens),
    ];
    check(rows);
}

pub(crate) fn check(rows: Vec<(&str, Vec<u8>, Outcome)>) {
    let wrong: Vec<String> = rows
        .into_iter()
        .filter_map(|(name, image, want)| {
            let found = outcome(&image);
            (found != want).then(|| format!("{name}: {found:?}, not {want:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn argon2(passes: u32, memory: u32, lanes: u32) -> Value {
    json!({"type": "argon2id", "time": passes, "memory": memory, "cpus": lanes, "salt": "AAAAAAAAAAAAAAAAAAAAAA=="})
}

fn other_slot() -> Value {
    json!({"type": "fido", "key_size": 64, "area": {"type": "raw", "offset": "290816", "size": "4096"}})
}
