//! The journal's protection: MACs and ciphers.

use underseal_integrity::{Disk, ErrorKind, JournalCrypt, JournalFormat, JournalRound, OpenSettings, open};

use crate::support::*;

/// Volumes that were left with blocks in a journal with a MAC and without a cipher.
const WITH_MAC: &str = "int-a-killed-journal-4096-hmac-mac";

#[test]
fn a_section_whose_mac_alone_is_wrong_is_refused_and_nothing_is_changed() {
    let options = options(images()[WITH_MAC]["table"].as_str().unwrap());
    let image = unpack(WITH_MAC);
    let sound = open(&image.disks(), &options).unwrap();
    let replayed = sound.replayed.unwrap();
    assert!(replayed.entries > 0, "the journal is empty");
    // The first byte of the MAC, which comes before the commit id of the section's first sector.
    let section = sound.geometry.section_offset(replayed.plan.order[0]);
    let mut bytes = unpack(WITH_MAC).data.bytes();
    bytes[usize::try_from(section).unwrap() + 512 - 8 - 8] ^= 1;
    let forged = Image { data: Memory::new(bytes.clone()), meta: None };
    assert_eq!(open(&forged.disks(), &options).unwrap_err().kind(), ErrorKind::Integrity);
    assert!(forged.data.bytes() == bytes, "the volume was changed");
}

#[test]
fn every_cipher_of_a_journal_gives_its_sections_back_and_to_its_own_key_only() {
    let image = unpack("int-a-clean");
    let table = images()["int-a-clean"]["table"].as_str().unwrap().to_owned();
    let opened = open(&image.disks(), &options(&table)).unwrap();
    let format = |name: &str, key: &str| {
        let crypt = JournalCrypt::new(name, &key_of(key)).unwrap();
        let options = OpenSettings { journal_crypt: Some(crypt), ..options(&table) };
        JournalFormat::new(&opened.geometry, &opened.superblock, &options).unwrap()
    };
    let mut seen = Vec::new();
    for cipher in ["aes", "camellia", "serpent", "twofish"] {
        for (mode, bytes) in ["cbc", "ctr"].into_iter().flat_map(|mode| [16, 24, 32].map(|n| (mode, n))) {
            let name = format!("{mode}({cipher})");
            let journal = format(&name, &"a5".repeat(bytes));
            let mut sealed = journal.section();
            opened.geometry.section().clear(&mut sealed);
            journal.seal(1, JournalRound::FIRST, &mut sealed).unwrap();
            image.data.write_at(opened.geometry.section_offset(1), &sealed).unwrap();
            assert!(!seen.contains(&sealed), "{name} with {bytes} bytes encrypts as another cipher does");
            seen.push(sealed);
            let mut read = journal.section();
            journal.read(&image.data, 1, &mut read).unwrap();
            let contents = journal.seen(1, &read).unwrap();
            assert!(contents.rounds == 1 && contents.is_unused, "{name} with {bytes} bytes");
            let other = format(&name, &"5a".repeat(bytes));
            other.read(&image.data, 1, &mut read).unwrap();
            assert!(other.seen(1, &read).is_err(), "{name} with {bytes} bytes: another key reads it");
        }
    }
    assert!(JournalCrypt::new("ctr(des)", &key_of("00")).is_err());
}

#[test]
fn a_journal_cipher_shows_its_name_and_not_its_key() {
    let crypt = JournalCrypt::new("cbc-aes", &key_of(&"a5".repeat(16))).unwrap();
    assert_eq!(crypt.name(), "cbc(aes)");
    assert_eq!(format!("{crypt:?}"), "JournalCrypt { name: \"cbc(aes)\", .. }");
}
