//! Memory for secrets: locked, left out of core dumps, wiped when it is released.
//!
//! ```text
//!   Locked<T>, Key
//!        |
//!   LockedMemory   small: a slot of a shared chunk       large: separate pages
//!        |           pool.rs
//!   LockedPages   mapped, locked, kept out of dumps      pages.rs
//! ```

mod pages;
mod pool;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use zeroize::Zeroize;

use crate::Result;
use pages::LockedPages;
use pool::{PoolSlot, SecretPool};

/// Zeroed memory that never reaches swap (where `RLIMIT_MEMLOCK` allows it) or a core dump.
pub(crate) struct LockedMemory {
    at: NonNull<u8>,
    len: usize,
    /// The origin of the memory, which gets it back.
    home: MemoryOrigin,
}

enum MemoryOrigin {
    Pool(&'static SecretPool),
    Own(#[expect(dead_code, reason = "held until it is dropped")] LockedPages),
}

// SAFETY: `LockedMemory` owns its bytes as `Box<[u8]>` owns its heap memory.
unsafe impl Send for LockedMemory {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for LockedMemory {}

impl LockedMemory {
    /// Returns at least `len` bytes, aligned to the power of two that they fill, or to a page.
    /// Returns `Memory` when no pages could be mapped.
    pub(crate) fn new(len: usize) -> Result<Self> {
        if let Some(PoolSlot { at, size, pool }) = pool::take(len)? {
            return Ok(Self { at, len: size, home: MemoryOrigin::Pool(pool) });
        }
        let pages = LockedPages::new(len)?;
        Ok(Self { at: pages.at(), len: pages.len(), home: MemoryOrigin::Own(pages) })
    }
}

impl Deref for LockedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: readable for `len` bytes, initialised to zeros, and not shared for as long as
        // `self` lives.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for LockedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for LockedMemory {
    fn drop(&mut self) {
        self.zeroize();
        if let MemoryOrigin::Pool(pool) = self.home {
            // SAFETY: the slot was taken with this length, is zero again, and has no references any
            // longer.
            unsafe { pool::give_back(PoolSlot { at: self.at, size: self.len, pool }) };
        }
    }
}

/// A value that lives in locked memory and is overwritten with zeros after it is dropped.
pub struct Locked<T> {
    // Invariant: `memory` holds an initialised `T` at its start.
    memory: LockedMemory,
    owns: std::marker::PhantomData<T>,
}

impl<T> Locked<T> {
    /// Moves `value` into locked memory. The move passes through the stack: wipe large secrets
    /// there.
    ///
    /// # Errors
    /// `Memory` when no pages could be mapped.
    pub fn new(value: T) -> Result<Self> {
        // A size is a multiple of its alignment, so the power of two that it fills is one too.
        const { assert!(align_of::<T>() <= 4096, "pages are aligned enough for any secret") };
        let memory = LockedMemory::new(size_of::<T>())?;
        // SAFETY: the memory is writable, aligned for a `T` and at least `size_of::<T>()` bytes.
        unsafe { memory.at.cast::<T>().write(value) };
        Ok(Self { memory, owns: std::marker::PhantomData })
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: initialised in `new`, dropped only in `drop`.
        unsafe { self.memory.at.cast::<T>().as_ref() }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { self.memory.at.cast::<T>().as_mut() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, dropped once here; the memory is wiped and released after
        // it.
        unsafe { self.memory.at.cast::<T>().drop_in_place() };
    }
}

impl<T> fmt::Debug for Locked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Keeps the process's memory out of core dumps and away from other processes of the same user.
///
/// Call this first in `main`, before any secret is read.
///
/// # Errors
/// The system's; the other measures are in force nevertheless.
pub fn protect_process() -> std::io::Result<()> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let no_core = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    Ok(hidden.and(no_core)?)
}

/// Sets the callback for memory that cannot be locked, which is called once in the process's life.
/// Later calls have no effect.
///
/// Secrets then stay in memory that may reach swap: a volume that cannot be opened would protect
/// nothing.
pub fn when_not_locked(tell: fn(&std::io::Error)) {
    pages::when_not_locked(tell);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_dropped_once() {
        use std::sync::Arc;
        let counted = Arc::new(());
        let locked = Locked::new(counted.clone()).unwrap();
        assert_eq!(Arc::strong_count(&locked), 2);
        drop(locked);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn key_pages_are_locked_and_left_out_of_core_dumps() {
        let locked = Locked::new([1u8; 64]).unwrap();
        let at = &raw const *locked as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &&str| {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let parse = |s| usize::from_str_radix(s, 16).ok();
            range.and_then(|(a, b)| Some((parse(a)?..parse(b)?).contains(&at))).unwrap_or(false)
        };
        let mut entry = maps.lines().skip_while(|line| !holds(line));
        let flags = entry.find(|l| l.starts_with("VmFlags")).expect("the mapping is listed");
        assert!(flags.contains(" dd"), "no dump: {flags}");
        assert!(flags.contains(" lo"), "locked: {flags}");
    }
}
