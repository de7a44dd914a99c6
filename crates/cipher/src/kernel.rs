//! AES over many sectors at once: the vector code that fills the processor's AES units.
//!
//! ```text
//!   mode/xts, mode/cbc                IVs for up to 32 sectors, then one call down
//!        |
//!   AesKey                            round keys on locked pages + the function table of one CPU path
//!        |
//!        +-- xts, cbc, ecb            the algorithms, written once over `Vector`
//!        +-- avx512 | vaes256 | aesni the vectors: 4, 2 or 1 blocks wide, and what makes each sound
//!        +-- schedule                 FIPS-197 key expansion, in place
//! ```
//!
//! A library that is given one sector at a time pays the latency of its tweak and the filling and draining of the
//! pipeline for each; here the tweaks of 32 sectors are encrypted together and sectors follow each other without a
//! bubble.

#[cfg(target_arch = "x86_64")]
mod aesni;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod cbc;
#[cfg(target_arch = "x86_64")]
mod ecb;
#[cfg_attr(not(target_arch = "x86_64"), path = "kernel/none.rs")]
mod key;
#[cfg(target_arch = "x86_64")]
mod schedule;
#[cfg(target_arch = "x86_64")]
mod table;
#[cfg(target_arch = "x86_64")]
mod vaes256;
#[cfg(target_arch = "x86_64")]
mod vector;
#[cfg(target_arch = "x86_64")]
mod xts;

pub(crate) use key::AesKey;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Encrypt,
    Decrypt,
}

/// Sectors whose CBC chains a kernel advances side by side: one in each lane of the widest vectors.
#[cfg(target_arch = "x86_64")]
const LANES: usize = 32;

/// Vectors in flight: the latency of an AES round times its throughput. Sixteen were slower.
#[cfg(target_arch = "x86_64")]
const IN_FLIGHT: usize = 8;
