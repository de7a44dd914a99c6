//! Names made by the kernel, and forged names.

use proptest::prelude::*;
use underseal_cipher::Key;

use super::*;

fn names(cipher: Cipher) -> NameCipher {
    let key = Key::new(&std::array::from_fn::<u8, 64, _>(|n| n.to_le_bytes()[0])).unwrap();
    let token = AuthToken::from_key(&key, AuthToken::NAME_SALT, None).unwrap();
    NameCipher::new(Arc::new(token), cipher).unwrap()
}

#[test]
fn names_are_those_of_the_kernel() {
    let token = AuthToken::from_passphrase(b"r3 golden passphrase", AuthToken::NAME_SALT).unwrap();
    let names = NameCipher::new(Arc::new(token), Cipher::DEFAULT).unwrap();
    let target = "ECRYPTFS_FNEK_ENCRYPTED.FXbQlDedG9t9LUQMrQFe1aZ3hnm10OyeG9VI1x1Fdwb2MJJZCgTnbP-K9te0xrF0FDRzZA4CeM27jGU-";
    assert_eq!(names.decode_target(target.as_bytes()).unwrap(), "/abs/über/target".as_bytes());
    assert_eq!(names.encode_target("/abs/über/target".as_bytes()).unwrap(), target.as_bytes());
    let name = "ECRYPTFS_FNEK_ENCRYPTED.FWbQlDedG9t9LUQMrQFe1aZ3hnm10OyeG9VIJkYCWI8i0SCw9RaD9p3pr---";
    assert_eq!(names.decode(name.as_bytes()).unwrap(), b"sparse");
    assert_eq!(names.encode(b"sparse").unwrap(), name.as_bytes());
}

#[test]
fn names_up_to_143_bytes_fit_a_lower_name() {
    for cipher in Cipher::all() {
        let names = names(cipher);
        for len in 1..=NameCipher::MAX_NAME {
            let name = vec![b'n'; len];
            let lower = names.encode(&name).unwrap();
            assert!(lower.len() <= NameCipher::MAX_LOWER, "{cipher}: {len}");
            assert_eq!(names.decode(&lower).unwrap(), name);
        }
        assert_eq!(names.encode(&[b'n'; 144]).unwrap_err().kind(), ErrorKind::NameTooLong);
    }
}

#[test]
fn what_is_no_name_is_refused_both_ways() {
    let names = names(Cipher::DEFAULT);
    for name in ["", ".", "..", "a/b", "/", "a\0b"] {
        assert_eq!(names.encode(name.as_bytes()).unwrap_err().kind(), ErrorKind::BadName, "{name:?}");
        let hostile = names.seal(name.as_bytes()).unwrap();
        assert_eq!(names.decode(&hostile).unwrap_err().kind(), ErrorKind::BadName, "{name:?}");
    }
}

#[test]
fn another_key_is_named_and_another_cipher_of_the_same_key_read() {
    let token = AuthToken::from_key(&Key::new(&[9; 64]).unwrap(), AuthToken::NAME_SALT, None).unwrap();
    let other = NameCipher::new(Arc::new(token), Cipher::DEFAULT).unwrap();
    let error = names(Cipher::DEFAULT).decode(&other.encode(b"name").unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoKey);
    assert!(error.to_string().contains(&other.token().signature().to_string()));
    let wide = names(Cipher::new("aes", 32).unwrap()).encode(b"name").unwrap();
    assert_eq!(names(Cipher::DEFAULT).decode(&wide).unwrap(), b"name");
}

#[test]
fn a_key_size_that_no_packet_says_is_found() {
    for cipher in Cipher::all() {
        let names = names(cipher);
        let lower = names.encode(b"name").unwrap();
        let found = NameCipher::like(&lower, names.token(), Cipher::DEFAULT).unwrap();
        assert_eq!((found.cipher(), found.decode(&lower).unwrap()), (cipher, b"name".to_vec()));
    }
}

#[test]
fn hostile_names_are_refused() {
    let names = names(Cipher::DEFAULT);
    let good = names.encode(b"name").unwrap();
    let packed = |sealed: &[u8], code| {
        Packed { signature: names.token.signature(), code, sealed: sealed.to_vec() }.encode()
    };
    for (what, lower) in [
        ("plain", b"name".to_vec()),
        ("only the prefix", PREFIX.to_vec()),
        ("cut in a group", good[..good.len() - 1].to_vec()),
        ("cut by a group", good[..good.len() - 4].to_vec()),
        ("something behind it", [&good[..], b"----"].concat()),
        ("another character", [&good[..good.len() - 1], b"+"].concat()),
        ("no ciphertext", packed(b"", 7)),
        ("half a block", packed(&[1; 8], 7)),
        ("noise", packed(&[1; 32], 7)),
        ("no such cipher", packed(&[1; 32], 99)),
    ] {
        assert_eq!(names.decode(&lower).unwrap_err().kind(), ErrorKind::BadName, "{what}");
    }
}

proptest! {
    #[test]
    fn decoding_undoes_encoding(name in prop::collection::vec(1u8..=255, 1..=143)) {
        let names = names(Cipher::DEFAULT);
        match names.encode(&name) {
            Ok(lower) => prop_assert_eq!(names.decode(&lower).unwrap(), name),
            Err(error) => prop_assert!(error.kind() == ErrorKind::BadName && (name.contains(&b'/') || name[0] == b'.')),
        }
    }

    #[test]
    fn a_long_target_comes_back(target in prop::collection::vec(1u8..=255, 1..=4095)) {
        let names = names(Cipher::new("blowfish", 16).unwrap());
        prop_assert_eq!(names.decode_target(&names.encode_target(&target).unwrap()).unwrap(), target);
    }

    #[test]
    fn a_changed_name_is_not_another_form_of_a_name(at in 24usize..80, by in any::<u8>()) {
        let names = names(Cipher::DEFAULT);
        let mut lower = names.encode(b"a name of some length").unwrap();
        let at = at.min(lower.len() - 1);
        lower[at] = by;
        if let Ok(name) = names.decode(&lower) {
            prop_assert_eq!(names.encode(&name).unwrap(), lower);
        }
    }
}
