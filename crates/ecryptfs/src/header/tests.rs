//! Interrupted, changed and forged headers.

use std::sync::Arc;

use proptest::prelude::*;
use underseal_cipher::Key;

use super::*;
use crate::{Cipher, Signature};

fn token(byte: u8) -> AuthToken {
    AuthToken::from_key(&Key::new(&[byte; 64]).unwrap(), [byte; 8], None).unwrap()
}

fn header(cipher: Cipher, tokens: &[&AuthToken], place: HeaderLocation) -> FileHeader {
    FileHeader::new(&FileKey::random(cipher).unwrap(), tokens, place).unwrap()
}

#[test]
fn any_of_several_tokens_opens_a_file_of_any_cipher() {
    let tokens = [token(1), token(2), token(3)];
    for cipher in Cipher::all() {
        let key = FileKey::random(cipher).unwrap();
        let header = FileHeader::new(&key, &tokens.each_ref(), HeaderLocation::File).unwrap();
        let read = FileHeader::read(&header.to_file()).unwrap();
        assert_eq!(read, header);
        let mut plain = [5; 3 * crate::EXTENT];
        key.contents().unwrap().encrypt(7, &mut plain);
        for byte in 1..=3 {
            let opened = read.unlock(&Keyring::from(token(byte))).unwrap();
            assert_eq!(opened.cipher(), cipher);
            let mut back = plain;
            opened.contents().unwrap().decrypt(7, &mut back);
            assert!(back.iter().all(|&byte| byte == 5), "{cipher}");
        }
    }
}

#[test]
fn a_missing_key_is_named() {
    let header = header(Cipher::DEFAULT, &[&token(1)], HeaderLocation::File);
    let error = header.unlock(&Keyring::from(token(9))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoKey);
    assert!(error.to_string().contains(&token(1).signature().to_string()), "{error}");
}

#[test]
fn a_header_moves_to_an_xattr_and_back() {
    let token = token(1);
    let mut in_file = header(Cipher::DEFAULT, &[&token], HeaderLocation::File);
    in_file.set_size(12345);
    let in_xattr = in_file.moved_to(HeaderLocation::Xattr);
    assert_eq!((in_xattr.flags(), in_xattr.data_offset()), (0x0300_0006, 0));
    let read = FileHeader::read_xattr(&in_xattr.to_xattr()).unwrap();
    assert_eq!(read, in_xattr);
    assert_eq!(read.moved_to(HeaderLocation::File), in_file);
}

#[test]
fn tokens_come_and_go_but_never_the_last() {
    let (one, two) = (token(1), token(2));
    let key = FileKey::random(Cipher::DEFAULT).unwrap();
    let mut header = FileHeader::new(&key, &[&one], HeaderLocation::File).unwrap();
    header.add(&key, &two).unwrap();
    header.add(&key, &two).unwrap();
    assert_eq!(header.packets().len(), 2);
    assert!(header.remove(one.signature()).unwrap());
    assert!(!header.remove(one.signature()).unwrap());
    assert_eq!(header.remove(two.signature()).unwrap_err().kind(), ErrorKind::BadOption);
    header.unlock(&Keyring::from(two)).unwrap();
}

#[test]
fn a_header_takes_no_more_keys_than_fit() {
    let key = FileKey::random(Cipher::new("blowfish", 56).unwrap()).unwrap();
    let mut header = FileHeader::new(&key, &[&token(0)], HeaderLocation::File).unwrap();
    let refused = (1..=255).find_map(|byte| header.add(&key, &token(byte)).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::BadOption);
    assert_eq!(FileHeader::read(&header.to_file()).unwrap(), header);
    assert!(header.packets().len() > 30);
}

/// A changed header, and its error.
#[test]
fn hostile_headers_are_refused() {
    let good = header(Cipher::DEFAULT, &[&token(1)], HeaderLocation::File).to_file();
    assert!(FileHeader::read(&good).is_ok());
    type Change<'a> = &'a dyn Fn(&mut Vec<u8>);
    let cases: [(&str, Change<'_>, ErrorKind); 20] = [
        ("no marker", &|h| h[12] ^= 1, ErrorKind::NotEncrypted),
        ("an empty file", &|h| h.clear(), ErrorKind::NotEncrypted),
        ("cut in the marker", &|h| h.truncate(15), ErrorKind::NotEncrypted),
        ("cut in the flags", &|h| h.truncate(18), ErrorKind::BadHeader),
        ("cut in the geometry", &|h| h.truncate(25), ErrorKind::BadHeader),
        ("cut before the packets", &|h| h.truncate(26), ErrorKind::BadHeader),
        ("a version of the future", &|h| h[16] = 4, ErrorKind::Unsupported),
        ("no extents", &|h| h[24..26].fill(0), ErrorKind::BadHeader),
        ("one extent", &|h| h[25] = 1, ErrorKind::BadHeader),
        ("extents of no bytes", &|h| h[20..24].fill(0), ErrorKind::BadHeader),
        ("a size beyond any file", &|h| h[0] = 0x80, ErrorKind::BadHeader),
        ("no packets", &|h| h[26] = 0, ErrorKind::BadHeader),
        ("a signature first", &|h| h[26] = 0xed, ErrorKind::BadHeader),
        ("a length of three bytes", &|h| h[27] = 224, ErrorKind::BadHeader),
        ("a length beyond the header", &|h| h[27..29].copy_from_slice(&[223, 255]), ErrorKind::BadHeader),
        ("a key of no bytes", &|h| h[27] = 13, ErrorKind::BadHeader),
        ("a key of 65 bytes", &|h| h[27] = 13 + 65, ErrorKind::BadHeader),
        ("a key's other version", &|h| h[28] = 5, ErrorKind::BadHeader),
        ("a key's other specifier", &|h| h[30] = 0, ErrorKind::BadHeader),
        ("a signature of 7 bytes", &|h| h[58] = 21, ErrorKind::BadHeader),
    ];
    for (what, change, kind) in cases {
        let mut bytes = good.clone();
        change(&mut bytes);
        assert_eq!(FileHeader::read(&bytes).map(|_| ()).map_err(|e| e.kind()), Err(kind), "{what}");
    }
}

#[test]
fn a_cipher_that_there_is_not_is_an_error_of_its_file_only() {
    let mut bytes = header(Cipher::DEFAULT, &[&token(1)], HeaderLocation::File).to_file();
    bytes[29] = 99;
    let read = FileHeader::read(&bytes).unwrap();
    assert_eq!(read.unlock(&Keyring::from(token(1))).unwrap_err().kind(), ErrorKind::BadHeader);
}

#[test]
fn version_0_has_no_geometry() {
    let mut bytes = header(Cipher::DEFAULT, &[&token(1)], HeaderLocation::File).to_file();
    bytes[16] = 0;
    bytes.drain(20..26);
    let read = FileHeader::read(&bytes).unwrap();
    assert_eq!((read.version(), read.data_offset()), (0, 8192));
    assert_eq!(read.to_file()[..100], bytes[..100]);
    read.unlock(&Keyring::from(token(1))).unwrap();
}

#[test]
fn large_pages_have_large_headers() {
    let mut bytes = header(Cipher::DEFAULT, &[&token(1)], HeaderLocation::File).to_file();
    bytes[25] = 16;
    assert_eq!(FileHeader::read(&bytes).unwrap().data_offset(), 65536);
}

#[test]
fn a_public_key_is_shown_and_not_opened() {
    let mut bytes = header(Cipher::DEFAULT, &[&token(1)], HeaderLocation::File).to_xattr();
    bytes.truncate(26);
    bytes.extend_from_slice(&[1, 12, 3, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0xaa, 0xbb]);
    let read = FileHeader::read_xattr(&bytes).unwrap();
    let signature = Signature::new([1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(read.packets(), [KeyPacket::PublicKey { signature, ciphertext: vec![0xaa, 0xbb] }]);
    assert_eq!(read.to_xattr(), bytes);
    let keyring = Keyring::from(token(1));
    assert_eq!(read.unlock(&keyring).unwrap_err().kind(), ErrorKind::NoKey);
}

#[test]
fn one_token_of_a_signature_is_kept() {
    let mut keyring = Keyring::new();
    keyring.add(token(1));
    keyring.add(Arc::new(token(1)));
    assert_eq!(keyring.iter().count(), 1);
}

proptest! {
    #[test]
    fn a_cut_header_is_an_error_or_the_same(at in 0usize..200) {
        let header = header(Cipher::DEFAULT, &[&token(1), &token(2)], HeaderLocation::Xattr);
        let bytes = header.to_xattr();
        let cut = &bytes[..at.min(bytes.len())];
        match FileHeader::read_xattr(cut) {
            Ok(read) => prop_assert!(read == header || read.packets() == &header.packets()[..1]),
            Err(error) => prop_assert!(matches!(error.kind(), ErrorKind::NotEncrypted | ErrorKind::BadHeader)),
        }
    }

    #[test]
    fn what_is_read_is_written_again(changes in prop::collection::vec((0usize..140, any::<u8>()), 0..4)) {
        let mut bytes = header(Cipher::DEFAULT, &[&token(1)], HeaderLocation::File).to_file();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(read) = FileHeader::read(&bytes) {
            let again = FileHeader::read(&read.to_file()).unwrap();
            prop_assert_eq!(read, again);
        }
    }
}
