//! An HCTR2 key for one CPU path: the safe interface of its vector code.

use cipher::inout::InOutBuf;
use zeroize::Zeroize;

use super::hctr2::{Hctr2Sector, PolyvalKey};
use super::{AesKey, CryptDirection, gcm};
use crate::block::xor;
use crate::wipe::wipe_stack;
use crate::{CpuPath, Locked, Result};

/// The most stack of the vector code; a test checks it.
const SPILLED: usize = 1536;

/// Sectors whose first blocks are encrypted in one call.
const TOGETHER: usize = 8;

/// Bytes that two passes handle before the next: they stay in the first-level cache.
const CLOSE: usize = 32 << 10;

/// Round keys and the values from E(0) and E(1) on locked pages, and the functions that use them.
pub(crate) struct Hctr2Key {
    aes: AesKey,
    secret: Locked<Secret>,
}

struct Secret {
    hash: PolyvalKey,
    /// E(1).
    l: [u8; 16],
}

impl Hctr2Key {
    /// Expands a key of 16, 24 or 32 bytes; `None` for a path without vector code or a processor
    /// that lacks the path. Returns `Memory` when the system has no page.
    pub(crate) fn new(path: CpuPath, key: &[u8]) -> Result<Option<Self>> {
        let Some(aes) = AesKey::new(path, key)? else { return Ok(None) };
        let hash = PolyvalKey { powers: [[0; 16]; gcm::MOST_POWERS], length: [0; 16] };
        let mut secret = Locked::new(Secret { hash, l: [0; 16] })?;
        let mut subkeys = [[0; 16], 1u128.to_le_bytes()];
        aes.encrypt_blocks(&mut subkeys);
        // SAFETY: the processor has this path.
        unsafe { (aes.functions.hctr2_expand)(&subkeys[0], &mut secret.hash) }
        secret.l = subkeys[1];
        subkeys.zeroize();
        wipe_stack::<SPILLED>();
        Ok(Some(Self { aes, secret }))
    }

    /// Encrypts or decrypts whole sectors.
    ///
    /// # Panics
    /// When the data is not one sector of a multiple of 512 bytes for each tweak.
    pub(crate) fn apply(&self, direction: CryptDirection, tweaks: &[[u8; 32]], data: InOutBuf<'_, '_, u8>) {
        if tweaks.is_empty() {
            return;
        }
        let bytes = data.len() / tweaks.len();
        assert!(bytes * tweaks.len() == data.len() && bytes.is_multiple_of(512) && bytes > 0);
        let (mut src, mut dst) = data.into_raw();
        for tweaks in tweaks.chunks((CLOSE / bytes).clamp(1, TOGETHER)) {
            // SAFETY: the assertion checks the number of sectors; `InOutBuf` is one buffer or two
            // apart, readable and writable.
            unsafe {
                self.group(direction, tweaks, bytes, src, dst);
                (src, dst) = (src.add(tweaks.len() * bytes), dst.add(tweaks.len() * bytes));
            }
        }
        wipe_stack::<SPILLED>();
    }

    /// Encrypts or decrypts at most [`TOGETHER`] sectors.
    ///
    /// # Safety
    /// `bytes` is a positive multiple of 512; `src` is readable and `dst` writable for a sector of
    /// this length for each tweak, and they are the same or apart.
    unsafe fn group(
        &self,
        direction: CryptDirection,
        tweaks: &[[u8; 32]],
        bytes: usize,
        src: *const u8,
        dst: *mut u8,
    ) {
        let (functions, schedule) = (self.aes.functions, &self.aes.schedule);
        let Secret { hash, l } = &*self.secret;
        let [mut heads, mut before] = [[[0; 16]; TOGETHER]; 2];
        // SAFETY: the processor has this path; the rest is the caller's promise.
        unsafe {
            for (nth, tweak) in tweaks.iter().enumerate() {
                let (sector, mut sum) = (src.add(nth * bytes), [0; 16]);
                (functions.hctr2_hash)(hash, tweak, sector, bytes, &mut heads[nth], &mut sum);
                before[nth] = xor(&sector.cast::<[u8; 16]>().read(), &sum);
            }
            let mut after = before;
            let at = after.as_mut_ptr().cast::<u8>();
            match direction {
                CryptDirection::Encrypt => {
                    (functions.ecb_encrypt)(schedule.encrypt.as_ptr(), at, at, tweaks.len())
                }
                CryptDirection::Decrypt => {
                    (functions.ecb_decrypt)(schedule.decrypt.as_ptr(), at, at, tweaks.len())
                }
            }
            for nth in 0..tweaks.len() {
                let (s, mut sum) = (xor(&xor(&before[nth], &after[nth]), l), [0; 16]);
                let (src, dst) = (src.add(nth * bytes), dst.add(nth * bytes));
                let raw = Hctr2Sector { head: &heads[nth], s: &s, bytes, src, dst };
                (functions.hctr2_stream)(schedule.encrypt.as_ptr(), hash, &raw, &mut sum);
                dst.cast::<[u8; 16]>().write(xor(&after[nth], &sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wipe::left_on_the_stack;

    #[test]
    fn no_subkey_is_left_on_the_stack() {
        for path in CpuPath::ALL {
            for len in [16, 32] {
                let key: Vec<u8> = (0..len).map(|i| 7 * i + 3).collect();
                let Some(key) = Hctr2Key::new(path, &key).unwrap() else { continue };
                let mut data = vec![9; 9 * 4096];
                for direction in [CryptDirection::Encrypt, CryptDirection::Decrypt] {
                    key.apply(direction, &[[5; 32]; 9], (&mut data[..]).into());
                    let stack = left_on_the_stack();
                    let Secret { hash, l } = &*key.secret;
                    let keys =
                        key.aes.schedule.encrypt.iter().chain(&key.aes.schedule.decrypt).map(|k| &k.0[0]);
                    for secret in keys.chain(&hash.powers).chain([&hash.length, l]).filter(|k| **k != [0; 16])
                    {
                        assert!(!stack.windows(16).any(|window| window == secret), "{}", path.name());
                    }
                }
            }
        }
    }
}
