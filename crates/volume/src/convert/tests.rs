//! Conversions between the two versions: a crash at any time leaves a volume that opens.

use std::collections::BTreeSet;

use super::*;
use crate::storage::recorder::{Recorder, once};
use crate::{Cost, FormatOptions, Hash, Key, NewHeader, NewKeyslot, Pbkdf, UnlockOptions};

/// The start of the data: behind eight keyslots with keys of 32 bytes, in either version.
const DATA: u64 = (32 << 10) + 8 * (128 << 10);
const SIZE: usize = 3 << 19;

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn pbkdf() -> Pbkdf {
    Pbkdf { cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() }
}

fn disk(options: FormatOptions) -> Recorder {
    let disk = Recorder::new(vec![0; SIZE]);
    let options =
        FormatOptions { pbkdf: pbkdf(), sector_size: Some(underseal_cipher::SectorSize::S512), ..options };
    NewHeader::prepare(SIZE as u64, &key("0"), options).unwrap().write(&disk).unwrap();
    disk.forget_events();
    disk
}

fn cipher() -> underseal_cipher::CipherSpec {
    "aes-cbc-essiv:sha256".parse().unwrap()
}

fn luks1() -> FormatOptions {
    FormatOptions { data_offset: Some(DATA), cipher: cipher(), ..FormatOptions::luks1() }
}

fn luks2() -> FormatOptions {
    FormatOptions { data_offset: Some(DATA), cipher: cipher(), ..FormatOptions::luks2() }
}

fn opened(disk: &[u8], passphrases: &[&str]) -> Vec<Option<u32>> {
    let header = Header::read(disk).unwrap();
    // The parts of a header that decide how it opens.
    let said = serde_json::to_vec(&header.info()).unwrap();
    let material = header.areas().into_iter().map(|(_, area)| {
        let at = |offset: u64| usize::try_from(offset).unwrap();
        &disk[at(area.start)..at(area.end)]
    });
    let material: Vec<&[u8]> = material.chain([&said[..]]).collect();
    let open = |text: &&str| {
        once(&[&material[..], &[text.as_bytes()]].concat(), || {
            header.unlock(disk, &key(text), &UnlockOptions::default()).ok().map(|opened| opened.slot)
        })
    };
    passphrases.iter().map(open).collect()
}

/// Converts the header, and checks the disk after a crash at each write.
fn convert(disk: &Recorder, to: Version, passphrases: &[&str]) {
    let before = disk.bytes().clone();
    let want = opened(&before, passphrases);
    assert!(want.iter().all(Option::is_some), "{want:?}");
    let header = Header::read(disk).unwrap();
    let (uuid, data) = (header.uuid(), header.data_offset());
    header.convert(disk, to).unwrap();
    let mut seen = BTreeSet::new();
    disk.each_crash(before, |disk, at| {
        assert_eq!(opened(disk, passphrases), want, "{at}");
        let header = Header::read(disk).unwrap();
        assert_eq!((header.uuid(), header.data_offset()), (uuid, data), "{at}");
        if let Header::Luks1(header) = &header {
            assert!(header.phdr.is_sound(), "cryptsetup takes it, too: {at}");
        }
        seen.insert(header.info().format);
    });
    assert_eq!(seen.len(), 2, "both versions were seen");
    let header = Header::read(disk).unwrap();
    assert_eq!(matches!(header, Header::Luks1(_)), to == Version::Luks1);
    assert_eq!(header.damage(), None);
}

#[test]
fn a_crash_while_a_header_is_converted_leaves_one_that_opens() {
    let disk = disk(luks1());
    convert(&disk, Version::Luks2, &["0"]);
    // More keyslots are added in between.
    let Header::Luks2(mut header) = Header::read(&disk).unwrap() else { panic!("LUKS1") };
    let opened = header.unlock(&disk, &key("0"), &UnlockOptions::default()).unwrap();
    for (number, passphrase) in [(6, "6"), (7, "7")] {
        let new = NewKeyslot { number: Some(number), ..NewKeyslot::new(pbkdf()) };
        header.add_keyslot(&disk, &opened.key, &key(passphrase), &new).unwrap();
    }
    disk.forget_events();
    convert(&disk, Version::Luks1, &["0", "6", "7"]);
    convert(&disk, Version::Luks2, &["0", "6", "7"]);
}

#[test]
fn where_eight_keyslots_fit_and_no_more_they_make_way_for_each_other() {
    let disk = disk(luks1());
    let mut header = Header::read(&disk).unwrap();
    let opened = header.unlock(&disk, &key("0"), &UnlockOptions::default()).unwrap();
    let new = NewKeyslot { number: Some(5), ..NewKeyslot::new(pbkdf()) };
    header.add_keyslot(&disk, &opened.key, &key("5"), &new).unwrap();
    disk.forget_events();
    convert(&disk, Version::Luks2, &["0", "5"]);
    // The keyslots are adjacent behind both copies, so that eight fit again.
    let areas = Header::read(&disk).unwrap().areas();
    assert!(areas.iter().all(|(_, area)| (area.start - (32 << 10)).is_multiple_of(128 << 10)), "{areas:?}");
}

#[test]
fn a_header_made_as_luks2_becomes_luks1() {
    for options in [luks2(), FormatOptions { metadata_size: 256 << 10, ..luks2() }] {
        let disk = disk(options);
        convert(&disk, Version::Luks1, &["0"]);
        convert(&disk, Version::Luks2, &["0"]);
    }
}

#[test]
fn what_luks1_cannot_say_is_told() {
    let disk = disk(FormatOptions { label: "my label".into(), ..luks2() });
    let mut header = Header::read(&disk).unwrap();
    assert_eq!(header.dropped_by(Version::Luks1), ["label \"my label\""]);
    assert_eq!(header.dropped_by(Version::Luks2), [""; 0]);
    header.set_priority(&disk, 0, Priority::Ignored).unwrap();
    let flags = vec![crate::PersistentFlag::AllowDiscards];
    let settings = crate::Settings { label: Some(String::new()), on: flags, ..Default::default() };
    header.set(&disk, &settings).unwrap();
    let dropped = header.dropped_by(Version::Luks1);
    assert_eq!(dropped, ["flag \"allow-discards\"", "priority ignored of keyslot 0"]);
    let header = header.convert(&disk, Version::Luks1).unwrap();
    assert_eq!(header.dropped_by(Version::Luks2), [""; 0]);
}

#[test]
fn what_the_other_version_cannot_say_is_refused_by_name() {
    let argon2 = FormatOptions {
        pbkdf: Pbkdf { memory_kib: 64, lanes: 1, cost: Cost::Iterations(4), ..Pbkdf::argon2id() },
        ..luks2()
    };
    let large = FormatOptions { sector_size: None, ..luks2() };
    let hash = FormatOptions { pbkdf: pbkdf(), hash: Hash::Sha512, ..luks2() };
    for (options, words) in [(argon2, "keyslots.0: kdf"), (large, "segments.0.sector_size")] {
        let disk = Recorder::new(vec![0; SIZE]);
        let pbkdf = if words.contains("kdf") { options.pbkdf } else { pbkdf() };
        let sector_size =
            options.sector_size.or(words.contains("kdf").then_some(underseal_cipher::SectorSize::S512));
        let options = FormatOptions { pbkdf, sector_size, ..options };
        NewHeader::prepare(SIZE as u64, &key("0"), options).unwrap().write(&disk).unwrap();
        disk.forget_events();
        let refused = Header::read(&disk).unwrap().convert(&disk, Version::Luks1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains(words), "{refused}");
        assert!(disk.is_untouched());
    }
    let disk = disk(hash);
    let refused = Header::read(&disk).unwrap().convert(&disk, Version::Luks2).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
    Header::read(&disk).unwrap().convert(&disk, Version::Luks1).unwrap();
}
