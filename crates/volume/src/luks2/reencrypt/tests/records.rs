//! Updates whose sync fails: reads still return the new header, and the disk has the old header, or
//! half of one.

use super::*;
use crate::ErrorKind;
use crate::reencrypt::tests::faults::{Disk, Fault};

#[test]
fn an_update_whose_sync_failed_is_made_sure_of_before_anything_relies_on_it() {
    let (start, mut header, key) = disk();
    let both = begin(&start, &mut header, key, &change(Protection::Journal));
    let (start, plain) = (start.bytes().clone(), pattern(DATA));
    let (mut failed, mut died) = (0, 0);
    for (fails, dies) in (0..22).flat_map(|fails| (0..40).step_by(3).map(move |dies| (fails, dies))) {
        let disk = Disk::new(start.clone());
        disk.set(Some(Fault::Sync(fails)));
        failed += u32::from(go_on(&disk, &disk, &both, false).is_err());
        disk.set(Some(Fault::Dead(dies + fails % 3)));
        died += u32::from(go_on(&disk, &disk, &both, false).is_err());
        disk.set(None);
        disk.lose_power(|| dies % 2 == 0);
        let mut bytes = vec![0; OFFSET + DATA];
        let now = |bytes: &mut Vec<u8>| {
            disk.get(bytes, 0);
            read(&bytes[..]).unwrap_or_else(|| panic!("{fails} {dies}: the header is gone"))
        };
        if now(&mut bytes).reencryption().unwrap().is_some() {
            let end = go_on(&disk, &disk, &both, false);
            assert_eq!(end.unwrap(), Outcome::Finished, "{fails} {dies}");
        }
        let header = now(&mut bytes);
        let opened = header.unlock(&bytes[..], &passphrase(), &UnlockOptions::default()).unwrap();
        let volume = activate(&header, &opened.key, OFFSET + DATA, false).unwrap();
        assert!(plaintext(&volume, &bytes) == plain, "{fails} {dies}: bytes are lost");
    }
    assert!(failed > 100 && died > 100, "{failed} {died}");
}

/// A device whose header has the record of a step that is in progress in its first copy only: the
/// update was cut off between the copies.
fn with_an_older_second_copy() -> (Vec<u8>, VolumeKey) {
    let (start, mut header, key) = disk();
    let both = begin(&start, &mut header, key, &change(Protection::Journal));
    let start = start.bytes().clone();
    let second = usize::try_from(header.stored.binary.size).unwrap();
    let number = |bytes: &[u8]| bytes[16..24].to_vec();
    let cut = (0..60).find_map(|dies| {
        let disk = Disk::new(start.clone());
        disk.set(Some(Fault::Dead(dies)));
        go_on(&disk, &disk, &both, false).unwrap_err();
        disk.set(None);
        let bytes = all_of(&disk, start.len());
        let are_sound = bytes.starts_with(b"LUKS\xba\xbe") && bytes[second..].starts_with(b"SKUL\xba\xbe");
        (are_sound && number(&bytes) > number(&bytes[second..])).then_some(bytes)
    });
    (cut.unwrap(), both)
}

fn all_of(disk: &Disk, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    disk.get(&mut bytes, 0);
    bytes
}

/// Asserts that the volume on a device has all its bytes.
#[track_caller]
fn is_whole(disk: &Disk, key: &VolumeKey, len: usize, case: u64) {
    let bytes = all_of(disk, len);
    let volume = activate(&read(&bytes[..]).unwrap(), key, OFFSET + DATA, false).unwrap();
    assert!(plaintext(&volume, &bytes) == pattern(DATA), "{case}: bytes are lost");
}

#[test]
fn a_copy_that_cannot_be_read_once_is_no_other_programs_change() {
    let (start, both) = with_an_older_second_copy();
    let mut failed = 0;
    for fails in 0..80 {
        let disk = Disk::new(start.clone());
        disk.set(Some(Fault::Read(fails)));
        if let Err(e) = go_on(&disk, &disk, &both, false) {
            assert_eq!(e.kind(), ErrorKind::Io, "{fails}: {e}");
            failed += 1;
            assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished, "{fails}");
        }
        is_whole(&disk, &both, start.len(), fails);
    }
    assert!(failed > 10, "{failed}");
}

#[test]
fn a_step_is_repeated_only_when_both_copies_call_it_begun() {
    let (start, both) = with_an_older_second_copy();
    for dies in 0..60 {
        let disk = Disk::new(start.clone());
        disk.set(Some(Fault::Dead(dies)));
        go_on(&disk, &disk, &both, false).unwrap_err();
        disk.set(None);
        let mut bytes = all_of(&disk, start.len());
        let whole = bytes.clone();
        // The first copy goes bad as well.
        bytes[4096..8192].fill(0x55);
        let bytes = if read(&bytes[..]).is_some() { bytes } else { whole };
        let disk = Disk::new(bytes);
        assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished, "{dies}");
        is_whole(&disk, &both, start.len(), dies);
    }
}

#[test]
fn a_copy_that_cannot_be_read_beside_a_bad_one_is_a_failing_disk() {
    let (start, ..) = disk();
    let mut bytes = start.bytes().clone();
    bytes[4096] ^= 1;
    let mut failed = 0;
    for fails in 0..8 {
        let disk = Disk::new(bytes.clone());
        disk.set(Some(Fault::Read(fails)));
        match Header::read(&disk) {
            Ok(header) => assert!(header.is_some(), "{fails}"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Io, "{fails}: {e}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0);
}
