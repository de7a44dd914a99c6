//! All BitLocker volumes of the manifest.

use serde_json::Value;
use underseal_cipher::Key;
use underseal_formats::bitlk::{Bitlk, Secret, Unlocked};
use underseal_formats::{Error, ErrorKind, OpenedFormat};
use underseal_volume::KdfLimits;

use crate::support::{check_writes, entries, file, image, read_all, sha256, text, texts};

/// A secret that owns its bytes.
enum Given {
    Clear,
    Passphrase(Key),
    StartupKey(Key),
    VolumeKey(Key),
}

impl Given {
    fn unlock(&self, volume: &Bitlk) -> Result<Unlocked, Error> {
        let secret = match self {
            Self::Clear => Secret::Clear,
            Self::Passphrase(key) => Secret::Passphrase(key),
            Self::StartupKey(key) => Secret::StartupKey(key),
            Self::VolumeKey(key) => Secret::VolumeKey(key),
        };
        volume.unlock(&secret, &KdfLimits::default())
    }
}

/// All secrets of an entry but the volume key.
fn secrets(entry: &Value) -> Vec<Given> {
    let passphrase = |text: &str| Given::Passphrase(Key::new(text.as_bytes()).unwrap());
    let mut all: Vec<_> = text(entry, "passphrase").map(passphrase).into_iter().collect();
    all.extend(texts(entry, "recovery").iter().map(|text| passphrase(text)));
    let startup = |name: &String| Given::StartupKey(Key::new(&file(name)).unwrap());
    all.extend(texts(entry, "startup_keys").iter().map(startup));
    if entry["clear_key"] == true {
        all.push(Given::Clear);
    }
    all
}

fn open(image: &[u8], secret: &Given) -> Result<OpenedFormat, Error> {
    let volume = Bitlk::read(image)?;
    volume.activate(secret.unlock(&volume)?.key)
}

#[test]
fn every_volume_opens_with_each_of_its_secrets() {
    let mut opened_with = 0;
    for entry in entries("bitlk").iter().filter(|entry| entry["expect"] == "open") {
        let name = &entry["image"];
        let image = image(entry);
        let mut given = secrets(entry);
        assert!(!given.is_empty(), "{name}");
        given.push(Given::VolumeKey(
            Key::new(&hex::decode(text(entry, "volume_key").unwrap()).unwrap()).unwrap(),
        ));
        for secret in given {
            let opened = open(&image, &secret).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(opened.read_only, None, "{name}");
            assert_eq!(
                hex::encode(opened.volume_key.as_bytes()),
                text(entry, "volume_key").unwrap(),
                "{name}"
            );
            let plaintext = read_all(&opened, &[&image]);
            assert_eq!(Some(plaintext.len() as u64), entry["plaintext_size"].as_u64(), "{name}");
            assert_eq!(sha256(&plaintext), text(entry, "plaintext_sha256").unwrap(), "{name}");
            check_writes(entry, &opened, image.clone());
            let guards =
                opened.guards.iter().map(|guard| (guard.range.start, guard.range.end - guard.range.start));
            let mut expected: Vec<_> = entry["zero_ranges"].as_array().unwrap().iter().collect();
            expected.sort_by_key(|range| range[0].as_u64());
            let expected =
                expected.iter().map(|range| (range[0].as_u64().unwrap(), range[1].as_u64().unwrap()));
            assert!(guards.eq(expected), "{name}");
            opened_with += 1;
        }
    }
    assert_eq!(opened_with, 70, "secrets that opened a volume");
}

/// Each entry that must be refused: the kind of the error, and words of its reason.
const REFUSED: [(&str, ErrorKind, &str); 15] = [
    ("bl-tpm-only.img", ErrorKind::NoProtector, "TPM of the machine"),
    (
        "bl-crc-all.img",
        ErrorKind::BadHeader,
        "none of the three metadata blocks is valid (0: wrong CRC-32; 1:",
    ),
    ("bl-forged.img", ErrorKind::BadHeader, "forged"),
    ("bl-misplaced.img", ErrorKind::BadHeader, "says byte"),
    ("bl-eow.img", ErrorKind::Unsupported, "encrypt-on-write"),
    ("bl-unknown-guid.img", ErrorKind::Unsupported, "unknown kind"),
    ("bl-switching.img", ErrorKind::Unsupported, "encryption or decryption runs"),
    ("bl-version1.img", ErrorKind::Unsupported, "Vista"),
    ("bl-plain-ntfs.img", ErrorKind::NoHeader, "plain NTFS"),
    ("bl-sector-1024.img", ErrorKind::BadHeader, "sector size 1024"),
    ("wrong password", ErrorKind::WrongPassphrase, "no protector opens with this passphrase"),
    ("a recovery password of another volume", ErrorKind::WrongPassphrase, "no protector opens"),
    ("a group that 11 does not divide: no recovery password at all", ErrorKind::WrongPassphrase, "group 8"),
    ("a group above 11 * 65535", ErrorKind::WrongPassphrase, "group 8"),
    ("the startup key of another volume", ErrorKind::WrongPassphrase, "startup key"),
];

#[test]
fn what_must_be_refused_is_refused_with_its_reason() {
    let mut refused = Vec::new();
    for entry in entries("bitlk").iter().filter(|entry| entry["expect"] == "refuse") {
        let image_name = text(entry, "image").unwrap();
        if image_name == "bl-paused.img" {
            continue;
        }
        let reason = text(entry, "reason").unwrap();
        let case = if entry["negative"] == true { reason } else { image_name };
        let (name, kind, words) = *REFUSED.iter().find(|(name, ..)| *name == case).expect(case);
        let image = image(entry);
        let mut given = secrets(entry);
        if given.is_empty() {
            given.push(Given::Passphrase(Key::new(b"some password").unwrap()));
        }
        for secret in given {
            let error = open(&image, &secret).expect_err(case);
            assert_eq!(error.kind(), kind, "{case}: {error}");
            assert!(error.to_string().contains(words), "{case}: {error}");
        }
        refused.push(name);
    }
    refused.sort_unstable();
    let mut all = REFUSED.map(|(name, ..)| name);
    all.sort_unstable();
    assert_eq!(refused, all);
}

#[test]
fn a_paused_volume_is_read_only_and_plaintext_from_where_encryption_stopped() {
    let entries = entries("bitlk");
    let entry = entries.iter().find(|entry| entry["image"] == "bl-paused.img").unwrap();
    let image = image(entry);
    for secret in secrets(entry) {
        let opened = open(&image, &secret).unwrap();
        assert!(opened.read_only.unwrap().contains("paused"));
        assert_eq!(sha256(&read_all(&opened, &[&image])), text(entry, "plaintext_sha256").unwrap());
    }
}

/// A volume with an unsupported state still reports whether a secret is right.
#[test]
fn secrets_are_checked_and_told_apart_before_the_state_is() {
    for name in ["bl-switching.img", "bl-eow.img", "bl-unknown-guid.img"] {
        let entries = entries("bitlk");
        let entry = entries.iter().find(|entry| entry["image"] == name).unwrap();
        let volume = Bitlk::read(image(entry).as_slice()).unwrap();
        let key = secrets(entry)[0].unlock(&volume).unwrap().key;
        assert_eq!(hex::encode(key.as_bytes()), text(entry, "volume_key").unwrap());
    }
}

/// A volume whose only protector needs the TPM opens with the volume key, and with the VMK, whose
/// tag is checked.
#[test]
fn a_volume_key_opens_what_no_secret_does() {
    let entries = entries("bitlk");
    let entry = entries.iter().find(|entry| entry["image"] == "bl-tpm-only.img").unwrap();
    let image = image(entry);
    let key = Key::new(&hex::decode(text(entry, "volume_key").unwrap()).unwrap()).unwrap();
    let opened = open(&image, &Given::VolumeKey(key)).unwrap();
    assert_eq!(sha256(&read_all(&opened, &[&image])), text(entry, "plaintext_sha256").unwrap());
    let error = open(&image, &Given::VolumeKey(Key::new(&[1; 33]).unwrap())).unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("33 were given")), (ErrorKind::BadOption, true));
}

#[test]
fn facts_name_protectors_times_and_why_some_cannot_be_used() {
    let of = |name: &str| {
        let entries = entries("bitlk");
        let entry = entries.iter().find(|entry| entry["image"] == name).unwrap();
        Bitlk::read(image(entry).as_slice()).unwrap().facts().to_string()
    };
    let facts = of("bl-tpm-pin-recovery.img");
    for line in [
        "Created:        2020-01-11 00:00:00 UTC",
        "Description:    MAKER volume 24/11/2026",
        "State:          encrypted",
        "Method:         XTS-AES 128",
        "recovery password {",
        "TPM and PIN {",
        "cannot be used here: its key lies in the TPM of the machine that encrypted the volume",
    ] {
        assert!(facts.contains(line), "{line}\n{facts}");
    }
    assert!(of("bl-paused.img").contains("State:          encryption or decryption paused"));
    assert!(of("bl-crc-two.img").contains("65536 bytes, read"));
    assert!(of("bl-togo.img").contains("BitLocker To Go"));
}

/// Sector 0 is under no seal; a wrong size of sectors would show noise, and writes would destroy.
#[test]
fn a_sector_size_that_the_sealed_metadata_contradict_is_refused() {
    for (name, size) in [("bl-8002-4096.img", 512u16), ("bl-8004-4096.img", 0), ("bl-8004-512.img", 4096)] {
        let mut image = file(name);
        image[11..13].copy_from_slice(&size.to_le_bytes());
        let error = Bitlk::read(image.as_slice()).unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("sector 0 says")), (ErrorKind::BadHeader, true));
    }
}
