//! The hashes that ESSIV may name.

use sha2::digest::DynDigest;

use crate::{Key, Result};

/// The hash of this name in the kernel's words: its digest's length, and how to compute it.
pub(super) fn named(name: &str) -> Option<Box<dyn DynDigest>> {
    Some(match name {
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
    })
}

/// The digest of a key, itself a key.
///
/// # Errors
/// `Memory` when no page could be had.
pub(super) fn digest(mut hash: Box<dyn DynDigest>, key: &[u8]) -> Result<Key> {
    let mut digest = Key::zeroed(hash.output_size())?;
    hash.update(key);
    // The buffer is as long as the digest.
    let _ = hash.finalize_into_reset(digest.as_mut_bytes());
    Ok(digest)
}
