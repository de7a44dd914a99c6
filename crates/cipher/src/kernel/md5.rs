//! MD5 of many sectors as LMK has it, one in each lane of words (RFC 1321).

#[cfg(target_arch = "aarch64")]
use super::words::Four;
use super::words::Words;
#[cfg(target_arch = "x86_64")]
use super::words::{Eight, Sixteen};
use crate::CpuPath;

/// The most sectors in one call.
const MOST: usize = 32;

type Pointers = [*const u8; MOST];

/// The first two words behind each sector.
type Ends = [[u32; MOST]; 2];

/// State, sectors, what is behind them, states.
type SectorsFn = unsafe fn(&[u32; 4], &Pointers, &Ends, &mut [[u8; 16]; MOST]);

/// Vectors that MD5 runs in.
#[derive(Clone, Copy)]
pub(crate) struct Md5Lanes {
    /// Sectors in one vector, and in one call.
    lanes: usize,
    // Only ever functions of features that the processor has: one vector of sectors, and two in turn.
    one: SectorsFn,
    two: SectorsFn,
}

impl Md5Lanes {
    /// The widest of a path that the processor has; there may be none.
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
    /// When a sector is shorter, or there are not as many sectors, ends and states.
    pub(crate) fn sectors(
        &self,
        state: &[u32; 4],
        sectors: &[&[u8]],
        ends: &[[u32; 2]],
        states: &mut [[u8; 16]],
    ) {
        assert!(sectors.len() == ends.len() && ends.len() == states.len());
        let mut done = 0;
        while done < sectors.len() {
            let left = sectors.len() - done;
            let (function, most) =
                if left <= self.lanes { (self.one, self.lanes) } else { (self.two, 2 * self.lanes) };
            let n = left.min(most);
            let (mut pointers, mut tails) = ([std::ptr::null(); MOST], [[0; MOST]; 2]);
            for lane in 0..most {
                // Lanes that are left over do the last sector once more.
                let nth = done + lane.min(n - 1);
                assert!(sectors[nth].len() >= 512);
                pointers[lane] = sectors[nth].as_ptr();
                [tails[0][lane], tails[1][lane]] = ends[nth];
            }
            let mut out = [[0; 16]; MOST];
            // SAFETY: the processor has the features; every lane has a sector.
            unsafe { function(state, &pointers, &tails, &mut out) }
            states[done..done + n].copy_from_slice(&out[..n]);
            done += n;
        }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon<const N: usize>(
    state: &[u32; 4],
    sectors: &Pointers,
    ends: &Ends,
    states: &mut [[u8; 16]; MOST],
) {
    // SAFETY: passed on.
    unsafe { hash::<Four, N>(state, sectors, ends, states) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<const N: usize>(
    state: &[u32; 4],
    sectors: &Pointers,
    ends: &Ends,
    states: &mut [[u8; 16]; MOST],
) {
    // SAFETY: passed on.
    unsafe { hash::<Eight, N>(state, sectors, ends, states) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
unsafe fn avx512<const N: usize>(
    state: &[u32; 4],
    sectors: &Pointers,
    ends: &Ends,
    states: &mut [[u8; 16]; MOST],
) {
    // SAFETY: passed on.
    unsafe { hash::<Sixteen, N>(state, sectors, ends, states) };
}

/// The hashes of the sectors of `N` vectors of lanes.
///
/// # Safety
/// The processor has the features of `V`; so many pointers are readable for 512 bytes; there are no more lanes than [`MOST`].
#[inline(always)]
unsafe fn hash<V: Words, const N: usize>(
    state: &[u32; 4],
    sectors: &Pointers,
    ends: &Ends,
    states: &mut [[u8; 16]; MOST],
) {
    // SAFETY: the caller's promise; blocks begin behind the first 16 bytes, so seven are whole, and 48 bytes are left.
    unsafe {
        let mut sums = [[V::every(0); N]; 4];
        let mut i = 0;
        while i < 4 {
            sums[i] = [V::every(state[i]); N];
            i += 1;
        }
        let mut blocks = [[V::every(0); 16]; N];
        for block in 0..7 {
            let mut n = 0;
            while n < N {
                blocks[n] = V::from_lanes(&sectors[n * V::LANES..], 16 + 64 * block);
                n += 1;
            }
            compress(&mut sums, &blocks);
        }
        let mut n = 0;
        while n < N {
            let tail = V::from_lanes(&sectors[n * V::LANES..], 448);
            let mut i = 0;
            while i < 12 {
                blocks[n][i] = tail[i + 4];
                i += 1;
            }
            blocks[n][12] = V::load(ends[0].as_ptr().add(n * V::LANES).cast());
            blocks[n][13] = V::load(ends[1].as_ptr().add(n * V::LANES).cast());
            blocks[n][14] = V::every(4024);
            blocks[n][15] = V::every(0);
            n += 1;
        }
        compress(&mut sums, &blocks);
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

/// Adds a block of each message to its state.
///
/// # Safety
/// The processor has the features of `V`.
#[inline(always)]
unsafe fn compress<V: Words, const N: usize>(state: &mut [[V; N]; 4], blocks: &[[V; 16]; N]) {
    let [mut a, mut b, mut c, mut d] = *state;
    // The vectors in turn: each step of one waits for the step before.
    macro_rules! step {
        ($a:ident $b:ident $c:ident $d:ident, $f:expr, $word:expr, $sine:expr, $left:literal $right:literal) => {
            let (sine, mut n) = (V::every(SINES[$sine]), 0);
            while n < N {
                let word = blocks[n][$word].add(sine);
                let sum = $f($a[n].add(word), $b[n], $c[n], $d[n]);
                $a[n] = sum.rotate::<$left, $right>().add($b[n]);
                n += 1;
            }
        };
    }
    macro_rules! round {
        ($nth:literal, $f:expr, $word:expr, [$l0:literal $r0:literal $l1:literal $r1:literal $l2:literal $r2:literal $l3:literal $r3:literal]) => {
            let mut i = 0;
            while i < 16 {
                step!(a b c d, $f, $word(i) % 16, $nth * 16 + i, $l0 $r0);
                step!(d a b c, $f, $word(i + 1) % 16, $nth * 16 + i + 1, $l1 $r1);
                step!(c d a b, $f, $word(i + 2) % 16, $nth * 16 + i + 2, $l2 $r2);
                step!(b c d a, $f, $word(i + 3) % 16, $nth * 16 + i + 3, $l3 $r3);
                i += 4;
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        round!(0, |sum: V, x: V, y: V, z: V| sum.add(x.choose(y, z)), |i| i, [7 25 12 20 17 15 22 10]);
        round!(1, |sum: V, x: V, y: V, z: V| sum.add_chosen(z, x, y), |i| 5 * i + 1, [5 27 9 23 14 18 20 12]);
        round!(2, |sum: V, x: V, y: V, z: V| sum.add(x.xor(y.xor(z))), |i| 3 * i + 5, [4 28 11 21 16 16 23 9]);
        round!(3, |sum: V, x: V, y: V, z: V| sum.add(y.xor(x.or_not(z))), |i| 7 * i, [6 26 10 22 15 17 21 11]);
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
