//! The hashes of headers and passphrases, chosen at run time.

use std::fmt;
use std::str::FromStr;

use digest::DynDigest;
use underseal_cipher::wipe_traces;

use crate::{Error, ErrorKind, Result};

/// Runs `$body` with `$D` standing for the type of `$hash`.
macro_rules! with_digest {
    ($hash:expr, $D:ident => $body:expr) => {
        with_digest!(@match $hash, $D => $body;
            Sha1 sha1::Sha1, Sha224 sha2::Sha224, Sha256 sha2::Sha256, Sha384 sha2::Sha384, Sha512 sha2::Sha512,
            Sha3_224 sha3::Sha3_224, Sha3_256 sha3::Sha3_256, Sha3_384 sha3::Sha3_384, Sha3_512 sha3::Sha3_512,
            Ripemd160 ripemd::Ripemd160, Whirlpool whirlpool::Whirlpool,
            Blake2b512 blake2::Blake2b512, Blake2s256 blake2::Blake2s256, Sm3 sm3::Sm3,
            Streebog512 streebog::Streebog512)
    };
    (@match $hash:expr, $D:ident => $body:expr; $($variant:ident $type:ty),*) => {
        match $hash { $(Hash::$variant => { type $D = $type; $body })* }
    };
}

/// Runs `$body` with `$M` standing for the type of HMAC over `$hash`.
macro_rules! with_mac {
    ($hash:expr, $M:ident => $body:expr) => {
        with_mac!(@match $hash, $M => $body;
            Sha1 Hmac sha1::Sha1, Sha224 Hmac sha2::Sha224, Sha256 Hmac sha2::Sha256, Sha384 Hmac sha2::Sha384,
            Sha512 Hmac sha2::Sha512, Sha3_224 SimpleHmac sha3::Sha3_224, Sha3_256 SimpleHmac sha3::Sha3_256,
            Sha3_384 SimpleHmac sha3::Sha3_384, Sha3_512 SimpleHmac sha3::Sha3_512,
            Ripemd160 Hmac ripemd::Ripemd160, Whirlpool Hmac whirlpool::Whirlpool,
            Blake2b512 SimpleHmac blake2::Blake2b512, Blake2s256 SimpleHmac blake2::Blake2s256,
            Sm3 Hmac sm3::Sm3, Streebog512 Hmac streebog::Streebog512)
    };
    (@match $hash:expr, $M:ident => $body:expr; $($variant:ident $mac:ident $type:ty),*) => {
        match $hash { $($crate::Hash::$variant => { type $M = hmac::$mac<$type>; $body })* }
    };
}
pub(crate) use with_mac;

/// The bytes of stack that a key derivation may have used.
pub(crate) const TRACES: usize = 64 << 10;

/// A hash by its name in cryptsetup and the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the hash it names")]
pub enum Hash {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
    Sha3_224,
    Sha3_256,
    Sha3_384,
    Sha3_512,
    Ripemd160,
    Whirlpool,
    Blake2b512,
    Blake2s256,
    Sm3,
    Streebog512,
}

impl Hash {
    /// All hashes.
    pub const ALL: [Self; 15] = [
        Self::Sha1,
        Self::Sha224,
        Self::Sha256,
        Self::Sha384,
        Self::Sha512,
        Self::Sha3_224,
        Self::Sha3_256,
        Self::Sha3_384,
        Self::Sha3_512,
        Self::Ripemd160,
        Self::Whirlpool,
        Self::Blake2b512,
        Self::Blake2s256,
        Self::Sm3,
        Self::Streebog512,
    ];

    /// Returns the name that is written to disk: `sha256`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha224 => "sha224",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
            Self::Sha3_224 => "sha3-224",
            Self::Sha3_256 => "sha3-256",
            Self::Sha3_384 => "sha3-384",
            Self::Sha3_512 => "sha3-512",
            Self::Ripemd160 => "ripemd160",
            Self::Whirlpool => "whirlpool",
            Self::Blake2b512 => "blake2b-512",
            Self::Blake2s256 => "blake2s-256",
            Self::Sm3 => "sm3",
            // This is the name in libgcrypt, the kernel and cryptsetup.
            Self::Streebog512 => "stribog512",
        }
    }

    /// Returns the length of a digest in bytes.
    pub fn output_len(self) -> usize {
        self.start().output_size()
    }

    /// Returns an initial state.
    pub(crate) fn start(self) -> Box<dyn DynDigest> {
        with_digest!(self, D => Box::<D>::default())
    }

    /// Returns the digest of the parts, one after the other.
    pub fn digest(self, parts: &[&[u8]]) -> Box<[u8]> {
        let mut state = self.start();
        parts.iter().for_each(|part| state.update(part));
        state.finalize()
    }

    /// Fills `out` with PBKDF2-HMAC (RFC 8018, 5.2) over this hash.
    pub(crate) fn pbkdf2(self, passphrase: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
        // HMAC accepts a key of any length, so the only error of this call cannot occur.
        with_mac!(self, M => pbkdf2::pbkdf2::<M>(passphrase, salt, iterations, out)
            .expect("HMAC takes any key"));
        // HMAC's key has been on the stack: with a digest of LUKS2 the volume key.
        wipe_traces::<TRACES>();
    }
}

impl FromStr for Hash {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|hash| hash.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("hash {} is not supported", crate::printable(name)))
        })
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
