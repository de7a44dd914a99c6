//! Power cuts while a header comes in front of plain data, or leaves its device: one is left that describes the data.

use super::*;
use crate::storage::recorder::left_of;

#[test]
fn a_crash_while_a_header_comes_in_front_of_plain_data_leaves_one_that_describes_it() {
    let (size, aside) = (DATA + 2 * OFFSET, OFFSET);
    let plain = pattern(size - 2 * OFFSET);
    let disk = Recorder::new([&plain[..], &vec![0; 2 * OFFSET + aside]].concat());
    let (device, file) = (disk.part(0..size as u64), disk.part(size as u64..(size + aside) as u64));
    let new = NewVolume::prepare(size as u64, &passphrase(), in_front_options()).unwrap();
    let before = disk.bytes().clone();
    new.write_in_front(&device, &file).unwrap();
    let key = new.into_key();
    let (mut seen, mut again) = ([false; 3], 0);
    disk.each_crash(before, |disk, at| {
        let (device, file) = disk.split_at(size);
        let holds = |header: &Header, detached| {
            let volume = activate(header, &key, size, detached).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(header.reencryption().unwrap().map(|status| status.stage), Some(Stage::Clean), "{at}");
            assert!(plaintext(&volume, device) == plain, "{at}");
        };
        let headers = [read(device), read(file)];
        if headers.iter().all(Option::is_none) {
            // Nothing has been overwritten yet.
            assert!(device[..plain.len()] == plain, "{at}");
            seen[2] = true;
        }
        if let [None, Some(header)] = &headers {
            again += 1;
            if again % 32 == 1 {
                // A start that was cut off is gone on with.
                let (device, file) = (Recorder::new(device.to_vec()), Recorder::new(file.to_vec()));
                let header = header.put_in_front(&file, &device).unwrap_or_else(|e| panic!("{at}: {e}"));
                let volume = activate(&header, &key, size, false).unwrap();
                assert!(plaintext(&volume, &device.bytes()) == plain, "{at}");
            }
        }
        for (number, header) in
            headers.iter().enumerate().filter_map(|(i, header)| Some((i, header.as_ref()?)))
        {
            holds(header, number == 1);
            seen[number] = true;
        }
    });
    assert_eq!(seen, [true; 3]);
    let finished = Recorder::new(disk.bytes()[..size].to_vec());
    assert_eq!(go_on(&finished, &finished, &key, false).unwrap(), Outcome::Finished);
    let header = read(&finished).unwrap();
    let bytes = finished.bytes().clone();
    let volume = activate(&header, &key, size, false).unwrap();
    assert!(plaintext(&volume, &bytes)[..plain.len()] == plain);
    // No plaintext is left where it was moved to.
    assert_eq!(left_of(&plain, &bytes[size - OFFSET..]), 0);
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
