//! The diffusers of Elephant over many sectors, one in each lane of words (Ferguson, "AES-CBC +
//! Elephant diffuser", 2006, 4).

use std::hint::black_box;
use std::mem::MaybeUninit;

#[cfg(target_arch = "aarch64")]
use super::words::Four;
use super::words::WordVector;
#[cfg(target_arch = "x86_64")]
use super::words::{Eight, Sixteen};
use crate::CpuPath;

/// The most lanes.
const MOST: usize = 16;
/// Words of the longest sector: longer ones would evict each other's lanes from the cache.
const LONGEST: usize = 1024;

/// The address of a sector for each lane, and its length in bytes.
type SectorsFn = unsafe fn(&[*mut u8; MOST], usize);

/// The vector code of the diffusers.
#[derive(Clone, Copy)]
pub(crate) struct DiffuserLanes {
    lanes: usize,
    // Invariant: functions of features that the processor has.
    apply: SectorsFn,
    undo: SectorsFn,
}

impl DiffuserLanes {
    /// The widest vectors of a path that the processor has; `None` without vectors.
    pub(crate) fn of(path: CpuPath) -> Option<Self> {
        match path {
            CpuPath::Portable => None,
            _ if !path.is_available() => None,
            #[cfg(target_arch = "aarch64")]
            _ => Some(Self { lanes: 4, apply: neon::<true>, undo: neon::<false> }),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => Some(Self { lanes: 16, apply: avx512::<true>, undo: avx512::<false> }),
            #[cfg(target_arch = "x86_64")]
            _ => is_x86_feature_detected!("avx2").then_some(Self {
                lanes: 8,
                apply: avx2::<true>,
                undo: avx2::<false>,
            }),
        }
    }

    /// True for supported sector lengths.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        bytes.is_multiple_of(64) && (bytes / 4).is_power_of_two() && bytes / 4 <= LONGEST
    }

    /// Applies A, then B, to each sector.
    ///
    /// # Panics
    /// When the data is no whole number of sectors of a length that [`Self::takes`] supports.
    pub(crate) fn apply(&self, data: &mut [u8], bytes: usize) {
        self.run(self.apply, data, bytes);
    }

    /// Undoes B, then A, in each sector.
    ///
    /// # Panics
    /// As [`Self::apply`].
    pub(crate) fn undo(&self, data: &mut [u8], bytes: usize) {
        self.run(self.undo, data, bytes);
    }

    fn run(&self, function: SectorsFn, data: &mut [u8], bytes: usize) {
        assert!(self.takes(bytes) && data.len().is_multiple_of(bytes));
        for group in data.chunks_mut(self.lanes * bytes) {
            let count = group.len() / bytes;
            let at = group.as_mut_ptr();
            // Surplus lanes repeat the last sector; all are read before one is written.
            let places = std::array::from_fn(|lane| at.wrapping_add(lane.min(count - 1) * bytes));
            // SAFETY: the processor has the features; every lane has a sector of a supported
            // length.
            unsafe { function(&places, bytes) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon<const APPLY: bool>(places: &[*mut u8; MOST], bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { sectors::<Four, APPLY>(places, bytes) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<const APPLY: bool>(places: &[*mut u8; MOST], bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { sectors::<Eight, APPLY>(places, bytes) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn avx512<const APPLY: bool>(places: &[*mut u8; MOST], bytes: usize) {
    // SAFETY: the caller's promise, passed on.
    unsafe { sectors::<Sixteen, APPLY>(places, bytes) };
}

/// Both diffusers over a sector in each lane.
///
/// # Safety
/// The processor has the features of `V`; the places of all lanes are readable and writable for
/// `bytes` bytes, a power of two of them, from 64 to four times [`LONGEST`].
#[inline(always)]
unsafe fn sectors<V: WordVector, const APPLY: bool>(places: &[*mut u8; MOST], bytes: usize) {
    let n = bytes / 4;
    let mut words = [const { MaybeUninit::<V>::uninit() }; LONGEST];
    let d = words.as_mut_ptr().cast::<V>();
    let from = places.map(|place| place.cast_const());
    // SAFETY: the first `n` words are written before anything else, and no other is touched; the
    // rest is the caller's promise.
    unsafe {
        for at in (0..bytes).step_by(64) {
            for (i, word) in V::from_lanes(&from, at).into_iter().enumerate() {
                d.add(at / 4 + i).write(word);
            }
        }
        if APPLY {
            for _ in 0..5 {
                apply_a(d, n);
            }
            for _ in 0..3 {
                apply_b(d, n);
            }
        } else {
            for _ in 0..3 {
                undo_b(d, n);
            }
            for _ in 0..5 {
                undo_a(d, n);
            }
        }
        for at in (0..bytes).step_by(64) {
            let mut block = [V::every(0); 16];
            for (i, word) in block.iter_mut().enumerate() {
                *word = d.add(at / 4 + i).read();
            }
            for (nth, vector) in V::to_lanes(block).into_iter().enumerate() {
                let to = nth * V::BYTES;
                vector.store(places[to / 64].add(at + to % 64));
            }
        }
        for i in 0..n {
            d.add(i).write(V::every(0));
        }
    }
    // The assembler barrier keeps the wiping of plaintext words from being optimised away.
    black_box(&mut words);
}

/// Decrypts one round of the diffuser A, as it is defined: d_i += d_(i-2) ^ (d_(i-5) <<< 9, 0, 13,
/// 0). The last five words stay in registers, since the next one needs them.
///
/// # Safety
/// The processor has the features of `V`; there are `n` words, a power of two from 16.
#[inline(always)]
unsafe fn undo_a<V: WordVector>(d: *mut V, n: usize) {
    // SAFETY: `i` stays below `n`.
    unsafe {
        let last = |back: usize| d.add(n - back).read();
        let (mut p1, mut p2, mut p3, mut p4, mut p5) = (last(1), last(2), last(3), last(4), last(5));
        let mut i = 0;
        macro_rules! step {
            ($turned:expr) => {
                let new = d.add(i).read().add(p2.xor($turned));
                d.add(i).write(new);
                (p1, p2, p3, p4, p5) = (new, p1, p2, p3, p4);
                i += 1;
            };
        }
        while i < n {
            step!(p5.rotate::<9, 23>());
            step!(p5);
            step!(p5.rotate::<13, 19>());
            step!(p5);
        }
    }
}

/// The inverse of [`undo_a`]: backwards, where no word waits for a changed one except at the end.
/// The following six words are in registers.
///
/// # Safety
/// As [`undo_a`].
#[inline(always)]
unsafe fn apply_a<V: WordVector>(d: *mut V, n: usize) {
    // SAFETY: the mask keeps indices below `n`.
    unsafe {
        let last = |back: usize| d.add(n - back).read();
        let [mut p0, mut p1, mut p2, mut p3, mut p4, mut p5] = [1, 2, 3, 4, 5, 6].map(last);
        let mut i = n;
        macro_rules! step {
            ($turned:expr) => {
                i -= 1;
                d.add(i).write(p0.sub(p2.xor($turned)));
                (p0, p1, p2, p3, p4, p5) = (p1, p2, p3, p4, p5, d.add(i.wrapping_sub(6) & (n - 1)).read());
            };
        }
        while i > 0 {
            step!(p5);
            step!(p5.rotate::<13, 19>());
            step!(p5);
            step!(p5.rotate::<9, 23>());
        }
    }
}

/// A round of B as it is defined, for decryption: d_i += d_(i+2) ^ (d_(i+5) <<< 0, 10, 0, 25).
///
/// # Safety
/// As [`undo_a`].
#[inline(always)]
unsafe fn undo_b<V: WordVector>(d: *mut V, n: usize) {
    // SAFETY: the mask keeps indices below `n`.
    unsafe {
        let first = |at: usize| d.add(at).read();
        let [mut p0, mut p1, mut p2, mut p3, mut p4, mut p5] = [0, 1, 2, 3, 4, 5].map(first);
        let mut i = 0;
        macro_rules! step {
            ($turned:expr) => {
                d.add(i).write(p0.add(p2.xor($turned)));
                (p0, p1, p2, p3, p4, p5) = (p1, p2, p3, p4, p5, d.add((i + 6) & (n - 1)).read());
                i += 1;
            };
        }
        while i < n {
            step!(p5);
            step!(p5.rotate::<10, 22>());
            step!(p5);
            step!(p5.rotate::<25, 7>());
        }
    }
}

/// The inverse of [`undo_b`]: backwards, with the five words behind in registers.
///
/// # Safety
/// As [`undo_a`].
#[inline(always)]
unsafe fn apply_b<V: WordVector>(d: *mut V, n: usize) {
    // SAFETY: `i` stays below `n`.
    unsafe {
        let first = |at: usize| d.add(at).read();
        let (mut p1, mut p2, mut p3, mut p4, mut p5) = (first(0), first(1), first(2), first(3), first(4));
        let mut i = n;
        macro_rules! step {
            ($turned:expr) => {
                i -= 1;
                let new = d.add(i).read().sub(p2.xor($turned));
                d.add(i).write(new);
                (p1, p2, p3, p4, p5) = (new, p1, p2, p3, p4);
            };
        }
        while i > 0 {
            step!(p5.rotate::<25, 7>());
            step!(p5);
            step!(p5.rotate::<10, 22>());
            step!(p5);
        }
    }
}
