//! Words of 32 bits, one of each of several streams in a register: for ChaCha, MD5, SHA-256 and
//! Elephant's diffusers.

#[cfg(target_arch = "x86_64")]
mod eight;
#[cfg(target_arch = "aarch64")]
pub(super) mod four;
#[cfg(target_arch = "x86_64")]
mod sixteen;

#[cfg(target_arch = "x86_64")]
pub(super) use eight::Eight;
#[cfg(target_arch = "aarch64")]
pub(super) use four::Four;
#[cfg(target_arch = "x86_64")]
pub(super) use sixteen::Sixteen;

/// A vector of [`WordVector::LANES`] words.
///
/// # Safety
/// Every method may be called only on a processor with the implementing module's features. Pointers
/// are read or written for the whole vector, at any alignment.
pub(super) trait WordVector: Copy {
    const LANES: usize;
    const BYTES: usize = Self::LANES * 4;

    unsafe fn every(word: u32) -> Self;
    /// Each lane's own number, from 0.
    unsafe fn lanes() -> Self;
    unsafe fn load(at: *const u8) -> Self;
    unsafe fn store(self, at: *mut u8);
    unsafe fn add(self, other: Self) -> Self;
    unsafe fn sub(self, other: Self) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn xor3(self, b: Self, c: Self) -> Self;
    /// Bits of `a` where a bit of `self` is set, of `b` elsewhere.
    unsafe fn choose(self, a: Self, b: Self) -> Self;
    /// self + the bits of `a` where a bit of `by` is set, of `b` elsewhere; `a` is waited for last.
    unsafe fn add_chosen(self, by: Self, a: Self, b: Self) -> Self;
    /// self ^ (a | !b).
    unsafe fn xor_or_not(self, a: Self, b: Self) -> Self;
    /// Bits that two of the three have.
    unsafe fn majority(self, b: Self, c: Self) -> Self;
    unsafe fn shift_right<const BY: i32>(self) -> Self;
    /// Little-endian words to big-endian ones.
    unsafe fn swap_bytes(self) -> Self;
    /// `LEFT` and `RIGHT` are 32 together.
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
    /// The shuffles for [`WordVector::turn`] by 16 and by 8: one instruction instead of three,
    /// where that is faster.
    unsafe fn turns() -> [Self; 2];
    /// [`WordVector::rotate`] by whole bytes.
    unsafe fn turn<const LEFT: i32, const RIGHT: i32>(self, by: Self) -> Self;
    /// From vectors of the first, second, .. word of 16 to the lanes' 64 bytes, one lane after the
    /// other.
    unsafe fn to_lanes(words: [Self; 16]) -> [Self; 16];
    /// The words of 64 bytes that lie so far behind each lane's pointer: the inverse of
    /// [`WordVector::to_lanes`].
    unsafe fn from_lanes(lanes: &[*const u8], at: usize) -> [Self; 16];

    /// Pieces of [`WordVector::fetch`]: a power of two of them.
    const PIECES: usize = 1;
    /// [`WordVector::from_lanes`] to 16 aligned places, in pieces that are called in their order,
    /// so that something else can be done between them.
    #[inline(always)]
    unsafe fn fetch(_piece: usize, lanes: &[*const u8], at: usize, to: *mut Self) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[Self; 16]>().write(Self::from_lanes(lanes, at)) }
    }
    /// The same value, opaque to the compiler, which would otherwise reassociate sums: an early
    /// summand added to the last one would make the sum wait twice.
    #[inline(always)]
    unsafe fn apart(self) -> Self {
        self
    }
}

/// Rows of words become columns, as far as that goes within lanes of four words: pairs of words are
/// put together, then pairs of these. Vector `4k + i` holds in each lane word `i` of rows `4k` to
/// `4k + 3`.
macro_rules! columns_of_four {
    ($rows:expr, $low_words:ident, $high_words:ident, $low_pairs:ident, $high_pairs:ident) => {{
        let rows = $rows;
        let (mut pairs, mut i) = (rows, 0);
        while i < rows.len() {
            pairs[i] = $low_words(rows[i], rows[i + 1]);
            pairs[i + 1] = $high_words(rows[i], rows[i + 1]);
            i += 2;
        }
        let mut fours = pairs;
        i = 0;
        while i < rows.len() {
            fours[i] = $low_pairs(pairs[i], pairs[i + 2]);
            fours[i + 1] = $high_pairs(pairs[i], pairs[i + 2]);
            fours[i + 2] = $low_pairs(pairs[i + 1], pairs[i + 3]);
            fours[i + 3] = $high_pairs(pairs[i + 1], pairs[i + 3]);
            i += 4;
        }
        fours
    }};
}
use columns_of_four;
