//! Backups, and the results of a crash during a restore.

use super::*;
use crate::storage::recorder::{Recorder, once};
use crate::{
    Cost, ErrorKind, FormatOptions, Key, NewHeader, NewKeyslot, Pbkdf, PbkdfKind, UnlockOptions, Version,
    luks2,
};

/// The start of the data: behind eight keyslots with keys of 32 bytes.
const DATA: usize = 260 << 12;
const SIZE: usize = DATA + (64 << 10);

fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn pbkdf() -> Pbkdf {
    Pbkdf { kind: PbkdfKind::Pbkdf2, cost: Cost::Iterations(1000), ..Pbkdf::pbkdf2() }
}

fn options(version: Version) -> FormatOptions {
    let defaults = if version == Version::Luks1 { FormatOptions::luks1() } else { FormatOptions::luks2() };
    FormatOptions {
        data_offset: Some(DATA as u64),
        cipher: "aes-cbc-essiv:sha256".parse().unwrap(),
        pbkdf: pbkdf(),
        ..defaults
    }
}

/// A disk with a header that the passphrase `old` opens.
fn disk_with(options: FormatOptions, passphrase: &str) -> Recorder {
    let disk = Recorder::new(vec![0; SIZE]);
    let new = NewHeader::prepare(SIZE as u64, &key(passphrase), options).unwrap();
    new.write(&disk).unwrap();
    disk.forget_events();
    disk
}

fn opens(disk: &[u8], passphrase: &str) -> Option<u32> {
    let header = Header::read(disk).unwrap();
    // The parts of a header that decide how it opens.
    let said = serde_json::to_vec(&header.info()).unwrap();
    let material = header.areas().into_iter().map(|(_, area)| {
        let at = |offset: u64| usize::try_from(offset).unwrap();
        &disk[at(area.start)..at(area.end)]
    });
    let decisive: Vec<&[u8]> = material.chain([&said[..], passphrase.as_bytes()]).collect();
    once(&decisive, || {
        let opened = header.unlock(disk, &key(passphrase), &UnlockOptions::default());
        opened.ok().map(|opened| opened.slot)
    })
}

fn luks2(disk: &Recorder) -> Box<luks2::Header> {
    match Header::read(disk).unwrap() {
        Header::Luks2(header) => header,
        Header::Luks1(_) => panic!("LUKS1"),
    }
}

fn restore(backup: &Backup, disk: &Recorder) -> Result<Header> {
    let found = backup.found_on(disk).unwrap();
    backup.restore(disk, &found, &RestoreOptions::default())
}

#[test]
fn a_backup_of_a_header_with_a_bad_copy_has_two_good_ones() {
    let disk = disk_with(options(Version::Luks2), "old");
    for place in [5000, (16 << 10) + 5000] {
        let mut bytes = disk.bytes().clone();
        bytes[place] ^= 1;
        let backup = Backup::take(&bytes[..]).unwrap();
        assert_eq!(backup.header().damage(), None);
        assert_eq!(backup.bytes().len(), DATA);
        assert_eq!(Header::read(backup.bytes()).unwrap().damage(), None);
        assert_eq!(opens(backup.bytes(), "old"), Some(0));
    }
}

/// A disk of which these bytes cannot be read.
struct BadDisk {
    bytes: Vec<u8>,
    bad: std::ops::Range<u64>,
}

impl ReadAt for BadDisk {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        if offset < self.bad.end && self.bad.start < offset + buf.len() as u64 {
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.bytes.as_slice().read_exact_at(buf, offset)
    }
}

#[test]
fn a_backup_is_taken_where_one_copy_cannot_be_read() {
    let disk = disk_with(options(Version::Luks2), "old");
    let whole = Backup::take(&disk).unwrap();
    for bad in [0..512, 4096..4608, (16 << 10)..(16 << 10) + 512] {
        let disk = BadDisk { bytes: disk.bytes().clone(), bad };
        let backup = Backup::take(&disk).unwrap();
        assert_eq!(backup.header().damage(), None);
        assert!(backup.bytes()[32 << 10..] == whole.bytes()[32 << 10..]);
        assert_eq!(opens(backup.bytes(), "old"), Some(0));
    }
    let disk = BadDisk { bytes: disk.bytes().clone(), bad: 40 << 10..41 << 10 };
    assert_eq!(Backup::take(&disk).unwrap_err().kind(), ErrorKind::Io, "a keyslot");
}

#[test]
fn what_is_no_sound_header_is_no_backup() {
    let disk = disk_with(options(Version::Luks2), "old");
    let good = Backup::take(&disk).unwrap();
    let mut bad = good.bytes().to_vec();
    (bad[5000], bad[(16 << 10) + 5000]) = (1, 1);
    for (bytes, kind) in [
        (&good.bytes()[..good.bytes().len() - 1], ErrorKind::TooSmall),
        (&good.bytes()[..4096], ErrorKind::TooSmall),
        (&bad, ErrorKind::BadHeader),
        (&[0; 4096], ErrorKind::NoHeader),
        (&[], ErrorKind::NoHeader),
    ] {
        assert_eq!(Backup::read(bytes).unwrap_err().kind(), kind);
    }
}

#[test]
fn a_crash_while_a_backup_comes_back_leaves_what_was_there_or_the_backup() {
    let disk = disk_with(options(Version::Luks2), "old");
    let backup = Backup::take(&disk).unwrap();
    // The keyslot's area is reused by another passphrase's, and so is the next one.
    let mut header = luks2(&disk);
    let opened = header.unlock(&disk, &key("old"), &UnlockOptions::default()).unwrap();
    let new = |number| NewKeyslot { number: Some(number), ..NewKeyslot::new(pbkdf()) };
    header.add_keyslot(&disk, &opened.key, &key("one"), &new(1)).unwrap();
    header.remove_keyslot(&disk, 0, false).unwrap();
    header.add_keyslot(&disk, &opened.key, &key("two"), &new(0)).unwrap();
    assert_eq!([opens(&disk.bytes(), "old"), opens(&disk.bytes(), "two")], [None, Some(0)]);
    disk.forget_events();
    let (before, two) = (disk.bytes().clone(), header.areas()[0].1.clone());
    let (at, len) = (usize::try_from(two.start).unwrap(), 128_000);
    let old_material = before[at..at + len].to_vec();

    restore(&backup, &disk).unwrap();
    let mut seen = [0; 2];
    disk.each_crash(before, |disk, at| {
        let opened = [opens(disk, "old"), opens(disk, "two")];
        assert!([[Some(0), None], [None, Some(0)]].contains(&opened), "{at}: {opened:?}");
        assert_eq!(opens(disk, "one").is_some(), opened[1].is_some(), "{at}");
        seen[usize::from(opened[0].is_some())] += 1;
    });
    assert!(seen[0] > 0 && seen[1] > 0, "both sides were seen: {seen:?}");
    let bytes = disk.bytes().clone();
    assert!(
        !bytes.windows(512).step_by(512).any(|sector| sector == &old_material[512..1024]),
        "nothing of it is left"
    );
    // Both copies are good, and all keyslots are the backup's.
    assert_eq!(Header::read(&bytes[..]).unwrap().damage(), None);
    assert!(bytes[32 << 10..DATA] == backup.bytes()[32 << 10..]);
}

/// A LUKS1 header with these keyslots in use, each with another passphrase.
fn luks1_disk(slots: &[u32], uuid: u128) -> Recorder {
    let uuid = Some(uuid::Uuid::from_u128(uuid));
    let disk = disk_with(FormatOptions { uuid, key_size: Some(16), ..options(Version::Luks1) }, "first");
    refill(&disk, "first", slots);
    disk
}

/// Replaces the keyslots of a disk that `passphrase` opens by new ones of these numbers.
fn refill(disk: &Recorder, passphrase: &str, slots: &[u32]) {
    let mut header = Header::read(disk).unwrap();
    let opened = header.unlock(disk, &key(passphrase), &UnlockOptions::default()).unwrap();
    let spare = (0..8).find(|number| !slots.contains(number) && opened.slot != *number).unwrap();
    let add = |header: &mut Header, number: u32, passphrase: &str| {
        let new = NewKeyslot { number: Some(number), ..NewKeyslot::new(pbkdf()) };
        header.add_keyslot(disk, &opened.key, &key(passphrase), &new).unwrap();
    };
    add(&mut header, spare, "spare");
    for (number, _) in header.areas().into_iter().filter(|(number, _)| *number != spare) {
        header.remove_keyslot(disk, number, false).unwrap();
    }
    slots.iter().for_each(|number| add(&mut header, *number, &format!("passphrase {number}")));
    header.remove_keyslot(disk, spare, false).unwrap();
    disk.forget_events();
}

/// Returns the parts of each keyslot that decide how it opens, without number and place: the key's
/// digest, the salt, the key material.
fn keyslots(disk: &[u8]) -> Vec<([u8; 20], [u8; 32], Vec<u8>)> {
    let Header::Luks1(header) = Header::read(disk).unwrap() else { panic!("LUKS2") };
    assert!(header.phdr.is_sound(), "cryptsetup takes it, too");
    let at = |offset: u64| usize::try_from(offset).unwrap();
    let areas = header.areas().into_iter().map(|(_, area)| disk[at(area.start)..at(area.end)].to_vec());
    let slots = header.phdr.slots.iter().flatten();
    slots.zip(areas).map(|(slot, material)| (header.phdr.digest, slot.salt, material)).collect()
}

#[test]
fn a_crash_while_a_luks1_backup_comes_back_leaves_all_keyslots_of_one_of_both() {
    // The backup's keyslots, the device's, and whether the backup is of another volume.
    let cases: [(&[u32], &[u32], bool); 7] = [
        (&[0], &[0, 1], false),
        (&[6], &[6], false),
        (&[7], &[7], true),
        (&[7], &[6], true),
        (&[7], &[0], true),
        (&[6, 7], &[6, 7], false),
        (&[0, 6], &[0, 3, 6, 7], true),
    ];
    for (old, now, another) in cases {
        let what = format!("{old:?} over {now:?}, another volume's: {another}");
        let made = luks1_disk(old, 1);
        let backup = Backup::take(&made).unwrap();
        let disk = if another { luks1_disk(now, 2) } else { made };
        if !another {
            refill(&disk, &format!("passphrase {}", old[0]), now);
        }
        let (before, wanted) = (disk.bytes().clone(), keyslots(backup.bytes()));
        let gone = keyslots(&before);
        restore(&backup, &disk).unwrap();
        let mut seen = [0; 2];
        disk.each_crash(before, |disk, at| {
            let there = keyslots(disk);
            let all = |slots: &[_]| slots.iter().all(|slot| there.contains(slot));
            let (old, now) = (all(&wanted), all(&gone));
            assert!(old || now, "{what}: {at}");
            seen[usize::from(old)] += 1;
        });
        assert!(seen[0] > 0 && seen[1] > 0, "{what}: both sides were seen: {seen:?}");
        let bytes = disk.bytes().clone();
        assert!(bytes[..592] == backup.bytes()[..592], "{what}");
        assert!(bytes[1024..backup.bytes().len()] == backup.bytes()[1024..], "{what}");
        assert_eq!(opens(&bytes, &format!("passphrase {}", old[0])), Some(old[0]), "{what}");
        for (_, _, material) in gone {
            let left = bytes.windows(512).step_by(512).any(|sector| sector == &material[512..1024]);
            assert!(!left, "{what}: nothing of the old keyslots is left");
        }
    }
}

#[test]
fn key_material_beyond_a_luks1_backups_end_is_wiped() {
    let end = 2 << 20;
    let options = FormatOptions { data_offset: Some(end), ..options(Version::Luks1) };
    let disk = Recorder::new(vec![0; 3 << 20]);
    NewHeader::prepare(3 << 20, &key("old"), options).unwrap().write(&disk).unwrap();
    let backup = Backup::take(&disk).unwrap();
    let Header::Luks1(mut header) = Header::read(&disk).unwrap() else { panic!("LUKS2") };
    let place = 3 << 19;
    assert!(backup.bytes().len() < place);
    let way = header.way_to(0, place as u64, 4096..end).unwrap();
    header.move_material(&disk, 0, way).unwrap();
    let moved = disk.bytes()[place..place + 128_000].to_vec();
    assert_eq!(opens(&disk.bytes(), "old"), Some(0));
    restore(&backup, &disk).unwrap();
    assert_eq!(opens(&disk.bytes(), "old"), Some(0));
    assert_eq!(crate::storage::recorder::left_of(&moved, &disk.bytes()[place..place + 128_000]), 0);
}

#[test]
fn what_is_on_the_device_is_told_before_it_goes() {
    for version in [Version::Luks1, Version::Luks2] {
        let backup = Backup::take(&disk_with(options(version), "old")).unwrap();
        let found = |bytes: Vec<u8>| backup.found_on(&Recorder::new(bytes)).unwrap();
        let another = disk_with(options(version), "x");
        let uuid = Header::read(&another).unwrap().uuid();
        assert_eq!(found(another.bytes().clone()), Found::Another(uuid));
        assert_eq!(found(backup.bytes().to_vec()), Found::Same);
        assert_eq!(found(vec![0; 1 << 20]), Found::Nothing);
        assert_eq!(found(vec![7; 1 << 20]), Found::Unknown);
        let mut bytes = vec![0; 1 << 20];
        bytes[..4].copy_from_slice(b"XFSB");
        assert_eq!(found(bytes), Found::Foreign("an XFS filesystem"));
        let mut bytes = backup.bytes().to_vec();
        bytes[110] ^= 0xff;
        if version == Version::Luks2 {
            bytes[(16 << 10) + 110] ^= 1;
        }
        assert!(matches!(found(bytes), Found::Damaged(_)));
    }
}

#[test]
fn a_backup_comes_back_over_nothing_over_another_volume_and_over_damage() {
    for version in [Version::Luks1, Version::Luks2] {
        let backup = Backup::take(&disk_with(options(version), "old")).unwrap();
        let mut bad = disk_with(options(version), "x").bytes().clone();
        bad[..20 << 10].fill(0x5a);
        let other = if version == Version::Luks1 { Version::Luks2 } else { Version::Luks1 };
        for disk in [
            Recorder::new(vec![0; SIZE]),
            Recorder::new(vec![0xff; SIZE]),
            Recorder::new(bad),
            disk_with(options(version), "x"),
            disk_with(options(other), "x"),
        ] {
            let header = restore(&backup, &disk).unwrap();
            assert_eq!((header.uuid(), header.damage()), (backup.header().uuid(), None));
            assert_eq!([opens(&disk.bytes(), "old"), opens(&disk.bytes(), "x")], [Some(0), None]);
            assert!(
                disk.bytes()[DATA..].iter().all(|&byte| byte == disk.bytes()[SIZE - 1]),
                "data are left alone"
            );
        }
    }
}

#[test]
fn a_backup_that_does_not_fit_its_device_changes_nothing() {
    for version in [Version::Luks1, Version::Luks2] {
        let backup = Backup::take(&disk_with(options(version), "old")).unwrap();
        let shifted = FormatOptions { data_offset: Some(DATA as u64 + 4096), ..options(version) };
        let short = FormatOptions {
            cipher: "aes-cbc-plain64".parse().unwrap(),
            key_size: Some(16),
            ..options(version)
        };
        let layout = if version == Version::Luks1 {
            short
        } else {
            FormatOptions { metadata_size: 32 << 10, ..options(version) }
        };
        for (disk, kind) in [
            (disk_with(shifted, "x"), ErrorKind::BadOption),
            (disk_with(layout, "x"), ErrorKind::BadOption),
            (Recorder::new(vec![0; DATA / 2]), ErrorKind::TooSmall),
            (Recorder::new(vec![0; DATA]), ErrorKind::TooSmall),
        ] {
            assert_eq!(restore(&backup, &disk).unwrap_err().kind(), kind, "{version:?}");
            assert!(disk.is_untouched());
        }
        let disk = disk_with(options(version), "x");
        let refused = backup.restore(&disk, &Found::Same, &RestoreOptions::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "it is not what the caller was told");
        assert!(disk.is_untouched());
    }
}

#[test]
fn a_header_of_the_same_volume_with_another_key_is_told_apart() {
    for version in [Version::Luks1, Version::Luks2] {
        let uuid = Some(uuid::Uuid::from_u128(7));
        let made = || disk_with(FormatOptions { uuid, ..options(version) }, "old");
        let backup = Backup::take(&made()).unwrap();
        assert_eq!(backup.found_on(&made()).unwrap(), Found::OtherData, "its data are another key's");
    }
}

#[test]
fn places_of_free_luks1_keyslots_are_believed_only_where_they_may_be() {
    let disk = disk_with(options(Version::Luks1), "old");
    let mut bytes = disk.bytes().clone();
    // Keyslot 0 is removed, and the payload begins at byte 1024: no room for any keyslot.
    bytes[208..212].copy_from_slice(&0xDEADu32.to_be_bytes());
    bytes[104..108].copy_from_slice(&2u32.to_be_bytes());
    let taken = Backup::take(&Recorder::new(bytes.clone()));
    assert!(taken.is_ok_and(|backup| backup.bytes().len() <= 1024));
    // A detached header, and a free keyslot far behind it.
    let far = SIZE - (64 << 10);
    let mut bytes = disk.bytes().clone();
    bytes[104..108].fill(0);
    let place = 208 + 5 * 48 + 40;
    bytes[place..place + 4].copy_from_slice(&u32::try_from(far / 512).unwrap().to_be_bytes());
    bytes[far..].fill(0x5a);
    let disk = Recorder::new(bytes);
    Header::read(&disk).unwrap().erase(&disk).unwrap();
    assert!(disk.bytes()[far..].iter().all(|&byte| byte == 0x5a), "it is nobody's keyslot");
    assert_eq!(opens(&disk.bytes(), "old"), None);
}
