//! Independent blocks: the tweaks of XTS, the IVs of ESSIV.

use super::schedule::RoundKey;
use super::vector::Vector;
use super::{Blocks1, IN_FLIGHT};

/// Applies the cipher to `blocks` blocks from `src` to `dst`, which are the same or apart.
///
/// # Safety
/// The processor has the features of `V` and [`Blocks1`]; `keys` are `R + 1` round keys of this
/// direction; `src` is readable and `dst` writable for `blocks` blocks.
#[inline(always)]
pub(super) unsafe fn ecb<V: Vector, const R: usize, const ENCRYPT: bool>(
    keys: *const RoundKey,
    src: *const u8,
    dst: *mut u8,
    blocks: usize,
) {
    let mut at = 0;
    // SAFETY: every group ends within `blocks`; the rest is the caller's promise.
    unsafe {
        while at + IN_FLIGHT * V::BLOCKS <= blocks {
            group::<V, R, ENCRYPT, IN_FLIGHT>(keys, src.add(at * 16), dst.add(at * 16));
            at += IN_FLIGHT * V::BLOCKS;
        }
        while at + V::BLOCKS <= blocks {
            group::<V, R, ENCRYPT, 1>(keys, src.add(at * 16), dst.add(at * 16));
            at += V::BLOCKS;
        }
        while at < blocks {
            group::<Blocks1, R, ENCRYPT, 1>(keys, src.add(at * 16), dst.add(at * 16));
            at += 1;
        }
    }
}

/// Encrypts `blocks` blocks le64(first + (i << shift)) to `dst`, from registers: a vector read
/// right after narrower writes of its bytes would stall.
///
/// # Safety
/// As [`ecb`], with `keys` for encryption.
#[inline(always)]
pub(super) unsafe fn numbers<V: Vector, const R: usize>(
    keys: *const RoundKey,
    first: u64,
    shift: u32,
    dst: *mut u8,
    blocks: usize,
) {
    let number = |nth: usize| first.wrapping_add((nth as u64) << shift);
    let mut at = 0;
    // SAFETY: every group ends within `blocks`; the rest is the caller's promise.
    unsafe {
        while at + IN_FLIGHT * V::BLOCKS <= blocks {
            let mut x = [V::numbers(number(at), shift); IN_FLIGHT];
            let mut k = 1;
            while k < IN_FLIGHT {
                x[k] = V::numbers(number(at + k * V::BLOCKS), shift);
                k += 1;
            }
            whole::<V, R, true, IN_FLIGHT>(keys, x, dst.add(at * 16));
            at += IN_FLIGHT * V::BLOCKS;
        }
        while at + V::BLOCKS <= blocks {
            whole::<V, R, true, 1>(keys, [V::numbers(number(at), shift)], dst.add(at * 16));
            at += V::BLOCKS;
        }
        while at < blocks {
            whole::<Blocks1, R, true, 1>(keys, [Blocks1::numbers(number(at), shift)], dst.add(at * 16));
            at += 1;
        }
    }
}

/// Encrypts or decrypts `N` contiguous vectors.
///
/// # Safety
/// As [`ecb`], for these vectors.
#[inline(always)]
unsafe fn group<V: Vector, const R: usize, const ENCRYPT: bool, const N: usize>(
    keys: *const RoundKey,
    src: *const u8,
    dst: *mut u8,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = [V::load(src); N];
        let mut k = 1;
        while k < N {
            x[k] = V::load(src.add(k * V::BYTES));
            k += 1;
        }
        whole::<V, R, ENCRYPT, N>(keys, x, dst);
    }
}

/// The whole cipher over `N` vectors.
///
/// # Safety
/// As [`ecb`], for these vectors.
#[inline(always)]
unsafe fn whole<V: Vector, const R: usize, const ENCRYPT: bool, const N: usize>(
    keys: *const RoundKey,
    mut x: [V; N],
    dst: *mut u8,
) {
    // SAFETY: the caller's promise; round keys are as long as the longest vector.
    unsafe {
        let first = V::key(keys);
        let mut k = 0;
        while k < N {
            x[k] = x[k].xor(first);
            k += 1;
        }
        rounds::<V, R, ENCRYPT, N>(keys, &mut x);
        let last = V::key(keys.add(R));
        let mut k = 0;
        while k < N {
            finish::<V, ENCRYPT>(x[k], last).store(dst.add(k * V::BYTES));
            k += 1;
        }
    }
}

/// All rounds but the first key's addition and the last round.
///
/// # Safety
/// As [`ecb`].
#[inline(always)]
pub(super) unsafe fn rounds<V: Vector, const R: usize, const ENCRYPT: bool, const N: usize>(
    keys: *const RoundKey,
    x: &mut [V; N],
) {
    // SAFETY: these are rounds of the R + 1 round keys.
    unsafe { rounds_between::<V, ENCRYPT, N>(keys, 1, R, x) }
}

/// The rounds from `from` up to, and without, `to`.
///
/// # Safety
/// As [`ecb`]; each is one of the R + 1 round keys.
#[inline(always)]
pub(super) unsafe fn rounds_between<V: Vector, const ENCRYPT: bool, const N: usize>(
    keys: *const RoundKey,
    from: usize,
    to: usize,
    x: &mut [V; N],
) {
    let mut round = from;
    while round < to {
        // SAFETY: the caller's promise.
        unsafe {
            let key = V::key(keys.add(round));
            let mut k = 0;
            while k < N {
                x[k] = if ENCRYPT { x[k].encrypt_round(key) } else { x[k].decrypt_round(key) };
                k += 1;
            }
        }
        round += 1;
    }
}

/// The last round.
///
/// # Safety
/// The processor has the features of `V`.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector, const ENCRYPT: bool>(x: V, key: V) -> V {
    // SAFETY: the caller's promise.
    unsafe { if ENCRYPT { x.encrypt_last(key) } else { x.decrypt_last(key) } }
}
