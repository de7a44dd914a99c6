//! Key derivation from a passphrase: PBKDF2 and Argon2, within the caller's limits.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use argon2::{Algorithm, Argon2, Block, Params, Version};
use underseal_cipher::{Key, wipe_traces};
use zeroize::Zeroize;

use crate::hash::TRACES;
use crate::{Error, ErrorKind, Hash, Result};

pub(crate) mod benchmark;
mod marks;

pub use marks::pbkdf2_marks;

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
        /// Lanes, at most one thread each.
        lanes: u32,
        /// The salt.
        salt: Vec<u8>,
    },
}

/// The two variants of Argon2 in LUKS2.
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
    /// Returns the name that is written to disk: `argon2id`.
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

/// Limits for a header's demands on this machine.
///
/// A header is not authenticated: without limits, an attacker with write access to the disk could
/// make an unlock exhaust the memory or run for years. It has room for many keyslots and digests,
/// so work is counted over a whole unlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KdfLimits {
    /// The most memory of one Argon2 run, in KiB.
    pub memory_kib: u32,
    /// The most lanes of one Argon2 run.
    pub lanes: u32,
    /// The most work of all Argon2 runs of one unlock: passes times memory, in KiB.
    pub argon2_work_kib: u64,
    /// The longest time of all key derivations of one unlock, as estimated by a measurement before.
    pub time: Option<Duration>,
    /// The most rounds of all PBKDF2 runs of one unlock: iterations, times the key's length in
    /// blocks of the hash.
    pub rounds: u64,
}

impl KdfLimits {
    /// No limit: for parameters that this machine has just measured or its user forced.
    pub const NONE: Self = Self {
        memory_kib: u32::MAX,
        lanes: u32::MAX,
        argon2_work_kib: u64::MAX,
        rounds: u64::MAX,
        time: None,
    };
}

impl Default for KdfLimits {
    /// Several times the most that cryptsetup chooses: 4 GiB (its ceiling) or this machine's memory
    /// if that is less, 64 lanes, 1 TiB of blocks filled (some 15 minutes), 2^29 rounds (some
    /// minutes).
    fn default() -> Self {
        Self {
            memory_kib: benchmark::physical_memory_kib().min(4 << 20),
            lanes: 64,
            argon2_work_kib: 1 << 30,
            rounds: 1 << 29,
            time: None,
        }
    }
}

impl Kdf {
    /// Returns the kind.
    pub fn kind(&self) -> PbkdfKind {
        match self {
            Self::Pbkdf2 { .. } => PbkdfKind::Pbkdf2,
            Self::Argon2 { variant: Argon2Variant::Argon2i, .. } => PbkdfKind::Argon2i,
            Self::Argon2 { variant: Argon2Variant::Argon2id, .. } => PbkdfKind::Argon2id,
        }
    }

    /// Returns the salt.
    pub fn salt(&self) -> &[u8] {
        match self {
            Self::Pbkdf2 { salt, .. } | Self::Argon2 { salt, .. } => salt,
        }
    }

    /// Returns the limits left after a derivation of `len` bytes. Fails with `TooCostly`, naming
    /// the limit.
    fn spend(&self, len: usize, limits: KdfLimits) -> Result<KdfLimits> {
        let left = |what: &str, limit: u64, asked: u64| {
            limit.checked_sub(asked).ok_or_else(|| {
                let context = format!("the header asks for {asked} {what}, and {limit} are allowed or left");
                Error::new(ErrorKind::TooCostly, context)
            })
        };
        let limits = match *self {
            Self::Pbkdf2 { hash, iterations, .. } => {
                let blocks = len.div_ceil(hash.output_len()) as u64;
                let rounds =
                    left("PBKDF2 rounds", limits.rounds, u64::from(iterations).saturating_mul(blocks))?;
                KdfLimits { rounds, ..limits }
            }
            Self::Argon2 { passes, memory_kib, lanes, .. } => {
                left("KiB of Argon2 memory", limits.memory_kib.into(), memory_kib.into())?;
                left("Argon2 lanes", limits.lanes.into(), lanes.into())?;
                let work = u64::from(passes) * u64::from(memory_kib);
                let what = "KiB of Argon2 work (passes times memory)";
                KdfLimits { argon2_work_kib: left(what, limits.argon2_work_kib, work)?, ..limits }
            }
        };
        let Some(time) = limits.time else { return Ok(limits) };
        let asked = benchmark::estimate(self, len)?;
        let time = time.checked_sub(asked).ok_or_else(|| {
            let (asked, time) = (asked.as_secs_f64(), time.as_secs_f64());
            let context = format!(
                "the header asks for {asked:.1} s of key derivation, and {time:.1} s are allowed or left"
            );
            Error::new(ErrorKind::TooCostly, context)
        })?;
        Ok(KdfLimits { time: Some(time), ..limits })
    }

    /// Derives the key of `len` bytes for this passphrase.
    ///
    /// # Errors
    /// `TooCostly` beyond `limits`, `BadHeader` for parameters that the algorithm refuses, `Memory`
    /// when no memory is left.
    pub fn derive(&self, passphrase: &[u8], len: usize, limits: &KdfLimits) -> Result<Key> {
        self.spend(len, *limits)?;
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
                wipe_traces::<TRACES>();
            }
        }
        Ok(key)
    }
}

/// The remaining limits of one unlock.
pub(crate) struct Budget(Cell<KdfLimits>);

impl Budget {
    pub(crate) fn new(limits: KdfLimits) -> Self {
        Self(Cell::new(limits))
    }

    /// Derives as [`Kdf::derive`], within the remaining limits.
    pub(crate) fn derive(&self, kdf: &Kdf, passphrase: &[u8], len: usize) -> Result<Key> {
        let limits = self.0.get();
        self.0.set(kdf.spend(len, limits)?);
        kdf.derive(passphrase, len, &limits)
    }
}

/// Argon2's memory, which is wiped when freed: its last blocks reveal the key.
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

/// Returns a zeroed key, with this crate's error.
pub(crate) fn new_key(len: usize) -> Result<Key> {
    Key::zeroed(len).map_err(|e| {
        let kind = match e.kind() {
            underseal_cipher::ErrorKind::Memory => ErrorKind::Memory,
            _ => ErrorKind::BadHeader,
        };
        Error::new(kind, format!("no key of {len} bytes")).with_source(e)
    })
}

/// Returns a copy of `bytes` as a key, with this crate's error.
pub(crate) fn to_key(bytes: &[u8]) -> Result<Key> {
    let mut key = new_key(bytes.len())?;
    key.as_mut_bytes().copy_from_slice(bytes);
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_take_too_long_is_not_begun() {
        let pbkdf2 = |iterations| Kdf::Pbkdf2 { hash: Hash::Sha256, iterations, salt: vec![7; 16] };
        let argon2 = |passes| Kdf::Argon2 {
            variant: Argon2Variant::Argon2id,
            passes,
            memory_kib: 1024,
            lanes: 1,
            salt: vec![7; 16],
        };
        let limits = KdfLimits { time: Some(Duration::from_secs(20)), ..KdfLimits::NONE };
        let start = std::time::Instant::now();
        for (cheap, dear) in [(pbkdf2(1000), pbkdf2(u32::MAX)), (argon2(1), argon2(u32::MAX))] {
            cheap.derive(b"secret", 32, &limits).unwrap();
            let refused = dear.derive(b"secret", 32, &limits).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::TooCostly);
            assert!(refused.to_string().contains("20.0 s are allowed"), "{refused}");
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        // The time of one derivation is missing for the next.
        let budget = Budget::new(limits);
        budget.derive(&pbkdf2(1000), b"secret", 32).unwrap();
        assert!(budget.0.get().time < limits.time);
    }

    #[test]
    fn an_unlock_is_paid_for_as_a_whole() {
        let pbkdf2 = |iterations| Kdf::Pbkdf2 { hash: Hash::Sha256, iterations, salt: vec![7; 16] };
        let argon2 = |passes, memory_kib| Kdf::Argon2 {
            variant: Argon2Variant::Argon2id,
            passes,
            memory_kib,
            lanes: 1,
            salt: vec![7; 16],
        };
        let limits =
            KdfLimits { memory_kib: 64, lanes: 1, argon2_work_kib: 64 * 5, rounds: 5000, time: None };
        let budget = Budget::new(limits);
        let kind = |kdf: Kdf, len| budget.derive(&kdf, b"secret", len).map(|_| ()).map_err(|e| e.kind());
        // Two blocks of SHA-256.
        assert_eq!(kind(pbkdf2(1000), 64), Ok(()));
        assert_eq!(kind(pbkdf2(1001), 96), Err(ErrorKind::TooCostly));
        assert_eq!(kind(pbkdf2(1000), 96), Ok(()));
        assert_eq!(kind(pbkdf2(1), 1), Err(ErrorKind::TooCostly));
        // The limit of Argon2 is still unused.
        assert_eq!(kind(argon2(4, 64), 32), Ok(()));
        assert_eq!(kind(argon2(2, 64), 32), Err(ErrorKind::TooCostly));
        assert_eq!(kind(argon2(1, 65), 32), Err(ErrorKind::TooCostly));
        assert_eq!(kind(argon2(1, 64), 32), Ok(()));
        assert_eq!(kind(argon2(1, 8), 32), Err(ErrorKind::TooCostly));
    }
}
