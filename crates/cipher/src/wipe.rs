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

/// Bytes below the caller's frame that [`left_on_the_stack`] looks at.
#[cfg(test)]
pub(crate) const DEEP: usize = 128 << 10;

/// What calls have left behind on the stack, without adding to it: the kernel copies it.
#[cfg(test)]
#[inline(never)]
pub(crate) fn left_on_the_stack() -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let here = 0u8;
    let mut below = vec![0; DEEP];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut below, (&raw const here).addr() as u64 - DEEP as u64).unwrap();
    below
}
