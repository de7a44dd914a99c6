//! The CPU path: chosen at start, or forced for tests and comparisons.

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::sync::OnceLock;

use crate::{Error, ErrorKind, Result};

/// A set of instructions for ciphers, named by its AES instructions. All paths give the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CpuPath {
    /// Code for any processor: that of libraries (RustCrypto's `aes` has its own choice of
    /// instructions).
    Portable,
    /// AES-NI: one block an instruction.
    AesNi,
    /// VAES on 256-bit registers: two blocks.
    Vaes256,
    /// VAES on 512-bit registers: four blocks.
    Avx512,
    /// The AES and PMULL instructions of aarch64: one block an instruction; NEON for other ciphers.
    Neon,
}

impl CpuPath {
    /// Every path, the slowest first.
    pub const ALL: [Self; 5] = [Self::Portable, Self::AesNi, Self::Vaes256, Self::Avx512, Self::Neon];

    /// The variable that forces a path.
    pub const VARIABLE: &str = "UNDERSEAL_CPU";

    /// The name used in `UNDERSEAL_CPU`, reports and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::AesNi => "aesni",
            Self::Vaes256 => "vaes256",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// True when this processor can run the path.
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let aes = is_x86_feature_detected!("avx")
                && is_x86_feature_detected!("aes")
                && is_x86_feature_detected!("pclmulqdq")
                && is_x86_feature_detected!("sse4.1");
            let vaes = aes
                && is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("vaes")
                && is_x86_feature_detected!("vpclmulqdq");
            match self {
                Self::Portable => true,
                Self::AesNi => aes,
                Self::Vaes256 => vaes,
                Self::Avx512 => {
                    vaes && is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                }
                Self::Neon => false,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            match self {
                Self::Portable => true,
                // "aes" includes PMULL here.
                Self::Neon => is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("aes"),
                Self::AesNi | Self::Vaes256 | Self::Avx512 => false,
            }
        }
    }

    /// The path in use: that of `UNDERSEAL_CPU`, else the fastest of the processor. The variable is
    /// read once.
    ///
    /// # Errors
    /// `Unsupported` when `UNDERSEAL_CPU` names no path, or one that this processor cannot run.
    pub fn chosen() -> Result<Self> {
        static CHOSEN: OnceLock<std::result::Result<CpuPath, String>> = OnceLock::new();
        let choose = || match std::env::var_os(Self::VARIABLE) {
            None => Ok(Self::ALL.into_iter().rfind(|path| path.is_available()).unwrap_or(Self::Portable)),
            Some(name) => Self::named(&name.to_string_lossy()),
        };
        CHOSEN.get_or_init(choose).clone().map_err(|why| Error::new(ErrorKind::Unsupported, why))
    }

    /// True when `UNDERSEAL_CPU` names a path: then all ciphers run on that one.
    pub(crate) fn is_forced() -> bool {
        static FORCED: OnceLock<bool> = OnceLock::new();
        *FORCED.get_or_init(|| std::env::var_os(Self::VARIABLE).is_some())
    }

    fn named(name: &str) -> std::result::Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        let path = Self::ALL.into_iter().find(|path| path.name() == name);
        let path =
            path.ok_or_else(|| format!("{} is \"{name}\": want one of {}", Self::VARIABLE, names()))?;
        if !path.is_available() {
            return Err(format!("{} is \"{name}\", which this processor cannot run", Self::VARIABLE));
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_by_its_name_and_no_other() {
        assert_eq!(CpuPath::named("portable"), Ok(CpuPath::Portable));
        assert!(CpuPath::named("").unwrap_err().contains("portable, aesni, vaes256, avx512, neon"));
        assert!(CpuPath::named("AESNI").is_err());
    }
}
