//! What a start refuses, and what becomes of bytes that are not the volume's or that it gives up.

use serde_json::json;

use super::*;
use crate::ErrorKind;
use crate::luks2::reencrypt::arrange::Document;

fn shifted(size: Option<usize>) -> BeginOptions {
    BeginOptions {
        direction: Direction::Backward,
        shift: Some(4 * KIB as u64),
        size: size.map(|size| size as u64),
        ..change(Protection::None)
    }
}

/// A start that is refused with nothing written.
fn refused(disk: &Recorder, header: &mut Header, key: VolumeKey, options: &BeginOptions) -> String {
    let before = disk.bytes().clone();
    let (passphrase, new) = (passphrase(), header.like_keyslot(0).unwrap());
    let passphrases = [Passphrase { slot: 0, passphrase: &passphrase, new }];
    let size = (OFFSET + DATA) as u64;
    let e = header.begin_reencryption(disk, key, &passphrases, size, options).map(drop).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::BadOption, "{e}");
    assert!(*disk.bytes() == before, "{e}");
    e.to_string()
}

#[test]
fn a_part_of_a_volume_does_not_move_over_the_rest_of_it() {
    let (disk, mut header, key) = disk();
    let why = refused(&disk, &mut header, key, &shifted(Some(8 * KIB)));
    assert!(why.contains("as a whole"), "{why}");
}

#[test]
fn a_volume_that_does_not_reach_to_the_end_of_its_device_does_not_move_over_what_lies_behind_it() {
    let (disk, mut header, key) = disk();
    let ends = |document: &mut Document, _: &Metadata| {
        document["segments"]["0"]["size"] = json!("8192");
        Ok(())
    };
    header.update(&disk, ends, |()| Ok(())).unwrap();
    let why = refused(&disk, &mut header, key, &shifted(None));
    assert!(why.contains("behind it"), "{why}");
}

#[test]
fn a_volume_of_which_only_a_part_has_the_new_key_ends_with_that_part() {
    let (disk, mut header, key) = disk();
    let part = BeginOptions { size: Some(8 * KIB as u64), ..change(CHECKSUM) };
    let both = begin(&disk, &mut header, key, &part);
    let before = disk.bytes().clone();
    assert_eq!(go_on(&disk, &disk, &both, false).unwrap(), Outcome::Finished);
    let bytes = disk.bytes().clone();
    assert!(bytes[OFFSET + 8 * KIB..] == before[OFFSET + 8 * KIB..], "the rest stays as it is");
    let header = read(&disk).unwrap();
    let volume = activate(&header, &both, bytes.len(), false).unwrap();
    assert!(plaintext(&volume, &bytes) == pattern(8 * KIB), "{} bytes", volume.size());
}
