//! The S-boxes where any function of three words is one instruction (AVX-512), with a round key
//! added to the outputs: a few functions of each box, and four of two words, which leave room for
//! the key's. A search with a SAT solver found them.
//!
//! The bits of a function's table are its values for 0 to 7: of the first word's bit, the highest,
//! the second's, and the third's.

/// Words of which any function of three is as dear as any other.
///
/// # Safety
/// The method may be called only on a processor with the implementing type's features.
pub(super) trait Ternary: Copy {
    unsafe fn of<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self;
}

/// S-box `N`, and a key added.
///
/// # Safety
/// The processor has the features of `W`.
#[inline(always)]
pub(super) unsafe fn substitute<W: Ternary, const N: usize>(x: [W; 4], key: [W; 4]) -> [W; 4] {
    const { assert!(N < 8) };
    // SAFETY: passed on.
    unsafe {
        match N {
            0 => s0(x, key),
            1 => s1(x, key),
            2 => s2(x, key),
            3 => s3(x, key),
            4 => s4(x, key),
            5 => s5(x, key),
            6 => s6(x, key),
            _ => s7(x, key),
        }
    }
}

/// The inverse of S-box `N`, and a key added.
///
/// # Safety
/// The processor has the features of `W`.
#[inline(always)]
pub(super) unsafe fn restore<W: Ternary, const N: usize>(x: [W; 4], key: [W; 4]) -> [W; 4] {
    const { assert!(N < 8) };
    // SAFETY: passed on.
    unsafe {
        match N {
            0 => i0(x, key),
            1 => i1(x, key),
            2 => i2(x, key),
            3 => i3(x, key),
            4 => i4(x, key),
            5 => i5(x, key),
            6 => i6(x, key),
            _ => i7(x, key),
        }
    }
}

/// A box: its functions, each with its table and its words, and those of the outputs. The box's
/// contract is that of [`substitute`].
macro_rules! ternary {
    (
        $name:ident [$w0:ident $w1:ident $w2:ident $w3:ident]
        $($inner:ident = $table:literal $a:ident $b:ident $c:ident,)*
        [$t0:literal $d0:ident $e0:ident, $t1:literal $d1:ident $e1:ident, $t2:literal $d2:ident $e2:ident, $t3:literal $d3:ident $e3:ident]
    ) => {
        #[inline(always)]
        unsafe fn $name<W: Ternary>([$w0, $w1, $w2, $w3]: [W; 4], key: [W; 4]) -> [W; 4] {
            // SAFETY: the caller's promise of features.
            unsafe {
                $(let $inner = W::of::<$table>($a, $b, $c);)*
                [
                    W::of::<$t0>($d0, $e0, key[0]),
                    W::of::<$t1>($d1, $e1, key[1]),
                    W::of::<$t2>($d2, $e2, key[2]),
                    W::of::<$t3>($d3, $e3, key[3]),
                ]
            }
        }
    };
}

ternary!(
    s0 [a b c d]
    e = 0xe2 a b d, f = 0x36 a b d, g = 0x24 c e f, h = 0x96 a d g,
    i = 0x42 c e h,
    [0x69 c h, 0x69 e h, 0x96 f i, 0x96 c f]
);
ternary!(
    s1 [a b c d]
    e = 0xa6 a b c, f = 0xd4 a b d, g = 0x2c a c d, h = 0x16 b d g,
    i = 0x24 c f h,
    [0x69 e i, 0x69 f h, 0x69 d e, 0x69 c h]
);
ternary!(
    s2 [a b c d]
    e = 0xa6 a c d, f = 0xd6 a b e, g = 0x5c b c e, h = 0x68 a c f,
    i = 0xa6 a d g,
    [0x96 b e, 0x96 b h, 0x96 h i, 0x69 a g]
);
ternary!(
    s3 [a b c d]
    e = 0xd6 a b c, f = 0x6e a b d, g = 0xb6 a b d, h = 0x94 a c d,
    i = 0xd6 b c d, j = 0x14 c d h,
    [0x96 h i, 0x96 g j, 0x96 e f, 0x96 e j]
);
ternary!(
    s4 [a b c d]
    e = 0x8e a b d, f = 0xb6 a b d, g = 0x92 a c d, h = 0x06 b c d,
    i = 0xe0 b c d, j = 0x5c c e g,
    [0x69 c e, 0x96 g i, 0x96 f j, 0x96 f h]
);
ternary!(
    s5 [a b c d]
    e = 0x6c a b d, f = 0x8e a b d, g = 0x68 a c d, h = 0x16 a c e,
    i = 0xe6 b d g, j = 0x64 b f g,
    [0x69 c f, 0x69 h j, 0x69 e i, 0x69 d h]
);
ternary!(
    s6 [a b c d]
    e = 0x96 a b d, f = 0x6c a c d, g = 0x42 a e f, h = 0x7e d e f,
    i = 0x64 e g h,
    [0x69 g i, 0x69 b f, 0x69 h i, 0x96 f i]
);
ternary!(
    s7 [a b c d]
    e = 0x9a b c d, f = 0xa6 b c d, g = 0x36 a e f, h = 0x1c a f g,
    i = 0x9a c f h, j = 0x1e f g i,
    [0x69 g j, 0x96 b h, 0x96 i j, 0x66 f g]
);
ternary!(
    i0 [a b c d]
    e = 0x56 a b c, f = 0x96 a b d, g = 0x4e a b d, h = 0x9c e f g,
    i = 0xd4 e f g,
    [0x69 g h, 0x66 a i, 0x69 d e, 0x69 e h]
);
ternary!(
    i1 [a b c d]
    e = 0xb4 a b d, f = 0x5c a b d, g = 0x96 b c d, h = 0xd2 c f g,
    i = 0x24 e f g,
    [0x69 f i, 0x96 g i, 0x69 e h, 0x96 e g]
);
ternary!(
    i2 [a b c d]
    e = 0x62 b c d, f = 0xb4 a b e, g = 0xd6 b d e, h = 0x72 e f g,
    i = 0xbe c f h, j = 0x86 d f i,
    [0x96 c f, 0x96 b j, 0x69 g i, 0x99 b h]
);
ternary!(
    i3 [a b c d]
    e = 0x18 b c d, f = 0x86 b c d, g = 0x5e a c e, h = 0x6a a d f,
    i = 0xe8 a b h, j = 0xdc c h i, k = 0x76 d f j,
    [0x96 a h, 0x96 e j, 0x96 i k, 0x96 g k]
);
ternary!(
    i4 [a b c d]
    e = 0x78 b c d, f = 0xd6 a d e, g = 0x4a a d e, h = 0x6e b c f,
    i = 0x0a a c h, j = 0x6a f g h,
    [0x69 c f, 0x96 e i, 0x69 e j, 0x96 c g]
);
ternary!(
    i5 [a b c d]
    e = 0x66 a b c, f = 0xac a b c, g = 0xa6 b c d, h = 0x72 a d f,
    i = 0x7a a b g, j = 0x6c a c g,
    [0x96 i j, 0x96 e i, 0x96 e h, 0x69 f j]
);
ternary!(
    i6 [a b c d]
    e = 0x9a a c d, f = 0xa6 a c d, g = 0xd2 a e f, h = 0xc6 b e g,
    i = 0x7e b g h,
    [0x69 g h, 0x69 b f, 0x69 f i, 0x69 b h]
);
ternary!(
    i7 [a b c d]
    e = 0x26 a b c, f = 0x16 a b d, g = 0x94 a c d, h = 0x38 a c d,
    i = 0xc2 b c d, j = 0x9c d e f,
    [0x69 f i, 0x69 g i, 0x96 f h, 0x96 b j]
);

#[cfg(test)]
mod tests {
    use super::super::boxes;
    use super::*;

    impl Ternary for u32 {
        unsafe fn of<const TABLE: i32>(a: Self, b: Self, c: Self) -> Self {
            (0..32).fold(0, |word, bit| {
                let value = ((a >> bit) & 1) << 2 | ((b >> bit) & 1) << 1 | ((c >> bit) & 1);
                word | ((TABLE.cast_unsigned() >> value) & 1) << bit
            })
        }
    }

    /// Every value, twice: bit k of each in word k.
    const EVERY: [u32; 4] = [0xaaaa_aaaa, 0xcccc_cccc, 0xf0f0_f0f0, 0xff00_ff00];
    const KEYS: [[u32; 4]; 3] = [[0xffff; 4], [0xffff, 0, 0xffff_0000, 0x1234_5678], [0; 4]];

    fn check<const N: usize>() {
        for key in KEYS {
            let added = |x: [u32; 4]| -> [u32; 4] { std::array::from_fn(|k| x[k] ^ key[k]) };
            // SAFETY: no feature is needed.
            let (there, back) = unsafe { (substitute::<u32, N>(EVERY, key), restore::<u32, N>(EVERY, key)) };
            assert_eq!(there, added(boxes::substitute::<u32, N>(EVERY)), "S{N}");
            assert_eq!(back, added(boxes::restore::<u32, N>(EVERY)), "the inverse of S{N}");
        }
    }

    #[test]
    fn the_boxes_are_those_of_two_words_a_step() {
        check::<0>();
        check::<1>();
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
        check::<7>();
    }
}
