//! An AEGIS-128 key for one CPU path: the safe interface of its vector code.

use cipher::inout::InOutBuf;

use super::aegis::AegisSectors;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::table::AegisFn;
use super::{AegisRun, CryptDirection};
#[cfg(target_arch = "x86_64")]
use super::{aesni, avx512, vaes256};
use crate::{CpuPath, Key, Result};

/// A key, and the functions of a path that the processor has.
pub(crate) struct AegisKey {
    key: Key,
    functions: &'static [AegisFn; 2],
}

impl AegisKey {
    /// Takes a key of 16 bytes; `None` for a path without vector code or a processor that lacks the
    /// path. Returns `Memory` when the system has no page.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Option<Self>> {
        let functions = match path {
            _ if !path.is_available() || key.len() != 16 => return Ok(None),
            #[cfg(target_arch = "x86_64")]
            CpuPath::AesNi => &aesni::AEGIS,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Vaes256 => &vaes256::AEGIS,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => &avx512::AEGIS,
            #[cfg(target_arch = "aarch64")]
            CpuPath::Neon => &neon::AEGIS,
            // The remaining paths are other processors'.
            _ => return Ok(None),
        };
        Ok(Some(Self { key: Key::new(key)?, functions }))
    }

    /// Encrypts or decrypts sectors and writes their whole tags. The caller wipes the stack, where
    /// the state may remain.
    ///
    /// # Panics
    /// When there is not one head and one sum for each IV, and as much data of whole blocks.
    pub(crate) fn apply(&self, direction: CryptDirection, run: AegisRun<'_>, data: InOutBuf<'_, '_, u8>) {
        let AegisRun { ivs, heads, sums } = run;
        let count = ivs.len();
        assert!(count > 0 && heads.len() == count && sums.len() == count);
        let bytes = data.len() / count;
        assert!(bytes * count == data.len() && bytes.is_multiple_of(16));
        let (src, dst) = data.into_raw();
        let raw = AegisSectors {
            key: self.key.as_bytes().as_ptr(),
            ivs: ivs.as_ptr().cast(),
            heads: heads.as_ptr().cast(),
            sums: sums.as_mut_ptr().cast(),
            count,
            bytes,
            src,
            dst,
        };
        let [encrypt, decrypt] = self.functions;
        let function = if direction == CryptDirection::Encrypt { encrypt } else { decrypt };
        // SAFETY: the processor has this path; the assertions check the shapes; `InOutBuf` is one
        // buffer or two apart.
        unsafe { function(&raw) }
    }
}
