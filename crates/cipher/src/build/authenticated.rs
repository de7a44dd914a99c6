//! Authenticated modes by name, with their parameters and keys.

use super::ciphers::{BlockCipherBuilder, BlockCipherKind};
use super::macs::MacKind;
use super::plan::ModePlan;
use crate::aead::{Aegis, AesGcm, AnyAead, Ccm, ChaChaPoly, EachSector, Gcm, Nonces, SectorAead};
use crate::kernel::GcmKey;
use crate::spec::Algorithm;
use crate::{CpuPath, Error, ErrorKind, Key, Result};

/// An authenticated mode.
pub(super) enum AuthenticatedMode {
    Gcm {
        cipher: &'static BlockCipherKind,
        /// `rfc4106`: the key ends with 4 bytes of salt.
        salted: bool,
    },
    ChaChaPoly {
        /// `rfc7539esp`: the key ends with 4 bytes of salt.
        salted: bool,
    },
    /// `rfc4309`: the key ends with 3 bytes of salt.
    Ccm {
        cipher: &'static BlockCipherKind,
    },
    Aegis128,
    Authenc {
        mac: MacKind,
        mode: Box<ModePlan>,
    },
}

impl AuthenticatedMode {
    /// Finds the mode of this name, or returns the reason for its absence. `mode` finds the chain
    /// mode of `authenc`.
    pub(super) fn named(
        algorithm: &Algorithm,
        mode: impl FnOnce(&Algorithm) -> std::result::Result<ModePlan, String>,
    ) -> std::result::Result<Self, String> {
        match (algorithm.chain(), algorithm.of()) {
            ("gcm", [cipher]) => Ok(Self::Gcm { cipher: of16(cipher)?, salted: false }),
            ("rfc4106", [gcm]) if gcm.chain() == "gcm" && gcm.of().len() == 1 => {
                Ok(Self::Gcm { cipher: of16(&gcm.of()[0])?, salted: true })
            }
            ("rfc4309", [ccm]) if ccm.chain() == "ccm" && ccm.of().len() == 1 => {
                Ok(Self::Ccm { cipher: of16(&ccm.of()[0])? })
            }
            ("ccm", _) => {
                Err("ccm alone takes its parameters out of the IV, and every write would fail: want \
                               rfc4309(ccm(..))"
                    .into())
            }
            (name @ ("rfc7539" | "rfc7539esp"), [stream, hash])
                if stream.leaf() == Some("chacha20") && hash.leaf() == Some("poly1305") =>
            {
                Ok(Self::ChaChaPoly { salted: name == "rfc7539esp" })
            }
            ("aegis128", []) => Ok(Self::Aegis128),
            ("authenc", [mac, of]) => {
                let mode = mode(of)?;
                if !mode.has_iv() || matches!(mode, ModePlan::Authenticated(_) | ModePlan::NullChain { .. }) {
                    return Err(format!("authenc is not for \"{}\"", of.chain()));
                }
                Ok(Self::Authenc { mac: MacKind::named(mac)?, mode: Box::new(mode) })
            }
            (name, _) => Err(format!("there is no authenticated mode \"{name}\" for it")),
        }
    }

    /// Bytes of an IV.
    pub(super) fn iv_width(&self) -> usize {
        match self {
            Self::Gcm { salted: false, .. } | Self::ChaChaPoly { salted: false } => 12,
            Self::Gcm { .. } | Self::ChaChaPoly { .. } | Self::Ccm { .. } => 8,
            Self::Aegis128 => 16,
            Self::Authenc { mode, .. } => mode.iv_width(),
        }
    }

    /// The block size that the kernel reports.
    pub(super) fn reported_block(&self) -> usize {
        match self {
            Self::Authenc { mode, .. } => mode.reported_block(),
            _ => 1,
        }
    }

    /// The key sizes, the preferred one last; without a MAC's key.
    pub(super) fn key_sizes(&self) -> &'static [usize] {
        match self {
            Self::Gcm { cipher, salted: false } => cipher.keys,
            Self::Gcm { cipher, .. } => {
                if cipher.keys.len() == 1 {
                    &[20]
                } else {
                    &[20, 28, 36]
                }
            }
            Self::Ccm { cipher } => {
                if cipher.keys.len() == 1 {
                    &[19]
                } else {
                    &[19, 27, 35]
                }
            }
            Self::ChaChaPoly { salted: false } => &[32],
            Self::ChaChaPoly { .. } => &[36],
            Self::Aegis128 => &[16],
            Self::Authenc { mode, .. } => mode.key_sizes(),
        }
    }

    /// The default length of the MAC's key, in bytes.
    pub(super) fn mac_key(&self) -> usize {
        match self {
            Self::Authenc { mac, .. } => mac.bytes,
            _ => 0,
        }
    }

    /// True when a tag may have `bytes` bytes.
    pub(super) fn takes_tag(&self, bytes: usize) -> bool {
        match self {
            Self::Gcm { salted: false, .. } => matches!(bytes, 4 | 8 | 12..=16),
            Self::Gcm { .. } | Self::Ccm { .. } => matches!(bytes, 8 | 12 | 16),
            Self::ChaChaPoly { .. } => bytes == 16,
            Self::Aegis128 => (8..=16).contains(&bytes),
            Self::Authenc { mac, .. } => (1..=mac.bytes).contains(&bytes),
        }
    }

    /// Bytes of the whole tag.
    pub(super) fn whole_tag(&self) -> usize {
        match self {
            Self::Authenc { mac, .. } => mac.bytes,
            _ => 16,
        }
    }
}

/// Finds a cipher with keys of 16, 24 and 32 bytes, or of 16 alone.
fn of16(cipher: &Algorithm) -> std::result::Result<&'static BlockCipherKind, String> {
    let kind = BlockCipherKind::named(cipher.leaf().ok_or("it is built on a block cipher")?)?;
    if kind.block() == 16 && matches!(kind.keys, [16] | [16, 24, 32]) {
        return Ok(kind);
    }
    Err(format!("it is not built on {}", kind.name))
}

/// A mode that is keyed, by the width of its IVs.
pub(super) enum KeyedAead {
    Wide(AnyAead<12>),
    Narrow(AnyAead<8>),
    Ccm(Ccm),
    Aegis(Aegis),
}

/// Keys a mode in one piece. Returns `Memory` when keys cannot be placed on locked pages.
pub(super) fn keyed(mode: &AuthenticatedMode, path: CpuPath, key: &[u8], tag: usize) -> Result<KeyedAead> {
    let salted = |each: Box<dyn SectorAead>, salt: &[u8]| {
        Ok(match salt {
            [] => KeyedAead::Wide(Box::new(EachSector { each, nonces: Nonces::Iv })),
            salt => KeyedAead::Narrow(Box::new(EachSector { each, nonces: Nonces::Salted(Key::new(salt)?) })),
        })
    };
    match mode {
        AuthenticatedMode::Gcm { cipher, salted: is_salted } => {
            let (key, salt) = key.split_at(key.len() - if *is_salted { 4 } else { 0 });
            let kernel = if cipher.name == "aes" { GcmKey::new(path, key)? } else { None };
            let Some(key) = kernel else {
                return salted(Box::new(Gcm::new(block(cipher, path, key)?)?), salt);
            };
            Ok(match salt {
                [] => KeyedAead::Wide(Box::new(AesGcm { key, nonces: Nonces::Iv })),
                salt => KeyedAead::Narrow(Box::new(AesGcm { key, nonces: Nonces::Salted(Key::new(salt)?) })),
            })
        }
        AuthenticatedMode::ChaChaPoly { .. } => {
            let (key, salt) = key.split_at(32);
            salted(chacha(path, key, tag)?, salt)
        }
        AuthenticatedMode::Ccm { cipher } => {
            let (key, salt) = key.split_at(key.len() - 3);
            Ok(KeyedAead::Ccm(Ccm::new(block(cipher, path, key)?, salt, tag)?))
        }
        AuthenticatedMode::Aegis128 => Ok(KeyedAead::Aegis(Aegis::new(path, key)?)),
        AuthenticatedMode::Authenc { .. } => {
            Err(Error::new(ErrorKind::Unsupported, "authenc is no mode in one piece"))
        }
    }
}

fn block(cipher: &BlockCipherKind, path: CpuPath, key: &[u8]) -> Result<crate::block::AnyCipher<16>> {
    match cipher.make {
        BlockCipherBuilder::Of16(make) => make(key, path),
        BlockCipherBuilder::Of8(_) => {
            Err(Error::new(ErrorKind::Unsupported, format!("{} has small blocks", cipher.name)))
        }
    }
}

fn chacha(path: CpuPath, key: &[u8], tag: usize) -> Result<Box<dyn SectorAead>> {
    #[cfg(target_arch = "x86_64")]
    if path != CpuPath::Portable {
        return Ok(Box::new(crate::aead::AwsLc::chacha(key, tag)?));
    }
    let _ = (path, tag);
    Ok(Box::new(ChaChaPoly::new(key)?))
}
