//! The fuzzer's work on its input. Shared between `fuzz/` and the test that replays its seeds and
//! findings.

pub(crate) mod archive;
pub(crate) mod mount;

use std::sync::Arc;

use underseal_cipher::Key;
use underseal_ecryptfs::options::EcryptfsOptions;
use underseal_ecryptfs::{
    AuthToken, Cipher, FileHeader, Keyring, NameCipher, signatures::Signatures, wrapped,
};

/// The token that opens the seeds: the token of the kernel's trees, without its 65536 rounds.
fn token() -> AuthToken {
    let mut key = [0; 64];
    for (nth, byte) in key.iter_mut().enumerate() {
        *byte = u8::try_from(nth * 3 + 1).unwrap_or(0);
    }
    let key = Key::new(&key).expect("a page");
    let signature = "0ebe4519ccc61621".parse().expect("a signature");
    AuthToken::from_key(&key, AuthToken::DEFAULT_SALT, Some(signature)).expect("64 bytes")
}

/// A header in a file and in an xattr: a parsed header is written again, and an unlocked header has
/// a cipher.
pub(crate) fn header(bytes: &[u8]) -> bool {
    let keyring = Keyring::from(token());
    let in_file = FileHeader::read(bytes);
    if let Ok(header) = &in_file {
        let again = FileHeader::read(&header.to_file()).expect("what was written reads");
        assert_eq!(again, *header);
        assert!(header.data_offset() >= 8192);
        if let Ok(key) = header.unlock(&keyring) {
            let mut extents = [7; 8192];
            let contents = key.contents().expect("a cipher");
            contents.encrypt(header.size() / 4096, &mut extents);
            contents.decrypt(header.size() / 4096, &mut extents);
            assert!(extents.iter().all(|&byte| byte == 7));
            // Another key can be added and removed.
            let other = Key::new(&[9; 64]).expect("a page");
            let other = AuthToken::from_key(&other, [1; 8], None).expect("64 bytes");
            let mut grown = header.clone();
            if grown.add(&key, &other).is_ok() {
                let opened =
                    FileHeader::read(&grown.to_file()).expect("it reads").unlock(&Keyring::from(other));
                assert_eq!(opened.expect("it opens"), key);
            }
        }
    }
    let in_xattr = FileHeader::read_xattr(bytes);
    if let Ok(header) = &in_xattr {
        assert_eq!(FileHeader::read_xattr(&header.to_xattr()).expect("what was written reads"), *header);
    }
    in_file.is_ok() || in_xattr.is_ok()
}

/// A lower name, a lower target, and a plain name: a decoded lower name is encoded to the same
/// lower name.
pub(crate) fn name(bytes: &[u8]) -> bool {
    let token = Arc::new(token());
    let names = NameCipher::new(token.clone(), Cipher::DEFAULT).expect("a cipher");
    let decoded = names.decode(bytes);
    if let Ok(name) = &decoded {
        let like = NameCipher::like(bytes, &token, Cipher::DEFAULT).expect("it decoded");
        assert_eq!(like.encode(name).expect("it was encoded"), bytes);
    }
    let _ = NameCipher::like(bytes, &token, Cipher::DEFAULT);
    let _ = names.decode_target(bytes);
    if let Ok(lower) = names.encode(bytes) {
        assert!(lower.len() <= NameCipher::MAX_LOWER);
        assert_eq!(names.decode(&lower).expect("it was just encoded"), bytes);
    }
    if let Ok(lower) = names.encode_target(bytes) {
        assert_eq!(names.decode_target(&lower).expect("it was just encoded"), bytes);
    }
    decoded.is_ok()
}

/// The files of `~/.ecryptfs`, and mount options.
pub(crate) fn files(bytes: &[u8]) -> bool {
    let unwrapped = wrapped::unwrap(bytes, b"login");
    let signatures = Signatures::read(bytes);
    if let Ok(signatures) = &signatures {
        assert_eq!(
            Signatures::read(signatures.to_text().as_bytes()).expect("it was just written"),
            *signatures
        );
    }
    let options = std::str::from_utf8(bytes).map(EcryptfsOptions::parse);
    if let Ok(Ok(options)) = &options {
        options.cipher_or(Cipher::DEFAULT).expect("it was checked");
        options.name_cipher_or(Cipher::DEFAULT).expect("it was checked");
    }
    unwrapped.is_ok() || signatures.is_ok() || matches!(options, Ok(Ok(_)))
}
