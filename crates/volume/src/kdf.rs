//! From a passphrase to a key: PBKDF2 and Argon2, within the caller's limits.

use std::fmt;
use std::str::FromStr;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use underseal_cipher::Key;
use zeroize::Zeroize;

use crate::{Error, ErrorKind, Hash, Result};

pub(crate) mod benchmark;

/// A key derivation with all its parameters, as a keyslot stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kdf {
    /// PBKDF2-HMAC (RFC 8018).
    Pbkdf2 {
        /// The hash under HMAC.
        hash: Hash,
        /// Rounds.
        iterations: u32,
        /// The salt.
        salt: Vec<u8>,
    },
    /// Argon2 version 1.3 (RFC 9106).
    Argon2 {
        /// Argon2i or Argon2id.
        variant: Argon2Variant,
        /// Passes over the memory.
        passes: u32,
        /// Memory in KiB.
        memory_kib: u32,
        /// Lanes, each a thread at most.
        lanes: u32,
        /// The salt.
        salt: Vec<u8>,
    },
}

/// The two forms of Argon2 that LUKS2 knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argon2Variant {
    /// Data-independent memory access.
    Argon2i,
    /// The hybrid, and the default.
    Argon2id,
}

/// The kinds of key derivation, by their names on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the algorithm it names")]
pub enum PbkdfKind {
    Pbkdf2,
    Argon2i,
    Argon2id,
}

impl PbkdfKind {
    /// The name that goes on disk: `argon2id`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pbkdf2 => "pbkdf2",
            Self::Argon2i => "argon2i",
            Self::Argon2id => "argon2id",
        }
    }
}

impl FromStr for PbkdfKind {
    type Err = Error;

    /// # Errors
    /// `Unsupported` for any other name.
    fn from_str(name: &str) -> Result<Self> {
        [Self::Pbkdf2, Self::Argon2i, Self::Argon2id].into_iter().find(|k| k.name() == name).ok_or_else(
            || {
                let name = crate::printable(name);
                Error::new(ErrorKind::Unsupported, format!("key derivation {name} is not supported"))
            },
        )
    }
}

impl fmt::Display for PbkdfKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a header may ask of this machine before it is refused.
///
/// A header is not authenticated: without limits, whoever can write the disk could make an unlock eat all memory or
/// run for years.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KdfLimits {
    /// The most memory of one Argon2 run, in KiB.
    pub memory_kib: u32,
    /// The most work of one Argon2 run: passes times memory, in KiB.
    pub argon2_work_kib: u64,
    /// The most lanes of one Argon2 run.
    pub lanes: u32,
    /// The most rounds of one PBKDF2 run.
    pub iterations: u32,
}

impl KdfLimits {
    /// No limit: for parameters that this machine has just measured or its user forced.
    pub const NONE: Self =
        Self { memory_kib: u32::MAX, argon2_work_kib: u64::MAX, lanes: u32::MAX, iterations: u32::MAX };
}

impl Default for KdfLimits {
    /// Several times what cryptsetup would ever choose: 4 GiB (its own ceiling) or this machine's memory if that is
    /// less, 1 TiB of blocks filled (some 15 minutes), 64 lanes, 2^28 rounds (some minutes).
    fn default() -> Self {
        Self {
            memory_kib: benchmark::physical_memory_kib().min(4 << 20),
            argon2_work_kib: 1 << 30,
            lanes: 64,
            iterations: 1 << 28,
        }
    }
}

impl Kdf {
    /// Which kind it is.
    pub fn kind(&self) -> PbkdfKind {
        match self {
            Self::Pbkdf2 { .. } => PbkdfKind::Pbkdf2,
            Self::Argon2 { variant: Argon2Variant::Argon2i, .. } => PbkdfKind::Argon2i,
            Self::Argon2 { variant: Argon2Variant::Argon2id, .. } => PbkdfKind::Argon2id,
        }
    }

    /// The salt.
    pub fn salt(&self) -> &[u8] {
        match self {
            Self::Pbkdf2 { salt, .. } | Self::Argon2 { salt, .. } => salt,
        }
    }

    /// Whether it stays within `limits`.
    ///
    /// # Errors
    /// `TooCostly`, naming the limit.
    pub fn check(&self, limits: &KdfLimits) -> Result<()> {
        let over = |what: &str, asked: u64, limit: u64| {
            let context = format!(
                "the header asks for {asked} {what}, the limit is {limit}; raise it if you trust this header"
            );
            if asked > limit { Err(Error::new(ErrorKind::TooCostly, context)) } else { Ok(()) }
        };
        match *self {
            Self::Pbkdf2 { iterations, .. } => {
                over("PBKDF2 iterations", iterations.into(), limits.iterations.into())
            }
            Self::Argon2 { passes, memory_kib, lanes, .. } => {
                over("KiB of Argon2 memory", memory_kib.into(), limits.memory_kib.into())?;
                over("Argon2 lanes", lanes.into(), limits.lanes.into())?;
                let work = u64::from(passes) * u64::from(memory_kib);
                over("KiB of Argon2 work (passes times memory)", work, limits.argon2_work_kib)
            }
        }
    }

    /// The key of `len` bytes for this passphrase.
    ///
    /// # Errors
    /// `TooCostly` beyond `limits`, `BadHeader` for parameters that the algorithm does not take, `Memory` when
    /// there is none.
    pub fn derive(&self, passphrase: &[u8], len: usize, limits: &KdfLimits) -> Result<Key> {
        self.check(limits)?;
        let mut key = new_key(len)?;
        match self {
            Self::Pbkdf2 { hash, iterations, salt } => {
                hash.pbkdf2(passphrase, salt, *iterations, key.as_mut_bytes());
            }
            Self::Argon2 { variant, passes, memory_kib, lanes, salt } => {
                let bad = |e: argon2::Error| {
                    Error::new(ErrorKind::BadHeader, "Argon2 parameters out of range").with_source(e)
                };
                let params = Params::new(*memory_kib, *passes, *lanes, Some(len)).map_err(bad)?;
                let algorithm = match variant {
                    Argon2Variant::Argon2i => Algorithm::Argon2i,
                    Argon2Variant::Argon2id => Algorithm::Argon2id,
                };
                let mut memory = Memory::new(params.block_count())?;
                Argon2::new(algorithm, Version::V0x13, params)
                    .hash_password_into_with_memory(passphrase, salt, key.as_mut_bytes(), &mut memory.0)
                    .map_err(bad)?;
            }
        }
        Ok(key)
    }
}

/// Argon2's memory, wiped when given back: its last blocks give away the key.
struct Memory(Vec<Block>);

impl Memory {
    fn new(blocks: usize) -> Result<Self> {
        let mut memory = Vec::new();
        memory.try_reserve_exact(blocks).map_err(|e| {
            Error::new(ErrorKind::Memory, format!("no memory for {blocks} KiB of Argon2")).with_source(e)
        })?;
        memory.resize(blocks, Block::new());
        Ok(Self(memory))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(Zeroize::zeroize);
    }
}

/// A zeroed key, with this crate's error.
pub(crate) fn new_key(len: usize) -> Result<Key> {
    Key::zeroed(len).map_err(|e| {
        let kind = match e.kind() {
            underseal_cipher::ErrorKind::Memory => ErrorKind::Memory,
            _ => ErrorKind::BadHeader,
        };
        Error::new(kind, format!("no key of {len} bytes")).with_source(e)
    })
}

/// A copy of `bytes` as a key, with this crate's error.
pub(crate) fn to_key(bytes: &[u8]) -> Result<Key> {
    let mut key = new_key(bytes.len())?;
    key.as_mut_bytes().copy_from_slice(bytes);
    Ok(key)
}
