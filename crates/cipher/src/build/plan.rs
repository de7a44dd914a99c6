//! The mode and cipher of a specification: those that the kernel's crypto API finds by its name.

use super::authenticated::AuthenticatedMode;
use super::ciphers::{BlockCipherBuilder, BlockCipherKind};
use super::{hashes, refuse};
use crate::spec::Algorithm;
use crate::{CipherSpec, ErrorKind, Result};

/// A mode with its cipher.
pub(super) enum ModePlan {
    Block {
        chain: ChainMode,
        cipher: &'static BlockCipherKind,
    },
    Adiantum {
        stream: ChaChaVariant,
    },
    Hctr2,
    Stream {
        stream: ChaChaVariant,
    },
    Arc4,
    Null,
    /// The null cipher, which has blocks of one byte, in a chain mode: plaintext is chained, but
    /// not encrypted.
    NullChain {
        chain: ChainMode,
    },
    Authenticated(AuthenticatedMode),
}

/// A chain mode over a block cipher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChainMode {
    Ecb,
    Cbc,
    Pcbc,
    Cts,
    Ctr,
    Xts,
    Lrw,
}

/// A variant of ChaCha.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChaChaVariant {
    ChaCha20,
    XChaCha20,
    XChaCha12,
}

/// The IV generators by name.
const IVS: [&str; 11] =
    ["plain", "plain64", "plain64be", "null", "benbi", "essiv", "eboiv", "elephant", "lmk", "tcw", "random"];

impl ModePlan {
    /// Returns `Unsupported` in the kernel's words.
    pub(super) fn new(spec: &CipherSpec) -> Result<Self> {
        let find = if spec.is_authenticated() { find_authenticated } else { find };
        let plan = find(spec.algorithm()).and_then(|plan| plan.with_essiv(spec));
        let plan =
            plan.map_err(|why| refuse(ErrorKind::Unsupported, "Error allocating crypto tfm", spec, why))?;
        if plan.has_iv() && !IVS.contains(&spec.iv()) {
            let why = format!("there is no IV generator \"{}\"", spec.iv());
            return Err(refuse(ErrorKind::Unsupported, "Invalid IV mode", spec, why));
        }
        Ok(plan)
    }

    /// True for modes that use IVs; for the others the IV generator does not matter, as in the
    /// kernel.
    pub(super) fn has_iv(&self) -> bool {
        !matches!(self, Self::Block { chain: ChainMode::Ecb, .. } | Self::Arc4 | Self::Null)
    }

    /// Bytes of an IV.
    pub(super) fn iv_width(&self) -> usize {
        match self {
            Self::Block { cipher, .. } => cipher.block(),
            Self::Adiantum { .. } | Self::Hctr2 => 32,
            Self::Stream { stream: ChaChaVariant::ChaCha20 } => 16,
            Self::Stream { .. } => 32,
            Self::Arc4 | Self::Null | Self::NullChain { .. } => 8,
            Self::Authenticated(mode) => mode.iv_width(),
        }
    }

    /// The block size that the kernel reports, the unit of `benbi`: 1 for modes that work on single
    /// bytes.
    pub(super) fn reported_block(&self) -> usize {
        match self {
            Self::Block { chain: ChainMode::Ctr, .. } | Self::Stream { .. } | Self::Arc4 => 1,
            Self::Block { cipher, .. } => cipher.block(),
            Self::Adiantum { .. } | Self::Hctr2 => 16,
            Self::Null | Self::NullChain { .. } => 1,
            Self::Authenticated(mode) => mode.reported_block(),
        }
    }

    /// The key sizes, the preferred one last.
    pub(super) fn key_sizes(&self) -> &'static [usize] {
        match self {
            Self::Block { chain: ChainMode::Xts, cipher } => cipher.double,
            Self::Block { chain: ChainMode::Lrw, cipher } => cipher.lrw,
            Self::Block { cipher, .. } => cipher.keys,
            Self::Hctr2 => &[16, 24, 32],
            Self::Adiantum { .. } | Self::Stream { .. } => &[32],
            Self::Arc4 => &[5, 8, 32, 16],
            Self::Null | Self::NullChain { .. } => &[0],
            Self::Authenticated(mode) => mode.key_sizes(),
        }
    }

    /// Checks ESSIV's digest against the cipher, as the kernel's `essiv` template does.
    fn with_essiv(self, spec: &CipherSpec) -> std::result::Result<Self, String> {
        if spec.iv() != "essiv" {
            return Ok(self);
        }
        let name = spec.iv_option().unwrap_or("");
        let digest = hashes::named(name).ok_or_else(|| format!("there is no hash \"{name}\""))?.bytes;
        let of = match &self {
            Self::Authenticated(AuthenticatedMode::Authenc { mode, .. }) => mode,
            plan => plan,
        };
        match of {
            Self::Block { chain, cipher } if *chain != ChainMode::Ecb => {
                let (low, high) = cipher.key_range();
                if (low..=high).contains(&digest) {
                    return Ok(self);
                }
                Err(format!(
                    "{name}'s digest of {digest} bytes is no key of {}, {low} to {high} bytes",
                    cipher.name
                ))
            }
            _ => Err("essiv needs IVs of one cipher block".into()),
        }
    }
}

fn find_authenticated(algorithm: &Algorithm) -> std::result::Result<ModePlan, String> {
    AuthenticatedMode::named(algorithm, find).map(ModePlan::Authenticated)
}

fn find(algorithm: &Algorithm) -> std::result::Result<ModePlan, String> {
    let unknown = || format!("there is no mode \"{}\" for it", algorithm.chain());
    match (algorithm.chain(), algorithm.of()) {
        ("ecb", [of]) if of.leaf() == Some("cipher_null") => Ok(ModePlan::Null),
        ("ecb", [of]) if of.leaf() == Some("arc4") => Ok(ModePlan::Arc4),
        ("arc4", []) => Ok(ModePlan::Arc4),
        ("chacha20" | "xchacha20" | "xchacha12", []) => {
            Ok(ModePlan::Stream { stream: stream(algorithm.chain())? })
        }
        ("adiantum", [of, block]) | ("adiantum", [of, block, _]) => {
            let stream = stream(of.leaf().unwrap_or(""))?;
            let nh = algorithm.of().get(2).is_none_or(|nh| nh.leaf() == Some("nhpoly1305"));
            if stream == ChaChaVariant::ChaCha20 || block.leaf() != Some("aes") || !nh {
                return Err("adiantum is made of xchacha12 or xchacha20, and aes".into());
            }
            Ok(ModePlan::Adiantum { stream })
        }
        ("hctr2", [of]) if of.block_cipher() == Some("aes") => Ok(ModePlan::Hctr2),
        ("cts", [cbc]) if cbc.chain() == "cbc" && cbc.of().len() == 1 => block(ChainMode::Cts, &cbc.of()[0]),
        (chain, [of]) => block(
            match chain {
                "ecb" => ChainMode::Ecb,
                "cbc" => ChainMode::Cbc,
                "pcbc" => ChainMode::Pcbc,
                "ctr" => ChainMode::Ctr,
                "xts" => ChainMode::Xts,
                "lrw" => ChainMode::Lrw,
                _ => return Err(unknown()),
            },
            of,
        ),
        _ => Err(unknown()),
    }
}

fn stream(name: &str) -> std::result::Result<ChaChaVariant, String> {
    match name {
        "chacha20" => Ok(ChaChaVariant::ChaCha20),
        "xchacha20" => Ok(ChaChaVariant::XChaCha20),
        "xchacha12" => Ok(ChaChaVariant::XChaCha12),
        _ => Err(format!("there is no stream cipher \"{name}\" for it")),
    }
}

fn block(chain: ChainMode, of: &Algorithm) -> std::result::Result<ModePlan, String> {
    // The names `ecb(..)` are for xts and lrw only.
    let name = if matches!(chain, ChainMode::Xts | ChainMode::Lrw) { of.block_cipher() } else { of.leaf() };
    if name == Some("cipher_null") && matches!(chain, ChainMode::Cbc | ChainMode::Pcbc) {
        return Ok(ModePlan::NullChain { chain });
    }
    let cipher = BlockCipherKind::named(name.ok_or("it is built on a block cipher")?)?;
    if matches!(chain, ChainMode::Xts | ChainMode::Lrw) && matches!(cipher.make, BlockCipherBuilder::Of8(_)) {
        return Err(format!("{} has blocks of 8 bytes, and the mode needs 16", cipher.name));
    }
    Ok(ModePlan::Block { chain, cipher })
}
