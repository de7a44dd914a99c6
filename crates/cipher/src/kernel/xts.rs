//! XTS over whole sectors (IEEE 1619-2007): block j is C = E(P ^ T*x^j) ^ T*x^j.

use super::IN_FLIGHT;
use super::ecb::{finish, rounds};
use super::schedule::RoundKey;
use super::vector::Vector;

/// How far ahead data is fetched: beyond the reach of the hardware's own prefetcher at sector ends, which stops at
/// page ends. Doubles the speed of buffers beyond the caches and costs nothing within them.
const AHEAD: usize = 4096;

/// Applies XTS to `sectors` sectors of `bytes` bytes each, whose encrypted tweaks lie at `tweaks`.
///
/// # Safety
/// The processor has the features of `V`; `keys` are `R + 1` round keys of this direction; `bytes` is a positive
/// multiple of 512; `tweaks` holds `sectors` blocks; `src` is readable and `dst` writable for all sectors, and they
/// are the same or apart.
#[inline(always)]
pub(super) unsafe fn xts<V: Vector, const R: usize, const ENCRYPT: bool>(
    keys: *const RoundKey,
    tweaks: *const u8,
    sectors: usize,
    bytes: usize,
    src: *const u8,
    dst: *mut u8,
) {
    for sector in 0..sectors {
        let base = sector * bytes;
        // SAFETY: 512 is a multiple of a group for every vector, so groups tile the sector exactly; the rest is the
        // caller's promise. Prefetching an address that is not ours has no effect.
        unsafe {
            let mut t = V::repeat(tweaks.add(sector * 16)).powers();
            let mut at = 0;
            loop {
                let (src, dst) = (src.add(base + at), dst.add(base + at));
                let mut line = 0;
                while line < IN_FLIGHT * V::BYTES {
                    prefetch(src.wrapping_add(AHEAD + line));
                    line += 64;
                }
                let first = V::key(keys);
                let mut x = [first; IN_FLIGHT];
                let mut k = 0;
                while k < IN_FLIGHT {
                    x[k] = V::load(src.add(k * V::BYTES)).xor3(t[k], first);
                    k += 1;
                }
                rounds::<V, R, ENCRYPT, IN_FLIGHT>(keys, &mut x);
                let last = V::key(keys.add(R));
                let mut k = 0;
                while k < IN_FLIGHT {
                    finish::<V, ENCRYPT>(x[k], last.xor(t[k])).store(dst.add(k * V::BYTES));
                    k += 1;
                }
                at += IN_FLIGHT * V::BYTES;
                if at == bytes {
                    break;
                }
                let mut k = 0;
                while k < IN_FLIGHT {
                    t[k] = t[k].advance();
                    k += 1;
                }
            }
        }
    }
}

/// # Safety
/// Sound for any address on any x86-64.
#[inline(always)]
unsafe fn prefetch(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}
