//! HCTR2 over whole sectors: POLYVAL by carry-less multiplication, interleaved with XCTR.
//!
//! A sector has as many blocks as a number of groups of vectors. Its first block is not hashed, and
//! the tweak's second half comes before the others: it takes the first one's place, so that no
//! block is left over at the end.

use super::gcm::{multiply, powers_of, step};
use super::schedule::RoundKey;
use super::vector::Vector;
use super::{Blocks1, IN_FLIGHT, gcm};

/// The values that depend on hbar.
#[repr(C)]
pub(super) struct PolyvalKey {
    /// Powers of hbar, the highest first, as many as the blocks of eight vectors.
    pub(super) powers: [[u8; 16]; gcm::MOST_POWERS],
    /// The hash of the length of the tweak.
    pub(super) length: [u8; 16],
}

/// Makes the key for POLYVAL.
///
/// # Safety
/// The processor has the features of `V`.
#[inline(always)]
pub(super) unsafe fn expand<V: Vector>(hbar: &[u8; 16], key: &mut PolyvalKey) {
    // SAFETY: the caller's promise; there is room for the most powers.
    unsafe {
        let h = Blocks1::load(hbar.as_ptr());
        powers_of::<V>(h, key.powers.as_mut_ptr().cast());
        // A tweak is 256 bits.
        let length = Blocks1::load((2 * 256 + 2u128).to_le_bytes().as_ptr());
        multiply(length, h).store(key.length.as_mut_ptr());
    }
}

/// Hashes the tweak, and the sector behind its first block. `head` receives the tweak's part of the
/// hash.
///
/// # Safety
/// The processor has the features of `V`; the key is for it; `src` is readable for `bytes` bytes, a
/// positive multiple of 512.
#[inline(always)]
pub(super) unsafe fn hash<V: Vector>(
    key: &PolyvalKey,
    tweak: &[u8; 32],
    src: *const u8,
    bytes: usize,
    head: &mut [u8; 16],
    sum: &mut [u8; 16],
) {
    let powers = key.powers.as_ptr().cast::<u8>();
    // SAFETY: 512 is a multiple of a group for every vector; the rest is the caller's promise.
    unsafe {
        let h = Blocks1::load(powers.add((IN_FLIGHT * V::BLOCKS - 1) * 16));
        let first = Blocks1::load(key.length.as_ptr()).xor(Blocks1::load(tweak.as_ptr()));
        let front = multiply(first, h).xor(Blocks1::load(tweak.as_ptr().add(16)));
        front.store(head.as_mut_ptr());
        let mut hash = front.xor(Blocks1::load(src));
        // The counter advances, but is never encrypted.
        let mut counter = V::in_front(h);
        let mut at = 0;
        while at < bytes {
            let from = src.add(at);
            let none = std::ptr::null_mut();
            let keys = std::ptr::null();
            step::<V, 9, false, true, false>(
                keys,
                powers,
                counter,
                &mut counter,
                &mut hash,
                from,
                from,
                none,
            );
            at += IN_FLIGHT * V::BYTES;
        }
        hash.store(sum.as_mut_ptr());
    }
}

/// A sector with a known first block.
pub(super) struct Hctr2Sector<'a> {
    /// The tweak's part of the hash.
    pub(super) head: &'a [u8; 16],
    /// S, from which XCTR's stream is made.
    pub(super) s: &'a [u8; 16],
    /// Bytes of the sector, a positive multiple of 512.
    pub(super) bytes: usize,
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
}

/// Adds the key stream to the sector behind its first block, which is overwritten, and hashes the
/// result.
///
/// # Safety
/// The processor has the features of `V`; `keys` are `R + 1` round keys for encryption; the hash's
/// key is for `V`; the memory of [`Hctr2Sector`] is readable or writable; source and destination
/// are the same or apart.
#[inline(always)]
pub(super) unsafe fn stream<V: Vector, const R: usize>(
    keys: *const RoundKey,
    key: &PolyvalKey,
    raw: &Hctr2Sector<'_>,
    sum: &mut [u8; 16],
) {
    let group = IN_FLIGHT * V::BYTES;
    let &Hctr2Sector { head, s, bytes, src, dst } = raw;
    let powers = key.powers.as_ptr().cast::<u8>();
    // SAFETY: as in `hash`.
    unsafe {
        // Block i of the sector is block i of the stream, which begins with 1.
        let start = V::key(keys).xor(V::repeat(s.as_ptr()));
        let mut counter = V::numbers(0, 0);
        let mut hash = Blocks1::load(head.as_ptr());
        step::<V, R, true, false, false>(keys, powers, start, &mut counter, &mut hash, src, src, dst);
        hash = hash.xor(Blocks1::load(dst));
        let mut at = group;
        while at < bytes {
            let (from, to, before) = (src.add(at), dst.add(at), dst.add(at - group));
            step::<V, R, true, true, false>(keys, powers, start, &mut counter, &mut hash, before, from, to);
            at += group;
        }
        let last = dst.add(bytes - group);
        step::<V, R, false, true, false>(keys, powers, start, &mut counter, &mut hash, last, last, last);
        hash.store(sum.as_mut_ptr());
    }
}
