//! MD5's compression function (RFC 1321, 3.4) over several messages of one block: plain arrays, which compilers turn
//! into vectors.

/// Messages side by side: enough to hide the latency of a step.
pub(super) const LANES: usize = 8;

type Lanes = [u32; LANES];

/// The digests' words of messages of one block each, padding included.
#[inline(never)]
pub(super) fn compress(message: &[Lanes; 16]) -> [Lanes; 4] {
    let [mut a, mut b, mut c, mut d] = MD5.map(|word| [word; LANES]);
    let mut step = 0;
    while step < 64 {
        let (round, nth) = (step / 16, step % 16);
        let at = [nth, (5 * nth + 1) % 16, (3 * nth + 5) % 16, (7 * nth) % 16][round];
        let mut next = [0; LANES];
        for lane in 0..LANES {
            let (x, y, z) = (b[lane], c[lane], d[lane]);
            let mixed = match round {
                0 => z ^ (x & (y ^ z)),
                1 => y ^ (z & (x ^ y)),
                2 => x ^ y ^ z,
                _ => y ^ (x | !z),
            };
            let sum = a[lane].wrapping_add(mixed).wrapping_add(message[at][lane]).wrapping_add(SINES[step]);
            next[lane] = x.wrapping_add(sum.rotate_left(TURNS[round][step % 4]));
        }
        (a, d, c, b) = (d, c, b, next);
        step += 1;
    }
    let mut sum = [a, b, c, d];
    for (lanes, word) in sum.iter_mut().zip(MD5) {
        for lane in lanes {
            *lane = lane.wrapping_add(word);
        }
    }
    sum
}

/// RFC 1321, 3.3.
const MD5: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// floor(2^32 * |sin(i + 1)|).
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xd76a_a478, 0xe8c7_b756, 0x2420_70db, 0xc1bd_ceee,
    0xf57c_0faf, 0x4787_c62a, 0xa830_4613, 0xfd46_9501,
    0x6980_98d8, 0x8b44_f7af, 0xffff_5bb1, 0x895c_d7be,
    0x6b90_1122, 0xfd98_7193, 0xa679_438e, 0x49b4_0821,
    0xf61e_2562, 0xc040_b340, 0x265e_5a51, 0xe9b6_c7aa,
    0xd62f_105d, 0x0244_1453, 0xd8a1_e681, 0xe7d3_fbc8,
    0x21e1_cde6, 0xc337_07d6, 0xf4d5_0d87, 0x455a_14ed,
    0xa9e3_e905, 0xfcef_a3f8, 0x676f_02d9, 0x8d2a_4c8a,
    0xfffa_3942, 0x8771_f681, 0x6d9d_6122, 0xfde5_380c,
    0xa4be_ea44, 0x4bde_cfa9, 0xf6bb_4b60, 0xbebf_bc70,
    0x289b_7ec6, 0xeaa1_27fa, 0xd4ef_3085, 0x0488_1d05,
    0xd9d4_d039, 0xe6db_99e5, 0x1fa2_7cf8, 0xc4ac_5665,
    0xf429_2244, 0x432a_ff97, 0xab94_23a7, 0xfc93_a039,
    0x655b_59c3, 0x8f0c_cc92, 0xffef_f47d, 0x8584_5dd1,
    0x6fa8_7e4f, 0xfe2c_e6e0, 0xa301_4314, 0x4e08_11a1,
    0xf753_7e82, 0xbd3a_f235, 0x2ad7_d2bb, 0xeb86_d391,
];
