//! XTS over whole sectors (IEEE 1619-2007): block j is C = E(P ^ T*x^j) ^ T*x^j.

#[cfg(target_arch = "x86_64")]
mod ahead;

use super::IN_FLIGHT;
use super::ecb::{finish, rounds};
use super::schedule::RoundKey;
use super::vector::Vector;

/// How far ahead data is fetched: beyond the reach of the hardware's own prefetcher at sector ends,
/// which stops at page ends. Doubles the speed of buffers beyond the caches and costs nothing
/// within them.
const AHEAD: usize = 4096;

/// Bytes of a call from which on the integer units make its tweaks ahead, where registers are few.
/// With vectors of two blocks the first tweaks are waited for, which takes a longer call to make up
/// for (measured on a Zen 4).
pub(super) const fn makes_tweaks_ahead_from<V: Vector, const R: usize>() -> usize {
    match (V::SPILLS, V::BLOCKS) {
        (true, 1) => 0,
        (true, 2) if R > 10 => 8 << 10,
        (true, 2) => 16 << 10,
        _ => usize::MAX,
    }
}

/// Applies XTS to `sectors` sectors of `bytes` bytes each, with encrypted tweaks at `tweaks`: with
/// `LONG`, which is best from [`makes_tweaks_ahead_from`] on, and without it, below.
///
/// # Safety
/// The processor has the features of `V`; `keys` are `R + 1` round keys of this direction; `bytes`
/// is a positive multiple of 512; `tweaks` holds `sectors` blocks; `src` is readable and `dst`
/// writable for all sectors, and they are the same or apart. Another process may change the bytes
/// of either meanwhile: blocks are read once.
#[inline(always)]
pub(super) unsafe fn xts<V: Vector, const R: usize, const ENCRYPT: bool, const LONG: bool>(
    keys: *const RoundKey,
    tweaks: *const u8,
    sectors: usize,
    bytes: usize,
    src: *const u8,
    dst: *mut u8,
) {
    if sectors == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if const { makes_tweaks_ahead_from::<V, R>() < if LONG { usize::MAX } else { 1 } } {
        // SAFETY: passed on.
        unsafe { ahead::xts::<V, R, ENCRYPT>(keys, tweaks, sectors, bytes, src, dst) };
        return;
    }
    // SAFETY: passed on.
    unsafe { in_vectors::<V, R, ENCRYPT>(keys, tweaks, sectors, bytes, src, dst) }
}

/// The same, with tweaks that are made in vectors.
///
/// # Safety
/// As [`xts`]; there is a sector.
#[inline(always)]
unsafe fn in_vectors<V: Vector, const R: usize, const ENCRYPT: bool>(
    keys: *const RoundKey,
    tweaks: *const u8,
    sectors: usize,
    bytes: usize,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: 512 is a multiple of a group for every vector, so groups tile the sector exactly; the
    // rest is the caller's promise.
    unsafe {
        let mut t = V::repeat(tweaks).powers();
        let mut at = 0;
        for sector in 1..=sectors {
            let last = sector * bytes - IN_FLIGHT * V::BYTES;
            while at < last {
                group::<V, R, ENCRYPT, ADVANCE>(keys, &mut t, tweaks, src.add(at), dst.add(at));
                at += IN_FLIGHT * V::BYTES;
            }
            let (src, dst, next) = (src.add(last), dst.add(last), tweaks.add(sector * 16));
            if sector < sectors {
                group::<V, R, ENCRYPT, NEXT_SECTOR>(keys, &mut t, next, src, dst);
            } else {
                group::<V, R, ENCRYPT, NOTHING>(keys, &mut t, tweaks, src, dst);
            }
            at += IN_FLIGHT * V::BYTES;
        }
    }
}

/// No group follows.
const NOTHING: u8 = 0;
/// The next group of the sector follows.
const ADVANCE: u8 = 1;
/// The first group of the next sector follows, with a given tweak.
const NEXT_SECTOR: u8 = 2;

/// Encrypts or decrypts eight vectors, and makes the tweaks of the eight that come `AFTER`. The
/// tweaks are made before the rounds: after them, the next group would wait for them.
///
/// # Safety
/// As [`xts`], for one group.
#[inline(always)]
unsafe fn group<V: Vector, const R: usize, const ENCRYPT: bool, const AFTER: u8>(
    keys: *const RoundKey,
    t: &mut [V; IN_FLIGHT],
    next: *const u8,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise. Prefetching an address that is not ours has no effect.
    unsafe {
        prefetch_group::<V, IN_FLIGHT>(src);
        let first = V::key(keys);
        let mut x = [first; IN_FLIGHT];
        let mut k = 0;
        while k < IN_FLIGHT {
            x[k] = V::load_shared(src.add(k * V::BYTES)).xor3(t[k], first);
            k += 1;
        }
        let mut whiten = *t;
        if AFTER != NOTHING {
            let last = V::key(keys.add(R));
            let mut k = 0;
            while k < IN_FLIGHT {
                whiten[k] = last.xor(t[k]);
                if AFTER == ADVANCE {
                    t[k] = t[k].advance();
                }
                k += 1;
            }
        }
        if AFTER == NEXT_SECTOR {
            *t = V::repeat(next).powers();
        }
        rounds::<V, R, ENCRYPT, IN_FLIGHT>(keys, &mut x);
        if AFTER == NOTHING {
            let last = V::key(keys.add(R));
            let mut k = 0;
            while k < IN_FLIGHT {
                whiten[k] = last.xor(t[k]);
                k += 1;
            }
        }
        let mut k = 0;
        while k < IN_FLIGHT {
            finish::<V, ENCRYPT>(x[k], whiten[k]).store(dst.add(k * V::BYTES));
            k += 1;
        }
    }
}

/// Prefetches `N` vectors from [`AHEAD`] bytes on.
///
/// # Safety
/// Sound for any address.
#[inline(always)]
unsafe fn prefetch_group<V: Vector, const N: usize>(src: *const u8) {
    let mut line = 0;
    while line < N * V::BYTES {
        // SAFETY: prefetching an address that is not ours has no effect.
        unsafe { prefetch(src.wrapping_add(AHEAD + line)) };
        line += 64;
    }
}

/// # Safety
/// Sound for any address on any x86-64 or aarch64.
#[inline(always)]
unsafe fn prefetch(at: *const u8) {
    // SAFETY: a prefetch never faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    // SAFETY: as above; nothing but caches changes.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}
