//! AES over many sectors at once: the vector code that fills the processor's AES units.
//!
//! ```text
//!   mode/xts, mode/cbc                IVs for up to 32 sectors, then one call down
//!        |
//!   AesKey                            round keys on locked pages + the functions of one CPU path
//!        |
//!        +-- xts, cbc, ecb            the algorithms, written once over `Vector`
//!        +-- beside                   CBC of a batch while MD5 hashes another
//!        +-- avx512 | vaes256 | aesni the vectors: 4, 2 or 1 blocks wide, with safety arguments
//!        +-- neon                     vectors of aarch64: 1 block wide
//!        +-- schedule                 FIPS-197 key expansion, in place
//!
//!   GcmKey                            AES-GCM: counters and hash of a sector side by side
//!   Hctr2Key                          HCTR2: hashing and encryption interleaved
//!   AegisKey                          AEGIS-128 over the same vectors: a sector in each lane
//!   SerpentKey                        Serpent, bit-sliced: a block in each lane of words
//!   TwofishKey                        Twofish by permutes of 32 or 64 blocks, else over tables
//!   ChaChaLanes                       ChaCha: a block in each lane of words
//!   NhLanes                           NH, Adiantum's hash: multiplications of words side by side
//!   Md5Lanes                          MD5 of many sectors, for LMK: a sector in each lane of words
//!   DiffuserLanes                     Elephant's diffusers: a sector in each lane of words
//!   Whiten                            eight bytes added over a whole sector
//!   Sliced<C>                         Camellia, ARIA, SM4 on AES instructions: registers of bytes
//!   Cast6Key                          CAST-256 over its tables, several blocks abreast
//!   sha256_chain                      SHA-256 in a chain, for BitLocker
//!   Sha256Lanes                       HMAC-SHA256 of many sectors: a sector in each lane of words
//! ```
//!
//! A library call for one sector pays for the latency of the tweak, and for filling and draining
//! the pipeline; these kernels encrypt the tweaks of 32 sectors together, and sectors follow each
//! other without a bubble.

mod aegis;
mod aegis_key;
#[cfg(target_arch = "x86_64")]
mod aesni;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod beside;
mod cast6;
mod cbc;
mod chacha;
mod diffuser;
mod double;
mod ecb;
mod fastest;
mod frame;
mod gcm;
mod gcm_key;
mod hctr2;
mod hctr2_key;
mod key;
mod md5;
#[cfg(target_arch = "aarch64")]
mod neon;
mod nh;
mod schedule;
mod serpent;
mod sha256;
mod sha256_chain;
mod sliced;
mod table;
mod twofish;
#[cfg(target_arch = "x86_64")]
mod vaes256;
mod vector;
mod whiten;
mod words;
mod xts;

#[cfg(target_arch = "x86_64")]
use aesni::Blocks1;
#[cfg(target_arch = "aarch64")]
use neon::Blocks1;

pub(crate) use aegis_key::AegisKey;
pub(crate) use cast6::Cast6Key;
pub(crate) use chacha::{ChaChaLanes, SUBKEYS};
pub(crate) use diffuser::DiffuserLanes;
pub(crate) use double::double;
pub(crate) use gcm_key::GcmKey;
pub(crate) use hctr2_key::Hctr2Key;
pub(crate) use key::{AesKey, CbcWithMd5, Md5Batch, SectorBytes};
pub(crate) use md5::Md5Lanes;
pub(crate) use nh::NhLanes;
pub(crate) use serpent::SerpentKey;
pub(crate) use sha256::Sha256Lanes;
pub use sha256_chain::sha256_chain;
pub(crate) use sliced::{Aria, Camellia, Kuznyechik, Sliced, SlicedCipher, Sm4};
pub(crate) use twofish::TwofishKey;
pub(crate) use whiten::Whiten;

/// The direction of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CryptDirection {
    Encrypt,
    Decrypt,
}

/// Sectors whose CBC chains a kernel advances side by side: one sector in each lane of the widest
/// vectors.
const LANES: usize = 32;

/// Vectors in flight: the latency of an AES round times its throughput. Sixteen were slower.
const IN_FLIGHT: usize = 8;

/// Sectors of AEGIS-128, one by one.
pub(crate) struct AegisRun<'a> {
    pub(crate) ivs: &'a [[u8; 16]],
    /// The 24 authenticated bytes of each sector, and zeros.
    pub(crate) heads: &'a [[u8; 32]],
    /// The whole tags to be written.
    pub(crate) sums: &'a mut [[u8; 16]],
}

/// AEGIS's const0 and const1 (v1.1, 2.2): the Fibonacci numbers modulo 256.
pub(crate) const AEGIS_CONSTANTS: [[u8; 16]; 2] = [
    [0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62],
    [0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd],
];

/// Sectors of AES-GCM, one by one.
pub(crate) struct GcmRun<'a> {
    /// Nonce and be32(1) of each sector; overwritten.
    pub(crate) firsts: &'a mut [[u8; 16]],
    /// The authenticated bytes of each sector, and zeros.
    pub(crate) heads: &'a [[u8; 32]],
    /// The length of a head.
    pub(crate) head: usize,
    /// The whole tags to be written.
    pub(crate) sums: &'a mut [[u8; 16]],
}
