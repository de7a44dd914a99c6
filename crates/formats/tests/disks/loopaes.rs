//! All loop-AES volumes of the manifest.

use serde_json::Value;
use underseal_cipher::Key;
use underseal_formats::loopaes::{KeyFile, Options, open};
use underseal_formats::{Error, ErrorKind, OpenedFormat};

use crate::support::{check_writes, entries, file, image, read_all, sha256, text};

fn opened(entry: &Value, size: usize) -> Result<OpenedFormat, Error> {
    let bytes = Key::new(&file(text(entry, "keyfile").unwrap())).unwrap();
    let number = |name: &str| entry[name].as_u64();
    let options = Options {
        key_bits: u32::try_from(number("key_bits").unwrap()).unwrap(),
        hash: text(entry, "hash").map(|hash| hash.parse().unwrap()),
        offset: number("offset_sectors").unwrap_or(0),
        skip: number("skip_sectors"),
        ..Options::default()
    };
    open(&KeyFile::parse(&bytes)?, size as u64, &options)
}

#[test]
fn every_volume_opens_with_its_key_file() {
    let mut count = 0;
    for entry in entries("loopaes").iter().filter(|entry| entry["expect"] == "open") {
        let image = image(entry);
        let opened = opened(entry, image.len()).unwrap();
        let plaintext = read_all(&opened, &[&image]);
        assert_eq!(Some(plaintext.len() as u64), entry["plaintext_size"].as_u64());
        assert_eq!(sha256(&plaintext), text(entry, "plaintext_sha256").unwrap(), "{}", entry["image"]);
        check_writes(entry, &opened, image);
        count += 1;
    }
    assert_eq!(count, 15);
}

#[test]
fn key_files_that_are_none_are_refused_with_the_reason() {
    let expected = [
        ("loop-bad-unterminated.key", "last line has no end"),
        ("loop-bad-two.key", "2 lines"),
        ("loop-bad-lengths.key", "one length"),
        ("loop-bad-sixtysix.key", "more than 65"),
        ("loop-bad-empty.key", "empty"),
        ("loop-bad-pgp.key", "GPG"),
    ];
    let mut count = 0;
    for entry in entries("loopaes").iter().filter(|entry| entry["expect"] == "refuse") {
        let key_file = text(entry, "keyfile").unwrap();
        let (_, words) = expected.iter().find(|(name, _)| *name == key_file).expect(key_file);
        let error = opened(entry, 33280).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadOption);
        assert!(error.to_string().contains(words), "{key_file}: {error}");
        count += 1;
    }
    assert_eq!(count, expected.len());
}
