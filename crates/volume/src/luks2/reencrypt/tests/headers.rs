//! Power cuts while a header is moved in front of plain data, or away from its device: a header
//! that describes the data is always left.

use super::*;
use crate::ErrorKind;
use crate::luks2::reencrypt::unfinished_start::StartPhase;
use crate::storage::recorder::left_of;

#[test]
fn a_crash_while_a_header_comes_in_front_of_plain_data_leaves_the_data_the_mark_or_the_header() {
    // Also data that is shorter than the header.
    for len in [DATA, 20 * KIB] {
        let (plain, size) = (pattern(len), len + 2 * OFFSET);
        let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
        let new = NewVolume::prepare(size as u64, &passphrase(), in_front_options()).unwrap();
        let before = device.bytes().clone();
        new.write_in_front(&device).unwrap();
        let key = new.into_key();
        let (mut seen, mut undone) = ([false; 3], 0);
        device.each_crash(before, |bytes, at| match UnfinishedStart::find(bytes).unwrap() {
            Some(start) => {
                seen[1] = true;
                assert_eq!(
                    crate::Header::read(bytes).unwrap_err().kind(),
                    ErrorKind::UnfinishedStart,
                    "{at}"
                );
                undone += 1;
                if undone % 16 == 1 {
                    let device = Recorder::new(bytes.to_vec());
                    start.undo(&device).unwrap();
                    assert!(device.bytes()[..len] == plain, "{at}");
                    assert_eq!(UnfinishedStart::find(&device).unwrap(), None, "{at}");
                }
            }
            None => match read(bytes) {
                None => {
                    seen[0] = true;
                    assert!(bytes[..len] == plain, "{at}: nothing has been overwritten yet");
                }
                Some(header) => {
                    seen[2] = true;
                    let stage = header.reencryption().unwrap().map(|status| status.stage);
                    assert_eq!(stage, Some(Stage::Clean), "{at}");
                    let volume = activate(&header, &key, size, false).unwrap_or_else(|e| panic!("{at}: {e}"));
                    assert!(plaintext(&volume, bytes) == plain, "{at}");
                }
            },
        });
        assert_eq!(seen, [true; 3]);
        assert_eq!(go_on(&device, &device, &key, false).unwrap(), Outcome::Finished);
        let header = read(&device).unwrap();
        let bytes = device.bytes().clone();
        let volume = activate(&header, &key, size, false).unwrap();
        assert!(plaintext(&volume, &bytes)[..len] == plain);
        // No plaintext is left at the place of the moved part.
        assert_eq!(left_of(&plain, &bytes[size - OFFSET..]), 0);
    }
}

/// The place of an ext4 superblock's magic, and of another of its bytes.
const EXT4: (usize, usize) = (0x438, 0x430);

/// Plain data that begins as an ext4 file system does.
fn file_system() -> Vec<u8> {
    let mut plain = pattern(DATA);
    plain[..1024].fill(0);
    plain[EXT4.0..EXT4.0 + 2].copy_from_slice(b"\x53\xef");
    plain
}

/// A device with a new header over the data of a file system.
fn with_header_bytes(plain: &[u8]) -> (Recorder, UnfinishedStart) {
    let size = DATA + 2 * OFFSET;
    let device = Recorder::new([plain, &vec![0; 2 * OFFSET]].concat());
    let (len, copied_to) = (DATA as u64, (size - OFFSET) as u64);
    let phase = StartPhase::Marked;
    let start = UnfinishedStart { len, copied_to, device: size as u64, phase, superblocks: 0 };
    storage::write(&device, start.copied_to, plain).unwrap();
    start.mark(&device).unwrap();
    storage::write(&device, 512, &vec![0xaa; DATA - 512]).unwrap();
    device.forget_events();
    let found = UnfinishedStart::find(&device).unwrap().unwrap();
    (device, found)
}

/// Undoes an interrupted start. A file system that can be mounted is unchanged, and keeps all
/// writes, zeros too. Returns whether it can be mounted.
fn undo(bytes: &[u8], plain: &[u8], at: &str) -> bool {
    let Some(start) = UnfinishedStart::find(bytes).unwrap() else { return false };
    let (device, mut plain) = (Recorder::new(bytes.to_vec()), plain.to_vec());
    let mounts = bytes[EXT4.0..].starts_with(b"\x53\xef");
    if mounts {
        assert!(bytes[512..DATA] == plain[512..], "{at}: a file system in parts can be mounted");
        let (in_first, last) = (9 * 512, DATA - 4096);
        for (at, new) in [(EXT4.1, &b"M"[..]), (in_first, &[0; 512]), (last, &[0x5a; 4096])] {
            storage::write(&device, at as u64, new).unwrap();
            plain[at..at + new.len()].copy_from_slice(new);
        }
    }
    start.undo(&device).unwrap();
    assert!(device.bytes()[..DATA] == plain, "{at}");
    assert_eq!(UnfinishedStart::find(&device).unwrap(), None, "{at}");
    mounts
}

#[test]
fn a_start_that_was_cut_off_can_be_undone_whenever_that_is_cut_off() {
    // With and without a superblock behind sector 0.
    for plain in [file_system(), pattern(DATA)] {
        let (device, start) = with_header_bytes(&plain);
        let before = device.bytes().clone();
        start.undo(&device).unwrap();
        let (mut cut, mut mounted) = (0, 0);
        device.each_crash(before, |bytes, at| {
            cut += usize::from(UnfinishedStart::find(bytes).unwrap().is_some());
            mounted += usize::from(undo(bytes, &plain, at));
        });
        assert!(cut > 0);
        assert_eq!(mounted > 0, plain == file_system());
    }
}

#[test]
fn a_file_system_behind_the_mark_is_whole_or_not_there_at_every_power_cut() {
    let (plain, size) = (file_system(), DATA + 2 * OFFSET);
    let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
    let new = NewVolume::prepare(size as u64, &passphrase(), in_front_options()).unwrap();
    let before = device.bytes().clone();
    new.write_in_front(&device).unwrap();
    let (mut mounted, mut cut) = (0, 0);
    device.each_crash(before, |bytes, at| {
        let Some(start) = UnfinishedStart::find(bytes).unwrap() else { return };
        mounted += usize::from(undo(bytes, &plain, at));
        cut += 1;
        if cut % 64 == 1 {
            // The undoing is interrupted, too.
            let device = Recorder::new(bytes.to_vec());
            start.undo(&device).unwrap();
            device.each_crash(bytes.to_vec(), |bytes, again| {
                undo(bytes, &plain, again);
            });
        }
    });
    assert!(mounted > 0);
}

#[test]
fn no_second_copy_is_left_once_the_first_data_is_copied_back() {
    let (plain, size) = (pattern(DATA + OFFSET), DATA + 3 * OFFSET);
    let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
    let new = NewVolume::prepare(size as u64, &passphrase(), in_front_options()).unwrap();
    let mut marks = Vec::new();
    let before = device.bytes().clone();
    new.write_in_front(&device).unwrap();
    device.each_crash(before, |bytes, _| {
        if let Some(start) = UnfinishedStart::find(bytes).unwrap().filter(|s| s.phase == StartPhase::Cleared)
        {
            marks = bytes[..512].to_vec();
            assert_eq!(start.len, OFFSET as u64);
        }
    });
    // All of the header is there but its first sector.
    storage::write(&device, 0, &marks).unwrap();
    let begun = device.bytes().clone();
    let second = |bytes: &[u8]| bytes[16 * KIB..].starts_with(b"SKUL\xba\xbe");
    assert!(second(&begun));
    device.forget_events();
    UnfinishedStart::find(&device).unwrap().unwrap().undo(&device).unwrap();
    let mut seen = [0; 2];
    device.each_crash(begun.clone(), |bytes, at| {
        seen[usize::from(second(bytes))] += 1;
        // Another program may restore the first copy from the second.
        let needs = 32 * KIB..OFFSET;
        assert!(!second(bytes) || bytes[needs.clone()] == begun[needs], "{at}");
    });
    assert!(seen[0] > 0 && seen[1] > 0 && device.bytes()[..plain.len()] == plain);
}

/// A file system with its superblock at a place that no check covers.
#[test]
fn what_an_unknown_file_system_writes_behind_a_mark_stays() {
    let plain = pattern(DATA);
    let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
    let new = NewVolume::prepare((DATA + 2 * OFFSET) as u64, &passphrase(), in_front_options()).unwrap();
    let before = device.bytes().clone();
    new.write_in_front(&device).unwrap();
    let (at, new) = (9 * 512, [0x5a; 512]);
    let mut mounted = 0;
    device.each_crash(before, |bytes, when| {
        let Some(start) = UnfinishedStart::find(bytes).unwrap() else { return };
        if bytes[at..at + 512] != plain[at..at + 512] {
            return;
        }
        let (device, mut plain) = (Recorder::new(bytes.to_vec()), plain.clone());
        storage::write(&device, at as u64, &new).unwrap();
        plain[at..at + 512].copy_from_slice(&new);
        start.undo(&device).unwrap();
        assert!(device.bytes()[..DATA] == plain, "{when}");
        mounted += 1;
    });
    assert!(mounted > 10, "{mounted}");
}

#[test]
fn marks_of_earlier_versions_are_undone() {
    let plain = file_system();
    for version in [1_u8, 2] {
        let (device, _) = with_header_bytes(&plain);
        let mut mark = storage::read(&device, 0, 512).unwrap();
        mark[16] = version;
        mark[48..64].fill(0);
        let digest = crate::Hash::Sha256.digest(&[&mark[..64]]);
        mark[64..96].copy_from_slice(&digest);
        storage::write(&device, 0, &mark).unwrap();
        UnfinishedStart::find(&device).unwrap().unwrap().undo(&device).unwrap();
        assert!(device.bytes()[..DATA] == plain);
    }
}

#[test]
fn a_crash_while_a_header_is_exported_leaves_one_that_describes_the_data() {
    let (whole, header, key) = disk();
    let size = OFFSET + DATA;
    let disk = Recorder::new([whole.bytes().clone(), vec![0; OFFSET]].concat());
    let (device, file) = (disk.part(0..size as u64), disk.part(size as u64..(size + OFFSET) as u64));
    let before = disk.bytes().clone();
    let mut exported = header.export(&device, &file, &key, &DECRYPT).unwrap();
    exported.begin_decryption(&file, &device, &key, &DECRYPT).unwrap();
    let (mut seen, mut again) = ([false; 3], 0);
    disk.each_crash(before, |disk, at| {
        let (device, file) = disk.split_at(size);
        let holds = |header: &Header, detached| {
            let volume = activate(header, &key, size, detached).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert!(plaintext(&volume, device) == pattern(DATA), "{at}");
        };
        if let Some(header) = read(device) {
            holds(&header, false);
            seen[0] = true;
            return;
        }
        let header = read(file).unwrap_or_else(|| panic!("{at}: no header is left"));
        holds(&header, true);
        let begun = header.reencryption().unwrap().is_some();
        seen[1 + usize::from(begun)] = true;
        again += 1;
        if again % 16 == 1 && !begun {
            // An interrupted start is repeated.
            let (device, file) = (Recorder::new(device.to_vec()), Recorder::new(file.to_vec()));
            let mut header = read(&file).unwrap();
            header.begin_decryption(&file, &device, &key, &DECRYPT).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(go_on(&file, &device, &key, true).unwrap(), Outcome::Finished, "{at}");
            assert!(device.bytes()[..DATA] == pattern(DATA), "{at}");
        }
    });
    assert_eq!(seen, [true; 3]);
    assert_eq!(go_on(&file, &device, &key, true).unwrap(), Outcome::Finished);
    assert!(disk.bytes()[..DATA] == pattern(DATA));
}
