//! What calls leave behind on the stack, wiped.

use std::hint::black_box;

/// Overwrites the `N` bytes of stack below the caller's frame, where the functions that it has just called kept their
/// registers and temporaries.
#[inline(never)]
pub(crate) fn wipe_stack<const N: usize>() {
    // Seen by `black_box`, the zeros can neither be left out nor lie elsewhere.
    let mut zeros = [0u8; N];
    black_box(&mut zeros);
}
