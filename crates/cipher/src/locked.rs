//! Memory for secrets: its own pages, locked, left out of core dumps, wiped when given back.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use zeroize::Zeroize;

use crate::{Error, ErrorKind, Result};

/// Zeroed pages that never reach swap (where `RLIMIT_MEMLOCK` allows it) or a core dump.
pub(crate) struct Pages {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: `Pages` owns its mapping as `Box<[u8]>` owns its heap memory.
unsafe impl Send for Pages {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps at least `len` bytes.
    ///
    /// Failing to lock them is not an error: the default limit is a few megabytes, and a volume that cannot be
    /// opened protects nobody.
    pub(crate) fn new(len: usize) -> Result<Self> {
        let len = len.max(1).next_multiple_of(rustix::param::page_size());
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe {
            mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .map_err(|e| {
            Error::new(ErrorKind::Memory, format!("no memory for {len} bytes of key material"))
                .with_source(std::io::Error::from(e))
        })?;
        // SAFETY: the range is the mapping just made; locking and advising change no contents.
        unsafe {
            let _ = mlock(at, len);
            let _ = madvise(at, len, Advice::LinuxDontDump);
        }
        let at = NonNull::new(at.cast())
            .ok_or_else(|| Error::new(ErrorKind::Memory, "the kernel mapped key memory at address zero"))?;
        Ok(Self { at, len })
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is readable for `len` bytes, zero-filled by the kernel, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.zeroize();
        // SAFETY: the mapping is ours, whole, and nobody refers to it any longer.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// A value that lives on locked pages of its own and is overwritten with zeros after it is dropped.
pub struct Locked<T> {
    // `pages` holds an initialised `T` at its start.
    pages: Pages,
    owns: std::marker::PhantomData<T>,
}

impl<T> Locked<T> {
    /// Moves `value` onto locked pages. It passes over the stack on its way: wipe large secrets there.
    ///
    /// # Errors
    /// `Memory` when no pages could be mapped.
    pub fn new(value: T) -> Result<Self> {
        const { assert!(align_of::<T>() <= 4096, "pages are aligned enough for any secret") };
        let pages = Pages::new(size_of::<T>())?;
        // SAFETY: the pages are writable, page-aligned and at least `size_of::<T>()` bytes.
        unsafe { pages.at.cast::<T>().write(value) };
        Ok(Self { pages, owns: std::marker::PhantomData })
    }
}

impl<T> Deref for Locked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: initialised in `new`, dropped only in `drop`.
        unsafe { self.pages.at.cast::<T>().as_ref() }
    }
}

impl<T> DerefMut for Locked<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { self.pages.at.cast::<T>().as_mut() }
    }
}

impl<T> Drop for Locked<T> {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, dropped once here; the pages are wiped and unmapped after it.
        unsafe { self.pages.at.cast::<T>().drop_in_place() };
    }
}

impl<T> fmt::Debug for Locked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Keeps the process's memory out of core dumps and away from other processes of the same user.
///
/// Call it first thing in `main`, before any secret is read.
pub fn protect_process() {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
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
