//! Starts that are refused, and the fate of bytes that are not the volume's or that it gives up.

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

/// Checks that a start is refused with nothing written, and returns the message.
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

#[test]
fn what_cannot_be_begun_is_refused_and_nothing_is_written() {
    type Change = fn(&mut BeginOptions);
    let refused: [(&str, ErrorKind, Change); 9] = [
        ("nothing would change", ErrorKind::BadOption, |o| o.key = NewKey::Keep),
        ("LUKS has 512 to 4096", ErrorKind::BadOption, |o| {
            o.sector_size = Some(SectorSize::new(8192).unwrap())
        }),
        ("does not fit", ErrorKind::BadOption, |o| o.key = NewKey::Random(Some(17))),
        ("does not fit", ErrorKind::BadOption, |o| {
            (o.cipher, o.key) = (Some("aes-xts-plain64".parse().unwrap()), NewKey::Keep);
        }),
        ("encrypts nothing", ErrorKind::NullCipher, |o| o.cipher = Some("cipher_null-ecb".parse().unwrap())),
        ("up to", ErrorKind::BadOption, |o| o.size = Some(DATA as u64 + 512)),
        ("device ends", ErrorKind::TooSmall, |o| {
            (o.shift, o.direction) = (Some(DATA as u64), Direction::Backward);
        }),
        ("backward", ErrorKind::BadOption, |o| o.shift = Some(4096)),
        ("tell old sectors", ErrorKind::BadLayout, |o| o.sector_size = Some(SectorSize::S4096)),
    ];
    for (why, kind, make) in refused {
        let (disk, mut header, key) = disk();
        let mut options = change(CHECKSUM);
        make(&mut options);
        let (passphrase, new) = (passphrase(), header.like_keyslot(0).unwrap());
        let passphrases = [Passphrase { slot: 0, passphrase: &passphrase, new }];
        let size = (OFFSET + DATA) as u64;
        let error = header.begin_reencryption(&disk, key, &passphrases, size, &options).unwrap_err();
        assert_eq!(error.kind(), kind, "{why}: {error}");
        assert!(error.to_string().contains(why), "{why}: {error}");
        assert!(disk.is_untouched(), "{why}");
    }
    let (disk, mut header, key) = disk();
    let size = (OFFSET + DATA) as u64;
    let error = header.begin_reencryption(&disk, same(&key), &[], size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadOption);
    let (passphrase, new) = (passphrase(), header.like_keyslot(0).unwrap());
    let passphrases = [Passphrase { slot: 3, passphrase: &passphrase, new }];
    let error =
        header.begin_reencryption(&disk, same(&key), &passphrases, size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoKeyslot);
    let other = VolumeKey::new(Key::new(&[7; 16]).unwrap(), 0);
    let error = header.begin_reencryption(&disk, other, &passphrases, size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongKey);
    assert!(disk.is_untouched());
    begin(&disk, &mut header, same(&key), &change(CHECKSUM));
    let error = header.begin_reencryption(&disk, key, &passphrases, size, &change(CHECKSUM)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "once is enough: {error}");
}
