//! Registers of 16, 32 and 64 bytes, and the functions that are compiled for each.
//!
//! # Safety argument
//! The intrinsics touch no memory except through the pointers they are given, and are sound
//! wherever their instructions exist. Methods are called from the entry points only, which
//! [`SlicedWidth::of`] hands out only for a processor with their features.

use super::SlicedCipher;
use super::affine::Map;
use crate::CpuPath;

/// A register of bytes; permutes and interleaves work in each 128 bits.
///
/// Methods are `#[inline(always)]`, so that they are compiled with the features of the entry point
/// that they end up in.
///
/// # Safety
/// Every method may be called only on a processor with the implementing type's features. Pointers
/// are read or written for the whole register, at any alignment.
pub(crate) trait ByteVector: Copy {
    const BYTES: usize;

    unsafe fn load(at: *const u8) -> Self;
    unsafe fn store(self, at: *mut u8);
    /// A word in every place.
    unsafe fn every(word: u32) -> Self;
    /// 16 bytes in each 128 bits.
    unsafe fn repeat(bytes: &[u8; 16]) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn or(self, other: Self) -> Self;
    /// The bytes of `self` that `order` has the numbers of, 0 to 15.
    unsafe fn permute(self, order: Self) -> Self;
    unsafe fn low_bytes(self, other: Self) -> Self;
    unsafe fn high_bytes(self, other: Self) -> Self;
    unsafe fn low_words(self, other: Self) -> Self;
    unsafe fn high_words(self, other: Self) -> Self;
    /// Bytes, each added to itself.
    unsafe fn double(self) -> Self;
    /// Words of 32 bits.
    unsafe fn left<const BITS: i32>(self) -> Self;
    unsafe fn right<const BITS: i32>(self) -> Self;
    /// The AES's S-box, rows shifted.
    unsafe fn substitute(self) -> Self;
    /// The inverse of the AES's S-box, rows shifted back.
    unsafe fn restore(self) -> Self;

    /// An affine map of each byte.
    unsafe fn map(self, map: &Map) -> Self;

    /// The entry of each byte.
    unsafe fn look_up(self, table: &[u8; 256]) -> Self;

    /// The top bit of each byte, as the lowest.
    #[inline(always)]
    unsafe fn tops(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.right::<7>().and(Self::every(0x0101_0101)) }
    }
}

/// Whole groups of blocks, in place.
pub(super) type GroupsFn<C> = unsafe fn(&C, &mut [[u8; 16]]);

/// The functions for one width of register.
pub(super) struct SlicedWidth<C: 'static> {
    pub(super) encrypt: GroupsFn<C>,
    pub(super) decrypt: GroupsFn<C>,
    /// Blocks in a group: 16 registers.
    pub(super) blocks: usize,
}

impl<C: SlicedCipher> SlicedWidth<C> {
    /// The widths of a path, the widest first; none where the processor has none.
    pub(super) fn of(path: CpuPath) -> &'static [Self] {
        match path {
            _ if !path.is_available() => &[],
            CpuPath::Portable => &[],
            #[cfg(target_arch = "x86_64")]
            CpuPath::AesNi if is_x86_feature_detected!("avx2") => Self::AVX2,
            #[cfg(target_arch = "x86_64")]
            CpuPath::AesNi => Self::AVX,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Vaes256 if is_x86_feature_detected!("gfni") => Self::GFNI_AVX2,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Vaes256 => Self::VAES_AVX2,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 if has_widest() => Self::GFNI_AVX512,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Avx512 => Self::AVX512,
            #[cfg(target_arch = "aarch64")]
            _ => Self::NEON,
            #[cfg(target_arch = "x86_64")]
            CpuPath::Neon => &[],
        }
    }
}

/// Whether the processor has GFNI, and looks tables up in the widest registers, as every one does
/// that has both AVX-512 and GFNI.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_widest() -> bool {
    is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx512vbmi")
}

macro_rules! vector {
    (
        $name:ident($vector:ty), $entry:ident, $features:literal,
        $load:ident $store:ident $every:ident $repeat:ident $xor:ident $and:ident $or:ident $permute:ident
        $low_bytes:ident $high_bytes:ident $low_words:ident $high_words:ident $add:ident,
        $left:ident $right:ident $substitute:ident $restore:ident $map:ident $look_up:ident
    ) => {
        #[derive(Clone, Copy)]
        struct $name($vector);

        impl ByteVector for $name {
            const BYTES: usize = size_of::<$vector>();

            #[inline(always)]
            unsafe fn load(at: *const u8) -> Self {
                // SAFETY: the caller's promise of memory; see above.
                unsafe { Self($load(at.cast())) }
            }

            #[inline(always)]
            unsafe fn store(self, at: *mut u8) {
                // SAFETY: the caller's promise of memory; see above.
                unsafe { $store(at.cast(), self.0) }
            }

            #[inline(always)]
            unsafe fn every(word: u32) -> Self {
                // SAFETY: see above.
                unsafe { Self($every(word.cast_signed())) }
            }

            #[inline(always)]
            unsafe fn repeat(bytes: &[u8; 16]) -> Self {
                // SAFETY: 16 bytes are read; see above.
                unsafe { Self($repeat(bytes)) }
            }

            #[inline(always)]
            unsafe fn map(self, map: &Map) -> Self {
                // SAFETY: see above.
                unsafe { $map(self, map) }
            }

            #[inline(always)]
            unsafe fn look_up(self, table: &[u8; 256]) -> Self {
                // SAFETY: see above.
                unsafe { $look_up(self, table) }
            }

            #[inline(always)]
            unsafe fn left<const BITS: i32>(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($left::<BITS>(self.0)) }
            }

            #[inline(always)]
            unsafe fn right<const BITS: i32>(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($right::<BITS>(self.0)) }
            }

            #[inline(always)]
            unsafe fn double(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($add(self.0, self.0)) }
            }

            #[inline(always)]
            unsafe fn substitute(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($substitute(self.0)) }
            }

            #[inline(always)]
            unsafe fn restore(self) -> Self {
                // SAFETY: see above.
                unsafe { Self($restore(self.0)) }
            }

            vector!(
                two xor $xor, and $and, or $or, permute $permute, low_bytes $low_bytes, high_bytes $high_bytes,
                low_words $low_words, high_words $high_words
            );
        }

        #[target_feature(enable = $features)]
        pub(super) unsafe fn $entry<C: SlicedCipher, const ENCRYPT: bool>(cipher: &C, blocks: &mut [[u8; 16]]) {
            crate::kernel::frame::on_whole_lines();
            for group in blocks.chunks_exact_mut($name::BYTES) {
                // SAFETY: the features are these; a group is 16 registers.
                unsafe { cipher.blocks::<$name, ENCRYPT>(group.as_mut_ptr().cast()) }
            }
        }
    };
    (two $($method:ident $intrinsic:ident),*) => {
        $(
            #[inline(always)]
            unsafe fn $method(self, other: Self) -> Self {
                // SAFETY: see above.
                unsafe { Self($intrinsic(self.0, other.0)) }
            }
        )*
    };
}

/// By permutes of tables of half bytes.
#[inline(always)]
unsafe fn by_halves<V: ByteVector>(x: V, map: &Map) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let nibble = V::every(0x0f0f_0f0f);
        let (low, high) = (x.and(nibble), x.right::<4>().and(nibble));
        V::repeat(&map.low).permute(low).xor(V::repeat(&map.high).permute(high))
    }
}

/// Looks up by permutes of sixteen tables: an index with its top bit set gives zero on every
/// processor.
#[inline(always)]
unsafe fn by_tables<V: ByteVector>(x: V, table: &[u8; 256]) -> V {
    const OTHERS: [u8; 16] =
        [0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80];
    // SAFETY: the caller's promise.
    unsafe {
        let nibble = V::every(0x0f0f_0f0f);
        let (low, high) = (x.and(nibble), x.right::<4>().and(nibble));
        let (others, mut found) = (V::repeat(&OTHERS), V::every(0));
        for (part, nth) in table.as_chunks::<16>().0.iter().zip(0u8..) {
            let other = others.permute(high.xor(V::every(u32::from_ne_bytes([nth; 4]))));
            found = found.or(V::repeat(part).permute(low.or(other)));
        }
        found
    }
}

// After the macro, which they use.
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// The order of the rows of a block after AES instructions; a row has bytes of 16 blocks here.
pub(super) static SHIFTED: [u8; 16] = steps(5);
/// The same twice, or twice back.
pub(super) static SHIFTED_TWICE: [u8; 16] = steps(9);
/// The same back.
pub(super) static SHIFTED_BACK: [u8; 16] = steps(13);

const fn steps(by: u8) -> [u8; 16] {
    let mut order = [0; 16];
    let mut place = 0u8;
    while place < 16 {
        order[place as usize] = place.wrapping_mul(by) & 15;
        place += 1;
    }
    order
}

/// An array by its numbers, written out: no loop is left, and no index.
macro_rules! eight {
    ($nth:ident => $of:expr) => {
        eight!($nth => $of; 0 1 2 3 4 5 6 7)
    };
    ($nth:ident => $of:expr; $($number:literal)*) => {
        [$({
            const $nth: usize = $number;
            $of
        }),*]
    };
}

/// As `eight`.
macro_rules! sixteen {
    ($nth:ident => $of:expr) => {
        crate::kernel::sliced::vectors::eight!($nth => $of; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
}

pub(super) use {eight, sixteen};

/// # Safety
/// As the methods of [`ByteVector`]; 16 registers can be read.
#[inline(always)]
pub(super) unsafe fn load<V: ByteVector>(at: *const u8) -> [V; 16] {
    // SAFETY: the caller's promise.
    unsafe { sixteen!(N => V::load(at.add(N * V::BYTES))) }
}

/// # Safety
/// As the methods of [`ByteVector`]; 16 registers can be written.
#[inline(always)]
pub(super) unsafe fn store<V: ByteVector>(x: [V; 16], at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        sixteen!(N => x[N].store(at.add(N * V::BYTES)));
    }
}

/// Blocks become the bytes at each place of all blocks, and these become blocks again.
///
/// # Safety
/// As the methods of [`ByteVector`].
#[inline(always)]
pub(super) unsafe fn turn<V: ByteVector>(x: [V; 16]) -> [V; 16] {
    // SAFETY: the caller's promise.
    unsafe { weave(weave(weave(weave(x)))) }
}

/// Each bit of a byte's number, of register and place in it, moves up by one.
#[inline(always)]
unsafe fn weave<V: ByteVector>(x: [V; 16]) -> [V; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        sixteen!(N => {
            let (a, b) = (x[N / 2], x[N / 2 + 8]);
            if N.is_multiple_of(2) { a.low_bytes(b) } else { a.high_bytes(b) }
        })
    }
}
