//! Small secrets share chunks of locked pages.
//!
//! A page for each would cost four system calls a key, and the default limit of locked memory would
//! hold some two thousand of them: a mounted folder has several keys for every open file.
//!
//! Chunks are cut into slots of one size, a power of two, and stay for the life of the process: as
//! much memory as the largest number of secrets needed.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use super::LockedPages;
use crate::Result;

/// The smallest slot: a cache line.
const SMALLEST: usize = 64;
/// The largest slot: a page. Larger secrets have separate pages.
const LARGEST: usize = 4096;
const SIZES: usize = (LARGEST / SMALLEST).ilog2() as usize + 1;
/// The bytes of slots that one call to the kernel makes.
const CHUNK: usize = 32 << 10;

/// Free slots, by their size.
static FREE: [Mutex<Free>; SIZES] = [const { Mutex::new(Free(Vec::new())) }; SIZES];

struct Free(Vec<NonNull<u8>>);

// SAFETY: these are addresses of memory without references, which no thread owns.
unsafe impl Send for Free {}

/// Takes a zeroed slot for `len` bytes; returns it with its size, which is also its alignment;
/// `None` for a length that is too large to share.
pub(super) fn take(len: usize) -> Result<Option<(NonNull<u8>, usize)>> {
    if len > LARGEST {
        return Ok(None);
    }
    let size = len.next_power_of_two().max(SMALLEST);
    let mut free = of(size).lock().unwrap_or_else(PoisonError::into_inner);
    if free.0.is_empty() {
        // The chunk is never unmapped.
        let chunk = ManuallyDrop::new(LockedPages::new(CHUNK)?);
        // SAFETY: every offset lies in the chunk.
        free.0.extend((0..chunk.len()).step_by(size).map(|offset| unsafe { chunk.at().add(offset) }));
    }
    Ok(free.0.pop().map(|at| (at, size)))
}

/// Takes a slot back.
///
/// # Safety
/// The slot comes from [`take`], has this size, is all zeros, and is not used any more.
pub(super) unsafe fn give_back(at: NonNull<u8>, size: usize) {
    of(size).lock().unwrap_or_else(PoisonError::into_inner).0.push(at);
}

fn of(size: usize) -> &'static Mutex<Free> {
    &FREE[(size / SMALLEST).ilog2() as usize]
}

#[cfg(test)]
mod tests {
    use super::super::LockedMemory;
    use super::*;

    #[test]
    fn slots_are_aligned_apart_and_zeroed_again() {
        let sizes = [0, 1, 63, 64, 65, 176, 512, 2049, 4096, 4097, 70_000];
        for round in 0..3 {
            let mut all: Vec<LockedMemory> =
                (0..40).flat_map(|_| sizes).map(|len| LockedMemory::new(len).unwrap()).collect();
            for (memory, len) in all.iter_mut().zip(sizes.iter().cycle()) {
                assert!(memory.len() >= *len);
                assert!(memory.as_ptr().addr().is_multiple_of(memory.len().next_power_of_two().min(LARGEST)));
                assert!(memory.iter().all(|byte| *byte == 0), "round {round}");
                memory.fill(0xa5);
            }
            let mut places: Vec<_> = all.iter().map(|memory| memory.as_ptr_range()).collect();
            places.sort_by_key(|place| place.start);
            assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }

    #[test]
    fn threads_take_and_give_back_at_once() {
        std::thread::scope(|scope| {
            for byte in 1..=4 {
                scope.spawn(move || {
                    for len in (0..3000).map(|n| n % 300) {
                        let mut memory = LockedMemory::new(len).unwrap();
                        assert!(memory.iter().all(|byte| *byte == 0));
                        memory.fill(byte);
                        std::thread::yield_now();
                        assert!(memory.iter().all(|found| *found == byte));
                    }
                });
            }
        });
    }
}
