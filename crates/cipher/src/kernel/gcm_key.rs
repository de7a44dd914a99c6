//! An AES-GCM key for one CPU path: the safe interface of its vector code.

use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::gcm::{GcmSector, MOST_POWERS};
use super::{AesKey, CryptDirection, GcmRun};
use crate::{CpuPath, Locked, Result};

/// Round keys and powers of H on locked pages, and the functions that use them.
pub(crate) struct GcmKey {
    aes: AesKey,
    powers: Locked<[[u8; 16]; MOST_POWERS]>,
}

impl GcmKey {
    /// Expands a key of 16, 24 or 32 bytes; `None` for a path without vector code or a processor
    /// that lacks the path. Returns `Memory` when the system has no page.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Option<Self>> {
        let Some(aes) = AesKey::new(path, key)? else { return Ok(None) };
        let mut powers = Locked::new([[0; 16]; MOST_POWERS])?;
        let mut h = [[0; 16]];
        aes.encrypt_blocks(&mut h);
        // SAFETY: the processor has this path; there is room for the most powers.
        unsafe { (aes.functions.gcm_powers)(h[0].as_ptr(), powers.as_mut_ptr().cast()) }
        h.zeroize();
        Ok(Some(Self { aes, powers }))
    }

    /// Encrypts or decrypts sectors and writes their whole tags. The caller wipes the stack.
    ///
    /// # Panics
    /// When there is not one head and one sum for each nonce, and one sector of a multiple of 512
    /// bytes for each.
    pub(crate) fn apply(&self, direction: CryptDirection, run: GcmRun<'_>, data: InOutBuf<'_, '_, u8>) {
        let GcmRun { firsts, heads, head, sums } = run;
        let count = firsts.len();
        assert!(count > 0 && heads.len() == count && sums.len() == count && head <= 32);
        let bytes = data.len() / count;
        assert!(bytes * count == data.len() && bytes.is_multiple_of(512) && bytes > 0);
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&(head as u64 * 8).to_be_bytes());
        lengths[8..].copy_from_slice(&(bytes as u64 * 8).to_be_bytes());
        let (src, dst) = data.into_raw();
        let function = match direction {
            CryptDirection::Encrypt => self.aes.functions.gcm_encrypt,
            CryptDirection::Decrypt => self.aes.functions.gcm_decrypt,
        };
        for nth in 0..count {
            // SAFETY: the assertions check the number of sectors; the processor has this path;
            // `InOutBuf` is one buffer or two apart.
            unsafe {
                let raw = GcmSector {
                    powers: self.powers.as_ptr().cast(),
                    nonce: firsts[nth].as_ptr(),
                    head: heads[nth].as_ptr(),
                    head_blocks: head.div_ceil(16),
                    lengths,
                    bytes,
                    src: src.add(nth * bytes),
                    dst: dst.add(nth * bytes),
                    sum: sums[nth].as_mut_ptr(),
                };
                function(self.aes.schedule.encrypt.as_ptr(), &raw);
            }
        }
        self.aes.encrypt_blocks_untidied(firsts);
        for (sum, mask) in sums.iter_mut().zip(firsts) {
            *sum = crate::block::xor(sum, mask);
        }
    }
}
