//! The operations of the algorithms on a vector register of AES blocks.

use super::schedule::RoundKey;
use super::{Blocks1, IN_FLIGHT};

/// A register's bytes at any alignment.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// Reads a register, with a volatile load: the compiler does not read the bytes again instead of
/// keeping them. Stores need no volatility: stored bytes are never read back.
///
/// # Safety
/// The register's bytes at `at` are readable.
#[inline(always)]
pub(super) unsafe fn read_once<T: Copy>(at: *const u8) -> T {
    // SAFETY: the caller's promise; the type needs no alignment.
    unsafe { at.cast::<Unaligned<T>>().read_volatile().0 }
}

/// A vector of [`Vector::BLOCKS`] AES blocks in one register.
///
/// Methods are `#[inline(always)]`, so that they are compiled with the features of the entry point
/// that they end up in.
///
/// # Safety
/// Every method may be called only on a processor with the implementing module's features. Pointers
/// are read or written for the whole vector (`repeat`: for one block), at any alignment.
pub(super) trait Vector: Copy {
    /// True where eight blocks, their tweaks and a round key are more than the registers hold, so
    /// that the compiler spills to the stack.
    const SPILLS: bool;
    /// True where a shuffle and a sum cost less than a carry-less multiplication: products of sums
    /// of halves then stand for the mixed ones.
    const FOLDS: bool;
    /// Blocks in one vector.
    const BLOCKS: usize;
    /// Bytes in one vector.
    const BYTES: usize = Self::BLOCKS * 16;

    unsafe fn load(at: *const u8) -> Self;
    /// As `load`, of memory that another process may change meanwhile: read once, and nothing is
    /// taken for granted of it. As fast.
    unsafe fn load_shared(at: *const u8) -> Self;
    /// Loads a round key.
    unsafe fn key(at: *const RoundKey) -> Self;
    unsafe fn store(self, at: *mut u8);
    /// A block, repeated in every place.
    unsafe fn repeat(block: *const u8) -> Self;
    /// le64(first + (i << shift)), zero-padded, in block i. The sum wraps.
    unsafe fn numbers(first: u64, shift: u32) -> Self;
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn and(self, other: Self) -> Self;
    unsafe fn xor3(self, b: Self, c: Self) -> Self;

    unsafe fn encrypt_round(self, key: Self) -> Self;
    unsafe fn encrypt_last(self, key: Self) -> Self;
    unsafe fn decrypt_round(self, key: Self) -> Self;
    unsafe fn decrypt_last(self, key: Self) -> Self;

    /// Of a tweak repeated in every block: block i of vector k becomes tweak * x^(k * BLOCKS + i).
    unsafe fn powers(self) -> [Self; IN_FLIGHT];
    /// Each block times x^(8 * BLOCKS): the tweaks of the blocks `IN_FLIGHT` vectors further on.
    unsafe fn advance(self) -> Self;

    /// The blocks one place later, the last block of `before` in front.
    unsafe fn preceded_by(self, before: Self) -> Self;
    /// Blocks from `BLOCKS` places, at offsets from `at`.
    unsafe fn gather(at: *const u8, offsets: *const usize) -> Self;
    /// The reverse of `gather`.
    unsafe fn scatter(self, at: *mut u8, offsets: *const usize);

    /// The words of 32 bits, added.
    unsafe fn add_words(self, other: Self) -> Self;
    /// Each block with its bytes reversed.
    unsafe fn swap_bytes(self) -> Self;
    /// Each block with its halves exchanged.
    unsafe fn swap_halves(self) -> Self;
    /// Carry-less products of the blocks' low halves; of their high ones; the sum of the products
    /// of low by high and high by low.
    unsafe fn product_low(self, other: Self) -> Self;
    unsafe fn product_high(self, other: Self) -> Self;
    unsafe fn product_mixed(self, other: Self) -> Self;
    /// The xor of all blocks.
    unsafe fn sum(self) -> Blocks1;
    /// A block in the first place, zeros in the others.
    unsafe fn in_front(block: Blocks1) -> Self;
}
