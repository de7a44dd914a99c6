//! Words of 32 bits, one of each of several streams in a register: what ChaCha and MD5 are made of.

mod eight;
mod sixteen;

pub(super) use eight::Eight;
pub(super) use sixteen::Sixteen;

/// A vector of [`Words::LANES`] words.
///
/// # Safety
/// Every method may be called only on a processor with the implementing module's features. Pointers are read or written
/// for the whole vector, at any alignment.
pub(super) trait Words: Copy {
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
    /// Bits of `a` where a bit of `self` is set, of `b` elsewhere.
    unsafe fn choose(self, a: Self, b: Self) -> Self;
    /// self + the bits of `a` where a bit of `by` is set, of `b` elsewhere; `a` is waited for last.
    unsafe fn add_chosen(self, by: Self, a: Self, b: Self) -> Self;
    /// self | !other.
    unsafe fn or_not(self, other: Self) -> Self;
    /// `LEFT` and `RIGHT` are 32 together.
    unsafe fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
    /// What [`Words::turn`] by 16 and by 8 wants: one shuffle instead of three instructions, where that is less.
    unsafe fn turns() -> [Self; 2];
    /// [`Words::rotate`] by whole bytes.
    unsafe fn turn<const LEFT: i32, const RIGHT: i32>(self, by: Self) -> Self;
    /// From vectors of the first, second, .. word of 16 to the lanes' 64 bytes, one lane after the other.
    unsafe fn to_lanes(words: [Self; 16]) -> [Self; 16];
    /// The words of 64 bytes that lie so far behind each lane's pointer: the inverse of [`Words::to_lanes`].
    unsafe fn from_lanes(lanes: &[*const u8], at: usize) -> [Self; 16];
}
