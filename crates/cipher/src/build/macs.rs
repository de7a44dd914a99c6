//! The MACs of `authenc` by name.

use super::ciphers::{BlockCipherBuilder, BlockCipherKind};
use crate::mac::{AnyMac, Cmac, HmacSha256, library};
use crate::spec::Algorithm;
use crate::{CpuPath, Error, ErrorKind, Result};

/// A MAC by name.
pub(super) struct MacKind {
    /// Bytes of the whole MAC; also the default length of its key.
    pub(super) bytes: usize,
    make: MacBuilder,
}

enum MacBuilder {
    Hmac(fn(&[u8], CpuPath) -> Result<AnyMac>),
    Cmac(&'static BlockCipherKind),
}

impl MacKind {
    /// Finds the MAC of this name, or returns the reason for its absence.
    pub(super) fn named(mac: &Algorithm) -> std::result::Result<Self, String> {
        match (mac.chain(), mac.of()) {
            ("hmac", [hash]) => {
                let name = hash.leaf().unwrap_or("");
                let (bytes, make) = hmac(name).ok_or_else(|| format!("there is no hmac of \"{name}\""))?;
                Ok(Self { bytes, make: MacBuilder::Hmac(make) })
            }
            ("cmac", [cipher]) => {
                let kind = BlockCipherKind::named(cipher.leaf().unwrap_or(""))?;
                if kind.block() != 16 {
                    return Err(format!(
                        "cmac is made of ciphers with blocks of 16 bytes, not {}",
                        kind.name
                    ));
                }
                Ok(Self { bytes: 16, make: MacBuilder::Cmac(kind) })
            }
            (name, _) => Err(format!("there is no MAC \"{name}\": want hmac(HASH) or cmac(CIPHER)")),
        }
    }

    /// Keys the MAC. Returns `KeySize` for a key that the MAC's cipher refuses; `Memory` without
    /// locked pages.
    pub(super) fn make(&self, key: &[u8], path: CpuPath) -> Result<AnyMac> {
        match &self.make {
            MacBuilder::Hmac(make) => make(key, path),
            MacBuilder::Cmac(BlockCipherKind { make: BlockCipherBuilder::Of16(make), keys, .. })
                if keys.contains(&key.len()) =>
            {
                Ok(Box::new(Cmac::new(make(key, path)?)?))
            }
            MacBuilder::Cmac(kind) => {
                let why = format!("cmac({}) takes no key of {} bytes", kind.name, key.len());
                Err(Error::new(ErrorKind::KeySize, why))
            }
        }
    }
}

/// The digest's length, and the function that keys the HMAC.
type Hmac = (usize, fn(&[u8], CpuPath) -> Result<AnyMac>);

fn hmac(hash: &str) -> Option<Hmac> {
    Some(match hash {
        "sha256" => (32, |key, path| Ok(Box::new(HmacSha256::new(path, key)?))),
        "md5" => (16, |key, _| library::<md5::Md5>(key)),
        "sha1" => (20, |key, _| library::<sha1::Sha1>(key)),
        "sha224" => (28, |key, _| library::<sha2::Sha224>(key)),
        "sha384" => (48, |key, _| library::<sha2::Sha384>(key)),
        "sha512" => (64, |key, _| library::<sha2::Sha512>(key)),
        "rmd160" => (20, |key, _| library::<ripemd::Ripemd160>(key)),
        "sm3" => (32, |key, _| library::<sm3::Sm3>(key)),
        "wp512" => (64, |key, _| library::<whirlpool::Whirlpool>(key)),
        _ => return None,
    })
}
