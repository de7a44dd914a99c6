//! The hashes that ESSIV may name.

use sha2::digest::DynDigest;

use crate::{Key, Result};

/// A hash, and the number of digest bytes in use.
pub(super) struct TruncatedHash {
    function: Box<dyn DynDigest>,
    pub(super) bytes: usize,
}

/// The hash of this name in the kernel's naming.
pub(super) fn named(name: &str) -> Option<TruncatedHash> {
    let whole = |function: Box<dyn DynDigest>| TruncatedHash { bytes: function.output_size(), function };
    // Shortened Whirlpool has names here.
    let (name, cut) = match name {
        "wp256" => ("wp512", Some(32)),
        "wp384" => ("wp512", Some(48)),
        name => (name, None),
    };
    let hash = whole(match name {
        "md5" => Box::<md5::Md5>::default(),
        "sha1" => Box::<sha1::Sha1>::default(),
        "sha224" => Box::<sha2::Sha224>::default(),
        "sha256" => Box::<sha2::Sha256>::default(),
        "sha384" => Box::<sha2::Sha384>::default(),
        "sha512" => Box::<sha2::Sha512>::default(),
        "sha3-224" => Box::<sha3::Sha3_224>::default(),
        "sha3-256" => Box::<sha3::Sha3_256>::default(),
        "sha3-384" => Box::<sha3::Sha3_384>::default(),
        "sha3-512" => Box::<sha3::Sha3_512>::default(),
        "rmd160" => Box::<ripemd::Ripemd160>::default(),
        "wp512" => Box::<whirlpool::Whirlpool>::default(),
        "sm3" => Box::<sm3::Sm3>::default(),
        "blake2b-256" => Box::<blake2::Blake2b256>::default(),
        "blake2b-512" => Box::<blake2::Blake2b512>::default(),
        "blake2s-256" => Box::<blake2::Blake2s256>::default(),
        _ => return None,
    });
    Some(TruncatedHash { bytes: cut.unwrap_or(hash.bytes), ..hash })
}

/// The digest of a key, itself a key. Returns `Memory` when the system has no page.
pub(super) fn digest(mut hash: TruncatedHash, key: &[u8]) -> Result<Key> {
    let mut digest = Key::zeroed(hash.function.output_size())?;
    hash.function.update(key);
    // The buffer has the digest's length.
    let _ = hash.function.finalize_into_reset(digest.as_mut_bytes());
    digest.truncate(hash.bytes);
    Ok(digest)
}
