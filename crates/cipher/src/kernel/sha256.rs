//! HMAC-SHA256's hash of many messages of one length, one in each lane of a vector (FIPS 180-4,
//! 6.2; RFC 2104).

#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;

#[cfg(target_arch = "aarch64")]
use super::words::Four;
use super::words::WordVector;
#[cfg(target_arch = "x86_64")]
use super::words::{Eight, Sixteen};
use crate::CpuPath;
use crate::mac::last_block;

/// The most lanes.
const MOST: usize = 16;

type Pointers = [*const u8; MOST];

/// Pads' states, heads, their length, sectors, their length, sums.
type HmacFn = unsafe fn(&[[u32; 8]; 2], &Pointers, usize, &Pointers, usize, &mut [[u8; 32]; MOST]);

/// The vector code of HMAC-SHA256.
pub(crate) struct Sha256Lanes {
    lanes: usize,
    /// The number of messages from which vectors are faster than one message after the other.
    few: usize,
    // Invariant: a function of features that the processor has.
    hmac: HmacFn,
}

impl Sha256Lanes {
    /// The vectors that are faster on this path than one message after the other; `None` without
    /// them.
    pub(crate) fn of(path: CpuPath) -> Option<Self> {
        match path {
            CpuPath::Portable => None,
            _ if !path.is_available() => None,
            #[cfg(target_arch = "aarch64")]
            // The library uses instructions for SHA-256.
            _ if is_aarch64_feature_detected!("sha2") => None,
            #[cfg(target_arch = "aarch64")]
            _ => Some(Self::neon()),
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => Self::avx512(),
            // The library uses instructions for SHA-256. On Zen 3 eight lanes are no faster, nor
            // are two messages at once.
            #[cfg(target_arch = "x86_64")]
            CpuPath::AesNi | CpuPath::Vaes256 if is_x86_feature_detected!("sha") => None,
            #[cfg(target_arch = "x86_64")]
            _ => Self::avx2(),
        }
    }

    /// All vectors that this processor has.
    #[cfg(all(test, target_arch = "aarch64"))]
    pub(crate) fn all() -> Vec<Self> {
        vec![Self::neon()]
    }

    /// All vectors that this processor has.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn all() -> Vec<Self> {
        [Self::avx512(), Self::avx2()].into_iter().flatten().collect()
    }

    #[cfg(target_arch = "aarch64")]
    fn neon() -> Self {
        Self { lanes: 4, few: 3, hmac: neon }
    }

    #[cfg(target_arch = "x86_64")]
    fn avx512() -> Option<Self> {
        let few = if is_x86_feature_detected!("sha") { 9 } else { 3 };
        let has = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        has.then_some(Self { lanes: 16, few, hmac: avx512 })
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self { lanes: 8, few: 3, hmac: avx2 })
    }

    /// Writes the HMACs of the first messages of `count`, and returns their number: the rest are
    /// too few for vectors.
    ///
    /// # Panics
    /// When a message is not a head of at most 55 bytes and a sector of a multiple of 64 bytes, or
    /// the messages differ in these lengths.
    pub(crate) fn hmac<'a>(
        &self,
        states: &[[u32; 8]; 2],
        count: usize,
        message: impl Fn(usize) -> (&'a [u8], &'a [u8]),
        sums: &mut [[u8; 64]],
    ) -> usize {
        if count < self.few {
            return 0;
        }
        let (head, bytes) = (message(0).0.len(), message(0).1.len());
        assert!(head < 56 && bytes.is_multiple_of(64) && bytes > 0);
        let mut done = 0;
        while count - done >= self.few {
            let n = self.lanes.min(count - done);
            let (mut heads, mut sectors) = ([std::ptr::null(); MOST], [std::ptr::null(); MOST]);
            for lane in 0..MOST {
                // Surplus lanes repeat the last message.
                let (of_head, of_sector) = message(done + lane.min(n - 1));
                assert!(of_head.len() == head && of_sector.len() == bytes);
                (heads[lane], sectors[lane]) = (of_head.as_ptr(), of_sector.as_ptr());
            }
            let mut out = [[0; 32]; MOST];
            // SAFETY: the processor has the features; the assertions check the lengths.
            unsafe { (self.hmac)(states, &heads, head, &sectors, bytes, &mut out) }
            for (sum, out) in sums[done..done + n].iter_mut().zip(&out) {
                sum[..32].copy_from_slice(out);
            }
            done += n;
        }
        done
    }
}

/// FIPS 180-4, 4.2.2.
pub(super) const K: [u32; 64] = [
    0x428a_2f98,
    0x7137_4491,
    0xb5c0_fbcf,
    0xe9b5_dba5,
    0x3956_c25b,
    0x59f1_11f1,
    0x923f_82a4,
    0xab1c_5ed5,
    0xd807_aa98,
    0x1283_5b01,
    0x2431_85be,
    0x550c_7dc3,
    0x72be_5d74,
    0x80de_b1fe,
    0x9bdc_06a7,
    0xc19b_f174,
    0xe49b_69c1,
    0xefbe_4786,
    0x0fc1_9dc6,
    0x240c_a1cc,
    0x2de9_2c6f,
    0x4a74_84aa,
    0x5cb0_a9dc,
    0x76f9_88da,
    0x983e_5152,
    0xa831_c66d,
    0xb003_27c8,
    0xbf59_7fc7,
    0xc6e0_0bf3,
    0xd5a7_9147,
    0x06ca_6351,
    0x1429_2967,
    0x27b7_0a85,
    0x2e1b_2138,
    0x4d2c_6dfc,
    0x5338_0d13,
    0x650a_7354,
    0x766a_0abb,
    0x81c2_c92e,
    0x9272_2c85,
    0xa2bf_e8a1,
    0xa81a_664b,
    0xc24b_8b70,
    0xc76c_51a3,
    0xd192_e819,
    0xd699_0624,
    0xf40e_3585,
    0x106a_a070,
    0x19a4_c116,
    0x1e37_6c08,
    0x2748_774c,
    0x34b0_bcb5,
    0x391c_0cb3,
    0x4ed8_aa4a,
    0x5b9c_ca4f,
    0x682e_6ff3,
    0x748f_82ee,
    0x78a5_636f,
    0x84c8_7814,
    0x8cc7_0208,
    0x90be_fffa,
    0xa450_6ceb,
    0xbef9_a3f7,
    0xc671_78f2,
];

/// FIPS 180-4, 4.1.2: rotations to the right by three numbers, of which the last may be a shift;
/// each number comes with 32 minus it.
macro_rules! sigmas {
    ($($name:ident $a:literal $a_left:literal, $b:literal $b_left:literal, $third:ident::<$($c:literal),+>;)*) => { $(
        /// # Safety
        /// As [`WordVector`].
        #[inline(always)]
        unsafe fn $name<V: WordVector>(x: V) -> V {
            // SAFETY: the caller's promise of features.
            unsafe { x.rotate::<$a_left, $a>().xor3(x.rotate::<$b_left, $b>(), x.$third::<$($c),+>()) }
        }
    )* };
}
sigmas! {
    sum0 2 30, 13 19, rotate::<10, 22>;
    sum1 6 26, 11 21, rotate::<7, 25>;
    sigma0 7 25, 18 14, shift_right::<3>;
    sigma1 17 15, 19 13, shift_right::<10>;
}

/// Adds a block of each message to its state.
///
/// # Safety
/// As [`WordVector`]; each lane's block is readable.
#[inline(always)]
unsafe fn compress<V: WordVector>(state: &mut [V; 8], blocks: &Pointers) {
    // SAFETY: the caller's promises of features and pointers.
    unsafe {
        let mut w = V::from_lanes(blocks, 0);
        let mut i = 0;
        while i < w.len() {
            w[i] = w[i].swap_bytes();
            i += 1;
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
        macro_rules! round {
            ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident, $t:expr, $i:literal) => {
                let one = $h.add(V::every(K[$t + $i]).add(w[$i])).add(sum1($e)).add($e.choose($f, $g));
                $d = $d.add(one);
                $h = one.add(sum0($a)).add($a.majority($b, $c));
            };
        }
        macro_rules! sixteen {
            ($t:expr) => {
                round!(a b c d e f g h, $t, 0);
                round!(h a b c d e f g, $t, 1);
                round!(g h a b c d e f, $t, 2);
                round!(f g h a b c d e, $t, 3);
                round!(e f g h a b c d, $t, 4);
                round!(d e f g h a b c, $t, 5);
                round!(c d e f g h a b, $t, 6);
                round!(b c d e f g h a, $t, 7);
                round!(a b c d e f g h, $t, 8);
                round!(h a b c d e f g, $t, 9);
                round!(g h a b c d e f, $t, 10);
                round!(f g h a b c d e, $t, 11);
                round!(e f g h a b c d, $t, 12);
                round!(d e f g h a b c, $t, 13);
                round!(c d e f g h a b, $t, 14);
                round!(b c d e f g h a, $t, 15);
            };
        }
        sixteen!(0);
        let mut t = 16;
        while t < 64 {
            let mut i = 0;
            while i < 16 {
                let more = sigma1(w[(i + 14) % 16]).add(w[(i + 9) % 16]);
                w[i] = w[i].add(sigma0(w[(i + 1) % 16])).add(more);
                i += 1;
            }
            sixteen!(t);
            t += 16;
        }
        for (state, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *state = state.add(word);
        }
    }
}

/// [`hmac`], compiled for the features of a vector.
macro_rules! entry_point {
    ($name:ident, $words:ty, $arch:literal, $features:literal) => {
        #[cfg(target_arch = $arch)]
        #[target_feature(enable = $features)]
        unsafe fn $name(
            states: &[[u32; 8]; 2],
            heads: &Pointers,
            head: usize,
            sectors: &Pointers,
            bytes: usize,
            sums: &mut [[u8; 32]; MOST],
        ) {
            // SAFETY: the caller's promise, passed on.
            unsafe { hmac::<$words>(states, heads, head, sectors, bytes, sums) }
        }
    };
}
entry_point!(neon, Four, "aarch64", "neon");
entry_point!(avx2, Eight, "x86_64", "avx2");
entry_point!(avx512, Sixteen, "x86_64", "avx512f,avx512bw");

/// The HMAC of a head and a sector in each lane.
///
/// # Safety
/// The processor has the features of `V`. Every pointer is readable for its length; heads are
/// shorter than 56 bytes, sectors a multiple of 64, and not empty.
#[inline(always)]
unsafe fn hmac<V: WordVector>(
    states: &[[u32; 8]; 2],
    heads: &Pointers,
    head: usize,
    sectors: &Pointers,
    bytes: usize,
    sums: &mut [[u8; 32]; MOST],
) {
    // SAFETY: as promised; no block reaches beyond its sector.
    unsafe {
        let slices = |lane: usize| {
            (std::slice::from_raw_parts(heads[lane], head), std::slice::from_raw_parts(sectors[lane], bytes))
        };
        let [inner, outer] = states;
        let mut state = inner.map(|word| V::every(word));
        let mut blocks = [[0; 64]; MOST];
        let pointers =
            |blocks: &[[u8; 64]; MOST]| -> Pointers { std::array::from_fn(|lane| blocks[lane].as_ptr()) };
        for (lane, block) in blocks.iter_mut().enumerate().take(V::LANES) {
            let (head_bytes, sector) = slices(lane);
            block[..head].copy_from_slice(head_bytes);
            block[head..].copy_from_slice(&sector[..64 - head]);
        }
        compress(&mut state, &pointers(&blocks));
        // The bytes of the sector from the first block's end to the last whole block's.
        for at in (64 - head..bytes - head).step_by(64) {
            compress(&mut state, &sectors.map(|sector| sector.add(at)));
        }
        for (lane, block) in blocks.iter_mut().enumerate().take(V::LANES) {
            *block = last_block(&slices(lane).1[bytes - head..], head + bytes);
        }
        compress(&mut state, &pointers(&blocks));
        let digests = digests(&state);
        for (block, digest) in blocks.iter_mut().zip(&digests).take(V::LANES) {
            *block = last_block(digest, digest.len());
        }
        let mut state = outer.map(|word| V::every(word));
        compress(&mut state, &pointers(&blocks));
        *sums = self::digests(&state);
    }
}

/// The states as bytes, one message after the other.
///
/// # Safety
/// As [`WordVector`].
#[inline(always)]
unsafe fn digests<V: WordVector>(state: &[V; 8]) -> [[u8; 32]; MOST] {
    let mut digests = [[0; 32]; MOST];
    for (nth, vector) in state.iter().enumerate() {
        let mut words = [0u32; MOST];
        // SAFETY: the caller's promise of features.
        unsafe { vector.store(words.as_mut_ptr().cast()) }
        for (digest, word) in digests.iter_mut().zip(words) {
            digest[nth * 4..][..4].copy_from_slice(&word.to_be_bytes());
        }
    }
    digests
}
