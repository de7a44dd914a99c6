//! Small secrets share chunks of locked pages.
//!
//! A page for each would cost four system calls a key, and the default limit of locked memory would
//! hold some two thousand of them: a mounted folder has several keys for every open file.
//!
//! Chunks are cut into slots of one size, a power of two, and stay for the life of the process: as
//! much memory as the largest number of secrets needed.
//!
//! A child of a fork has a pool of its own. A thread of the parent may have held a lock of the
//! parent's pool at the fork, for ever; and chunks are locked in memory for the parent only.

use std::mem::ManuallyDrop;
use std::process;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};
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

/// The pool of this process, or of the parent before the child's first use.
static POOL: AtomicPtr<SecretPool> = AtomicPtr::new(ptr::null_mut());

/// Free slots, by their size, of one process.
pub(super) struct SecretPool {
    process: u32,
    free: [Mutex<Free>; SIZES],
}

struct Free(Vec<NonNull<u8>>);

// SAFETY: these are addresses of memory without references, which no thread owns.
unsafe impl Send for Free {}

/// A zeroed slot.
pub(super) struct PoolSlot {
    pub(super) at: NonNull<u8>,
    /// The size, which is also its alignment.
    pub(super) size: usize,
    pub(super) pool: &'static SecretPool,
}

/// Takes a slot for `len` bytes; `None` for a length that is too large to share.
pub(super) fn take(len: usize) -> Result<Option<PoolSlot>> {
    if len > LARGEST {
        return Ok(None);
    }
    let size = len.next_power_of_two().max(SMALLEST);
    let pool = SecretPool::of_process();
    let mut free = pool.of(size).lock().unwrap_or_else(PoisonError::into_inner);
    if free.0.is_empty() {
        // The chunk is never unmapped.
        let chunk = ManuallyDrop::new(LockedPages::new(CHUNK)?);
        // SAFETY: every offset lies in the chunk.
        free.0.extend((0..chunk.len()).step_by(size).map(|offset| unsafe { chunk.at().add(offset) }));
    }
    Ok(free.0.pop().map(|at| PoolSlot { at, size, pool }))
}

/// Takes a slot back, except one of the parent's.
///
/// # Safety
/// The slot comes from [`take`], is all zeros, and is not used any more.
pub(super) unsafe fn give_back(PoolSlot { at, size, pool }: PoolSlot) {
    if pool.process == process::id() {
        pool.of(size).lock().unwrap_or_else(PoisonError::into_inner).0.push(at);
    }
}

impl SecretPool {
    fn of_process() -> &'static Self {
        let process = process::id();
        let mut found = POOL.load(Ordering::Acquire);
        loop {
            // SAFETY: a pool is never freed, and not changed but for what its locks protect.
            if let Some(pool) = unsafe { found.as_ref() }
                && pool.process == process
            {
                return pool;
            }
            let free = [const { Mutex::new(Free(Vec::new())) }; SIZES];
            let new = Box::into_raw(Box::new(Self { process, free }));
            match POOL.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as above.
                Ok(_) => return unsafe { &*new },
                Err(other) => {
                    // SAFETY: the pool was just made by `Box`, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(new) });
                    found = other;
                }
            }
        }
    }

    fn of(&self, size: usize) -> &Mutex<Free> {
        &self.free[(size / SMALLEST).ilog2() as usize]
    }
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
