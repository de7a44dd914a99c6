//! MD5 of many sectors for LMK, one in each lane of words (RFC 1321).

use std::mem::MaybeUninit;

#[cfg(target_arch = "aarch64")]
use super::words::Four;
use super::words::WordVector;
#[cfg(target_arch = "x86_64")]
use super::words::{Eight, Sixteen};
use crate::CpuPath;

/// The most sectors in one call.
pub(super) const MOST: usize = 32;

/// Sectors that are hashed side by side.
pub(super) struct Batch<'a> {
    state: &'a [u32; 4],
    sectors: [*const u8; MOST],
    /// The first two words behind each sector.
    ends: [[u32; MOST]; 2],
}

/// A batch, and room for its states.
type SectorsFn = unsafe fn(&Batch<'_>, &mut [[u8; 16]; MOST]);

impl<'a> Batch<'a> {
    /// A batch of as many sectors as there are ends: at least one, at most [`MOST`]. Surplus lanes
    /// repeat the last sector.
    ///
    /// # Panics
    /// When a sector has less than 512 bytes, or there are too many, or none.
    pub(super) fn new(state: &'a [u32; 4], sectors: &'a [u8], ends: &[[u32; 2]]) -> Self {
        let (count, bytes) = (ends.len(), sectors.len() / ends.len());
        assert!(count <= MOST && bytes >= 512);
        let nth = |lane: usize| lane.min(count - 1);
        Self {
            state,
            sectors: std::array::from_fn(|lane| sectors[nth(lane) * bytes..].as_ptr()),
            ends: [0, 1].map(|half| std::array::from_fn(|lane| ends[nth(lane)][half])),
        }
    }
}

/// Work between the steps of MD5, for units of the processor that MD5 leaves idle.
pub(super) trait InterleavedWork {
    /// Called after each of the 64 steps of a block: `nth` counts from 0 to 63.
    ///
    /// # Safety
    /// The conditions of the implementing module.
    unsafe fn step(&mut self, nth: usize);
}

/// No other work.
struct NoWork;

impl InterleavedWork for NoWork {
    #[inline(always)]
    unsafe fn step(&mut self, _nth: usize) {}
}

/// The vector code of MD5.
#[derive(Clone, Copy)]
pub(crate) struct Md5Lanes {
    /// Sectors in one vector; two vectors are a call.
    lanes: usize,
    // Invariant: functions of features that the processor has: for one vector of sectors, and for
    // two in turn.
    one: SectorsFn,
    two: SectorsFn,
}

impl Md5Lanes {
    /// The widest vectors of a path that the processor has; `None` without vectors.
    pub(crate) fn of(path: CpuPath) -> Option<Self> {
        match path {
            CpuPath::Portable => None,
            _ if !path.is_available() => None,
            #[cfg(target_arch = "aarch64")]
            _ => Some(Self { lanes: 4, one: neon::<1>, two: neon::<2> }),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => Some(Self { lanes: 16, one: avx512::<1>, two: avx512::<2> }),
            #[cfg(target_arch = "x86_64")]
            _ => {
                is_x86_feature_detected!("avx2").then_some(Self { lanes: 8, one: avx2::<1>, two: avx2::<2> })
            }
        }
    }

    /// The states after bytes 16 to 511 of each sector, two words and le32{4024, 0}, as bytes.
    ///
    /// # Panics
    /// When a sector is shorter, or there are not as many ends and states, or more than 32.
    pub(crate) fn sectors(
        &self,
        state: &[u32; 4],
        sectors: &[u8],
        ends: &[[u32; 2]],
        states: &mut [[u8; 16]],
    ) {
        let bytes = sectors.len() / ends.len();
        let groups = sectors.chunks(2 * self.lanes * bytes).zip(ends.chunks(2 * self.lanes));
        for ((sectors, ends), states) in groups.zip(states.chunks_mut(2 * self.lanes)) {
            let mut out = [[0; 16]; MOST];
            let function = if ends.len() <= self.lanes { self.one } else { self.two };
            // SAFETY: the processor has the features.
            unsafe { function(&Batch::new(state, sectors, ends), &mut out) }
            states.copy_from_slice(&out[..ends.len()]);
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon<const N: usize>(batch: &Batch<'_>, states: &mut [[u8; 16]; MOST]) {
    // SAFETY: the caller's promise, passed on.
    unsafe { hash::<Four, N, _>(batch, states, &mut NoWork) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<const N: usize>(batch: &Batch<'_>, states: &mut [[u8; 16]; MOST]) {
    // SAFETY: the caller's promise, passed on.
    unsafe { hash::<Eight, N, _>(batch, states, &mut NoWork) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn avx512<const N: usize>(batch: &Batch<'_>, states: &mut [[u8; 16]; MOST]) {
    // SAFETY: the caller's promise, passed on.
    unsafe { hash::<Sixteen, N, _>(batch, states, &mut NoWork) };
}

/// Room for the words of a block; the last block's words, which begin four words before their end,
/// go to its end.
const ROOM: usize = 20;
/// The first word of a block in that room.
const FRONT: usize = ROOM - 16;

/// Hashes the sectors of `N` vectors of lanes, one or two. While a block is hashed, the next one's
/// words are fetched.
///
/// # Safety
/// The processor has the features of `V`; each lane's pointer is readable for 512 bytes; there are
/// at most [`MOST`] lanes; the conditions of `beside` hold for 512 steps.
#[inline(always)]
pub(super) unsafe fn hash<V: WordVector, const N: usize, B: InterleavedWork>(
    batch: &Batch<'_>,
    states: &mut [[u8; 16]; MOST],
    beside: &mut B,
) {
    // SAFETY: the caller's promise; blocks begin behind the first 16 bytes, so seven are whole, and
    // 48 bytes are left, which are fetched with the 16 before them. Words are written before they
    // are read: `now` takes the words of `next`.
    unsafe {
        let mut sums = [[V::every(0); N]; 4];
        let mut i = 0;
        while i < 4 {
            sums[i] = [V::every(batch.state[i]); N];
            i += 1;
        }
        let mut rooms = [const { [MaybeUninit::<[V; ROOM]>::uninit(); 2] }; 2];
        let [now, next] = &mut rooms;
        let (mut now, mut next) = (now.as_mut_ptr().cast::<V>(), next.as_mut_ptr().cast::<V>());
        let mut unit = 0;
        let first = Fetch::<V, N> { lanes: &batch.sectors, at: 16, to: now.add(FRONT) };
        while unit < V::PIECES * N {
            first.unit(unit);
            unit += 1;
        }
        let mut block = 0;
        while block < 8 {
            let mut fetch = Fetch::<V, N> { lanes: &batch.sectors, at: 80 + 64 * block, to: next.add(FRONT) };
            if block >= 6 {
                // The eighth block is the last: it is fetched once more.
                (fetch.at, fetch.to) = (448, next);
                let mut n = 0;
                while n < N {
                    let end = next.add(n * ROOM + 16);
                    end.write(V::load(batch.ends[0].as_ptr().add(n * V::LANES).cast()));
                    end.add(1).write(V::load(batch.ends[1].as_ptr().add(n * V::LANES).cast()));
                    end.add(2).write(V::every(4024));
                    end.add(3).write(V::every(0));
                    n += 1;
                }
            }
            compress(&mut sums, now.add(FRONT), &fetch, beside);
            (now, next) = (next, now);
            block += 1;
        }
        let mut words = [[0u32; MOST]; 4];
        for (words, sums) in words.iter_mut().zip(sums) {
            for (words, sum) in words.chunks_exact_mut(V::LANES).zip(sums) {
                sum.store(words.as_mut_ptr().cast());
            }
        }
        for (lane, state) in states.iter_mut().enumerate() {
            for (bytes, words) in state.as_chunks_mut::<4>().0.iter_mut().zip(&words) {
                *bytes = words[lane].to_le_bytes();
            }
        }
    }
}

/// The words of the next block of `N` vectors of lanes, fetched in pieces.
struct Fetch<'a, V, const N: usize> {
    lanes: &'a [*const u8; MOST],
    at: usize,
    to: *mut V,
}

impl<V: WordVector, const N: usize> Fetch<'_, V, N> {
    /// # Safety
    /// The processor has the features of `V`; there are 64 bytes at `at` in each lane, and room.
    #[inline(always)]
    unsafe fn unit(&self, nth: usize) {
        // The lanes take turns: a piece does not wait for the one before.
        let (n, piece) = (nth % N, nth / N);
        // SAFETY: the caller's promise.
        unsafe { V::fetch(piece, &self.lanes[n * V::LANES..], self.at, self.to.add(n * ROOM)) }
    }
}

/// Adds a block of each message to its state.
///
/// # Safety
/// The processor has the features of `V`; at `words` there are 16 for each vector, [`ROOM`] apart;
/// the conditions of `fetch` and `beside` hold.
#[inline(always)]
unsafe fn compress<V: WordVector, const N: usize, B: InterleavedWork>(
    state: &mut [[V; N]; 4],
    words: *const V,
    fetch: &Fetch<'_, V, N>,
    beside: &mut B,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    let apart = 64 / (V::PIECES * N);
    // The vectors take turns, since each step of one waits for the step before. Words are read
    // where they are used: a compiler that could read them earlier would run out of registers.
    macro_rules! step {
        ($a:ident $b:ident $c:ident $d:ident, $f:expr, $nth:expr, $word:expr, $left:literal $right:literal) => {
            let (sine, mut n) = (V::every(SINES[$nth]), 0);
            while n < N {
                let word = words.add(n * ROOM + $word % 16).read_volatile();
                let sum = $f($a[n].add(word).add(sine).apart(), $b[n], $c[n], $d[n]);
                $a[n] = sum.rotate::<$left, $right>().add($b[n]);
                n += 1;
            }
            beside.step($nth);
            if $nth % apart == apart / 2 {
                fetch.unit($nth / apart);
            }
        };
    }
    macro_rules! round {
        ($nth:literal, $f:expr, $word:expr, $by:tt) => {
            round!(@four $nth, 0, $f, $word, $by);
            round!(@four $nth, 4, $f, $word, $by);
            round!(@four $nth, 8, $f, $word, $by);
            round!(@four $nth, 12, $f, $word, $by);
        };
        (@four $nth:literal, $i:literal, $f:expr, $word:expr, [$l0:literal $r0:literal $l1:literal $r1:literal $l2:literal $r2:literal $l3:literal $r3:literal]) => {
            step!(a b c d, $f, $nth * 16 + $i, $word($i), $l0 $r0);
            step!(d a b c, $f, $nth * 16 + $i + 1, $word($i + 1), $l1 $r1);
            step!(c d a b, $f, $nth * 16 + $i + 2, $word($i + 2), $l2 $r2);
            step!(b c d a, $f, $nth * 16 + $i + 3, $word($i + 3), $l3 $r3);
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        round!(0, |sum: V, x: V, y: V, z: V| sum.add(x.choose(y, z)), |i: usize| i, [7 25 12 20 17 15 22 10]);
        round!(1, |sum: V, x: V, y: V, z: V| sum.add_chosen(z, x, y), |i: usize| 5 * i + 1, [5 27 9 23 14 18 20 12]);
        round!(2, |sum: V, x: V, y: V, z: V| sum.add(x.xor3(y, z)), |i: usize| 3 * i + 5, [4 28 11 21 16 16 23 9]);
        round!(3, |sum: V, x: V, y: V, z: V| sum.add(y.xor_or_not(x, z)), |i: usize| 7 * i, [6 26 10 22 15 17 21 11]);
        let mut n = 0;
        while n < N {
            for (state, sum) in state.iter_mut().zip([a[n], b[n], c[n], d[n]]) {
                state[n] = state[n].add(sum);
            }
            n += 1;
        }
    }
}

/// RFC 1321, 3.4: the integer part of 2^32 |sin(i + 1)|.
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];
