//! Power cuts while a header comes in front of plain data, or leaves its device: one is left that describes the data.

use super::*;
use crate::ErrorKind;
use crate::signature::signature;
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
        // No plaintext is left where it was moved to.
        assert_eq!(left_of(&plain, &bytes[size - OFFSET..]), 0);
    }
}

#[test]
fn a_start_that_was_cut_off_can_be_undone_whenever_that_is_cut_off() {
    let (plain, size) = (pattern(DATA), DATA + 2 * OFFSET);
    for clears in [true, false] {
        let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
        let (len, copied_to) = (DATA as u64, (size - OFFSET) as u64);
        let start = UnfinishedStart { len, copied_to, device: size as u64, clears };
        storage::write(&device, start.copied_to, &plain).unwrap();
        storage::write(&device, 0, &vec![0xaa; OFFSET]).unwrap();
        start.mark(&device).unwrap();
        device.forget_events();
        let before = device.bytes().clone();
        start.undo(&device).unwrap();
        let mut cut = 0;
        device.each_crash(before, |bytes, at| {
            let again = Recorder::new(bytes.to_vec());
            if let Some(start) = UnfinishedStart::find(bytes).unwrap() {
                cut += 1;
                start.undo(&again).unwrap();
            }
            assert!(again.bytes()[..DATA] == plain, "{at}");
        });
        assert!(cut > 0);
    }
}

/// Where an ext4 superblock has its magic, and another of its bytes.
const EXT4: (usize, usize) = (0x438, 0x430);

/// Plain data that begin as an ext4 file system does.
fn file_system() -> Vec<u8> {
    let mut plain = pattern(DATA);
    plain[..1024].fill(0);
    plain[EXT4.0..EXT4.0 + 2].copy_from_slice(b"\x53\xef");
    plain
}

#[test]
fn a_file_system_behind_the_mark_is_cleared_first_and_keeps_what_is_written_before() {
    let (plain, size) = (file_system(), DATA + 2 * OFFSET);
    let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
    let new = NewVolume::prepare(size as u64, &passphrase(), in_front_options()).unwrap();
    let before = device.bytes().clone();
    new.write_in_front(&device).unwrap();
    let mut mounted = 0;
    device.each_crash(before, |bytes, at| {
        let start = UnfinishedStart::find(bytes).unwrap();
        if signature(&bytes[..DATA]).is_none() || bytes[..DATA] == plain {
            return;
        }
        // Sector 0 is the mark's, or the header's; the kernel mounts it all the same.
        let start = start.unwrap_or_else(|| panic!("{at}: an ext4 superblock behind a header"));
        assert!(
            bytes[1024..DATA].iter().zip(&plain[1024..]).all(|(now, was)| now == was || *now == 0),
            "{at}"
        );
        mounted += 1;
        let device = Recorder::new(bytes.to_vec());
        storage::write(&device, EXT4.1 as u64, b"M").unwrap();
        storage::write(&device, (DATA - 4096) as u64, &[0x5a; 4096]).unwrap();
        start.undo(&device).unwrap();
        let mut changed = plain.clone();
        changed[EXT4.1] = b'M';
        changed[DATA - 4096..].fill(0x5a);
        assert!(device.bytes()[..DATA] == changed, "{at}");
    });
    assert!(mounted > 0);
}

#[test]
fn an_undone_file_system_keeps_what_is_written_when_the_undoing_was_cut_off() {
    let (plain, size) = (file_system(), DATA + 2 * OFFSET);
    let device = Recorder::new([&plain[..], &vec![0; 2 * OFFSET]].concat());
    let (len, copied_to) = (DATA as u64, (size - OFFSET) as u64);
    let start = UnfinishedStart { len, copied_to, device: size as u64, clears: true };
    storage::write(&device, copied_to, &plain).unwrap();
    start.mark(&device).unwrap();
    device.forget_events();
    let before = device.bytes().clone();
    start.undo(&device).unwrap();
    let mut mounted = 0;
    device.each_crash(before, |bytes, at| {
        let Some(start) = UnfinishedStart::find(bytes).unwrap() else { return };
        if signature(&bytes[..DATA]).is_none() {
            return;
        }
        mounted += 1;
        let device = Recorder::new(bytes.to_vec());
        storage::write(&device, EXT4.1 as u64, b"M").unwrap();
        start.undo(&device).unwrap();
        let mut changed = plain.clone();
        changed[EXT4.1] = b'M';
        assert!(device.bytes()[..DATA] == changed, "{at}");
    });
    assert!(mounted > 0);
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
            // A start that was cut off is made again.
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
