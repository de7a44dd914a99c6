//! AEGIS-128, written once: a sector in each lane, with enough vectors side by side to hide the
//! latency of a round.

use super::AEGIS_CONSTANTS;
use super::vector::Vector;

/// The length of a sector's associated data, padded to two blocks, and its number of bits.
pub(super) const HEAD: usize = 32;
const HEAD_BITS: u64 = 24 * 8;

/// A run of sectors, by address: a key of 16 bytes; an IV and a sum of 16 bytes and a head of 32
/// for each sector.
pub(super) struct AegisSectors {
    pub(super) key: *const u8,
    pub(super) ivs: *const u8,
    pub(super) heads: *const u8,
    pub(super) sums: *mut u8,
    pub(super) count: usize,
    /// Bytes of each sector, a multiple of 16.
    pub(super) bytes: usize,
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
}

/// Encrypts or decrypts sectors and writes their whole tags.
///
/// # Safety
/// The processor has the features of `V`; the memory of [`AegisSectors`] is readable or writable;
/// source and destination are the same or apart; there is at least one sector.
#[inline(always)]
pub(super) unsafe fn aegis<V: Vector, const ENCRYPT: bool>(raw: &AegisSectors) {
    let mut at = 0;
    while at < raw.count {
        // SAFETY: the group begins within the run, and goes no further; the rest is the caller's
        // promise.
        unsafe {
            if raw.count - at > V::BLOCKS {
                group::<V, 2, ENCRYPT>(raw, at);
                at += 2 * V::BLOCKS;
            } else {
                group::<V, 1, ENCRYPT>(raw, at);
                at += V::BLOCKS;
            }
        }
    }
}

/// Sectors from `at` on, in `G` vectors. Surplus lanes repeat the run's last sector: all of them
/// read it before one writes.
///
/// # Safety
/// As [`aegis`]; the run has a sector `at`.
#[inline(always)]
unsafe fn group<V: Vector, const G: usize, const ENCRYPT: bool>(raw: &AegisSectors, at: usize) {
    let offsets = |each: usize| {
        let mut offsets = [[0; 4]; G];
        for (nth, offset) in offsets.as_flattened_mut().iter_mut().enumerate() {
            let (vector, lane) = (nth / 4, nth % 4);
            *offset = (at + vector * V::BLOCKS + lane).min(raw.count - 1) * each;
        }
        offsets
    };
    let (sectors, ivs, heads) = (offsets(raw.bytes), offsets(16), offsets(HEAD));
    // SAFETY: every offset is that of a sector, an IV or a head of the run, and stays within it.
    unsafe {
        let key = V::repeat(raw.key);
        let [const0, const1] = AEGIS_CONSTANTS.map(|block| V::repeat(block.as_ptr()));
        let mut keyed = [key; G];
        let mut state = [[key; 5]; G];
        each::<G>(|g| {
            keyed[g] = V::gather(raw.ivs, ivs[g].as_ptr()).xor(key);
            state[g] = [keyed[g], const1, const0, key.xor(const0), key.xor(const1)];
        });
        for _ in 0..5 {
            each::<G>(|g| update(&mut state[g], key));
            each::<G>(|g| update(&mut state[g], keyed[g]));
        }
        for block in 0..2 {
            each::<G>(|g| update(&mut state[g], V::gather(raw.heads.add(block * 16), heads[g].as_ptr())));
        }
        for block in (0..raw.bytes).step_by(16) {
            let (src, dst) = (raw.src.add(block), raw.dst.add(block));
            let mut from = [key; G];
            each::<G>(|g| from[g] = V::gather(src, sectors[g].as_ptr()));
            each::<G>(|g| {
                let [_, s1, s2, s3, s4] = state[g];
                let to = from[g].xor3(s1, s4).xor(s2.and(s3));
                update(&mut state[g], if ENCRYPT { from[g] } else { to });
                to.scatter(dst, sectors[g].as_ptr());
            });
        }
        let mut lengths = [0; 16];
        lengths[..8].copy_from_slice(&HEAD_BITS.to_le_bytes());
        lengths[8..].copy_from_slice(&(raw.bytes as u64 * 8).to_le_bytes());
        let lengths = V::repeat(lengths.as_ptr());
        each::<G>(|g| {
            let last = state[g][3].xor(lengths);
            for _ in 0..7 {
                update(&mut state[g], last);
            }
            let [s0, s1, s2, s3, s4] = state[g];
            s0.xor3(s1, s2).xor3(s3, s4).scatter(raw.sums, ivs[g].as_ptr());
        });
    }
}

/// Applies a function to each state; unrolled, so that every state stays in registers.
#[inline(always)]
fn each<const G: usize>(mut apply: impl FnMut(usize)) {
    let mut g = 0;
    while g < G {
        apply(g);
        g += 1;
    }
}

/// Adds a block to the state.
///
/// # Safety
/// The processor has the features of `V`.
#[inline(always)]
unsafe fn update<V: Vector>(state: &mut [V; 5], block: V) {
    let [s0, s1, s2, s3, s4] = *state;
    // SAFETY: the caller's promise of features.
    unsafe {
        *state = [
            s4.encrypt_round(s0.xor(block)),
            s0.encrypt_round(s1),
            s1.encrypt_round(s2),
            s2.encrypt_round(s3),
            s3.encrypt_round(s4),
        ];
    }
}
