//! Request memory: a mapping for each queue, from which a buddy allocator hands out page-aligned
//! pieces of power-of-two sizes.
//!
//! The lowest free piece is taken first, so a queue that is not deep stays in the processor's
//! cache.

#![expect(unsafe_code, reason = "mapped memory, given out in pieces")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Error, ErrorKind, Result};

/// The smallest piece, in bytes.
const UNIT: usize = 4096;

/// The bytes that an idle arena keeps: enough for a full queue of short requests. Returning smaller
/// pieces is not worth a system call.
const KEPT: usize = 1 << 20;

/// Memory for a queue's requests, reserved when the queue opens.
pub struct Arena {
    mapping: Arc<MappedMemory>,
    /// For each order, a bit for each piece of that size: set when the piece is free as a whole.
    free: Vec<Bits>,
    /// The pages from this one on are absent: never used, or returned to the system.
    used: usize,
}

impl Arena {
    /// Reserves at least `bytes` of address space, rounded up to a power of two; pages appear when
    /// they are touched.
    ///
    /// # Errors
    /// `Memory` when the address space or the limit does not allow it.
    pub fn new(bytes: usize) -> Result<Self> {
        let bytes = bytes.max(UNIT).next_power_of_two();
        let orders = (bytes / UNIT).ilog2() as usize + 1;
        let mut free: Vec<Bits> = (0..orders).map(|order| Bits::new((bytes / UNIT) >> order)).collect();
        free[orders - 1].set(0);
        Ok(Self { mapping: Arc::new(MappedMemory::new(bytes)?), free, used: 0 })
    }

    /// Returns a buffer of `len` bytes whose contents are unspecified (never another queue's), or
    /// `None` when no piece of that size is free now.
    pub fn alloc(&mut self, len: usize) -> Option<Buffer> {
        let order = order_of(len)?;
        let (from, mut index) = (order..self.free.len()).find_map(|o| Some((o, self.free[o].first()?)))?;
        self.free[from].clear(index);
        for split in (order..from).rev() {
            index *= 2;
            self.free[split].set(index + 1);
        }
        Some(Buffer {
            mapping: self.mapping.clone(),
            start: (index * UNIT) << order,
            len,
            whole: Some(ArenaPiece { order, len }),
        })
    }

    /// Takes a buffer back.
    ///
    /// # Panics
    /// When the buffer is another arena's, or some of its parts are not joined again.
    pub fn free(&mut self, buffer: Buffer) {
        let freed = self.take_back(buffer);
        assert!(freed.is_ok(), "a buffer goes back where it came from, and as a whole");
    }

    /// As [`Arena::free`], without panics.
    ///
    /// # Errors
    /// Returns a buffer that `free` would panic for.
    pub fn take_back(&mut self, buffer: Buffer) -> std::result::Result<(), Buffer> {
        let whole = buffer.whole.filter(|whole| whole.len == buffer.len);
        let ours = Arc::ptr_eq(&buffer.mapping, &self.mapping);
        // The other part of a buffer that was split may still be in use.
        let Some(ArenaPiece { mut order, .. }) = whole.filter(|_| ours) else { return Err(buffer) };
        let first = buffer.start / UNIT;
        self.used = self.used.max(first + (1 << order));
        let mut index = first >> order;
        while order + 1 < self.free.len() && self.free[order].get(index ^ 1) {
            self.free[order].clear(index ^ 1);
            index /= 2;
            order += 1;
        }
        self.free[order].set(index);
        Ok(())
    }

    /// True when free pieces hold more memory than a queue of short requests ever needs.
    pub fn is_swollen(&self) -> bool {
        self.used > KEPT / UNIT
    }

    /// Returns the memory of large free pieces to the system. The pieces stay in the arena; their
    /// pages are made anew at the next use, which costs time, so this is for an idle queue. Locked
    /// memory is not returned.
    pub fn shrink(&mut self) {
        let from = order_of(KEPT).unwrap_or(0);
        for (order, free) in self.free.iter().enumerate().skip(from) {
            let pieces = (0..(self.mapping.len / UNIT) >> order).filter(|&index| free.get(index));
            // The first piece is the one that short requests use.
            let ranges = pieces.map(|index| ((index << order).max(KEPT / UNIT), (index + 1) << order));
            for (start, end) in ranges.filter(|(start, end)| start < end && *start < self.used) {
                self.mapping.discard(start * UNIT, (end - start) * UNIT);
            }
        }
        self.used = 0;
    }
}

/// The order of the smallest piece that holds `len` bytes.
fn order_of(len: usize) -> Option<usize> {
    Some(len.max(1).div_ceil(UNIT).checked_next_power_of_two()?.ilog2() as usize)
}

/// Page-aligned memory of one request. A buffer that is dropped instead of freed leaves its piece
/// unused until the arena is dropped.
pub struct Buffer {
    mapping: Arc<MappedMemory>,
    start: usize,
    len: usize,
    /// `None` for a part that was split off.
    whole: Option<ArenaPiece>,
}

/// The arena's piece at the beginning of a buffer.
#[derive(Clone, Copy)]
struct ArenaPiece {
    order: usize,
    /// The buffer's length while no part is split off.
    len: usize,
}

impl Buffer {
    /// Splits the memory in two: `self` keeps the first `at` bytes, the rest is returned.
    ///
    /// # Panics
    /// When `at` is beyond the end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Buffer {
        assert!(at <= self.len, "split at {at} of {} bytes", self.len);
        let rest =
            Self { mapping: self.mapping.clone(), start: self.start + at, len: self.len - at, whole: None };
        self.len = at;
        rest
    }

    /// Joins the following part, which was split off this buffer.
    ///
    /// # Panics
    /// When `next` does not begin where this buffer ends.
    pub fn join(&mut self, next: Buffer) {
        let follows = Arc::ptr_eq(&self.mapping, &next.mapping) && self.start + self.len == next.start;
        assert!(follows && next.whole.is_none(), "only what was split is joined");
        self.len += next.len;
    }

    /// Keeps the first `len` bytes; the memory stays reserved.
    ///
    /// # Panics
    /// When a part of the buffer was split off.
    pub fn truncate(&mut self, len: usize) {
        let whole = self.whole.as_mut().filter(|whole| whole.len == self.len);
        let whole = whole.expect("only a whole buffer is cut short");
        self.len = self.len.min(len);
        whole.len = self.len;
    }

    /// The buffer's address, for the kernel.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `start` lies within the mapping.
        unsafe { self.mapping.at.as_ptr().add(self.start) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the arena gave these bytes to this buffer alone; they are mapped, initialised
        // (the kernel fills new pages with zeros) and stay mapped while `mapping` is held.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    /// Shows the length only: the contents may be plaintext.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

struct MappedMemory {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory; the buffers' ownership decides which code may touch which
// bytes.
unsafe impl Send for MappedMemory {}
// SAFETY: as above.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    fn new(len: usize) -> Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // memory of ours.
        let at = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let no_memory =
            || Error::new(ErrorKind::Memory, format!("no memory for {len} bytes of request buffers"));
        let at = at.map_err(|e| no_memory().with_source(e))?;
        // Plain bytes stay out of core dumps, which are off anyway.
        // SAFETY: the range is the mapping just made; advice changes no contents.
        let _ = unsafe { madvise(at, len, Advice::LinuxDontDump) };
        Ok(Self { at: NonNull::new(at.cast()).ok_or_else(no_memory)?, len })
    }
}

impl MappedMemory {
    /// Returns pages to the system, which must be of free pieces.
    fn discard(&self, start: usize, len: usize) {
        assert!(start + len <= self.len, "pages of the mapping");
        // SAFETY: the pages belong to this mapping, and no reference to memory of free pieces
        // exists; the next buffer finds zeros, as in new memory. The call fails for locked memory,
        // which stays.
        let _ = unsafe { madvise(self.at.as_ptr().add(start).cast(), len, Advice::LinuxDontNeed) };
    }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned and whole; no buffer refers to it any longer.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// A set of small numbers.
struct Bits {
    words: Vec<u64>,
    /// The words before this one have no bit set.
    hint: usize,
}

impl Bits {
    fn new(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(64)], hint: 0 }
    }

    fn first(&mut self) -> Option<usize> {
        let word = (self.hint..self.words.len()).find(|&w| self.words[w] != 0);
        self.hint = word.unwrap_or(self.words.len());
        word.map(|w| w * 64 + self.words[w].trailing_zeros() as usize)
    }

    fn get(&self, i: usize) -> bool {
        self.words[i / 64] >> (i % 64) & 1 == 1
    }

    fn set(&mut self, i: usize) {
        self.words[i / 64] |= 1 << (i % 64);
        self.hint = self.hint.min(i / 64);
    }

    fn clear(&mut self, i: usize) {
        self.words[i / 64] &= !(1 << (i % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_arena_says_so_and_recovers() {
        let mut arena = Arena::new(64 << 10).unwrap();
        let whole = arena.alloc(64 << 10).unwrap();
        assert!(arena.alloc(1).is_none());
        arena.free(whole);
        let pieces: Vec<_> = (0..16).map(|_| arena.alloc(4096).unwrap()).collect();
        assert!(arena.alloc(1).is_none());
        pieces.into_iter().for_each(|p| arena.free(p));
        assert!(arena.alloc(64 << 10).is_some(), "the pieces grew together again");
    }

    /// Bytes of the arena that are in memory.
    fn resident(arena: &Arena) -> usize {
        use std::os::unix::fs::FileExt;
        const PRESENT: u64 = 1 << 63;
        let at = arena.mapping.at.as_ptr() as u64 / UNIT as u64 * 8;
        let mut pages = vec![0; arena.mapping.len / UNIT * 8];
        std::fs::File::open("/proc/self/pagemap").unwrap().read_exact_at(&mut pages, at).unwrap();
        let entries = pages.chunks_exact(8).map(|entry| u64::from_ne_bytes(entry.try_into().unwrap()));
        entries.filter(|entry| entry & PRESENT != 0).count() * UNIT
    }

    #[test]
    fn memory_of_free_pieces_is_given_back_and_that_of_others_stays() {
        let mut arena = Arena::new(64 << 20).unwrap();
        let mut small = arena.alloc(4096).unwrap();
        small.fill(1);
        assert!(!arena.is_swollen(), "what is in use counts when it is free");
        let mut kept = arena.alloc(3 << 20).unwrap();
        kept.fill(2);
        let mut large = arena.alloc(32 << 20).unwrap();
        large.fill(3);
        arena.free(large);
        assert!(arena.is_swollen());
        let before = resident(&arena);
        arena.shrink();
        assert!(!arena.is_swollen());
        // The neighbours may share a huge page with the freed pieces.
        assert!(before >= 35 << 20 && resident(&arena) <= 8 << 20, "{before} {}", resident(&arena));
        assert!(small.iter().all(|b| *b == 1) && kept.iter().all(|b| *b == 2));
        arena.free(kept);
        arena.free(small);
        assert!(arena.is_swollen());
        arena.shrink();
        assert!(resident(&arena) <= KEPT, "{}", resident(&arena));
        assert_eq!(arena.alloc(64 << 20).unwrap().len(), 64 << 20, "all of it can be had again");
    }

    #[test]
    fn plain_bytes_are_left_out_of_core_dumps() {
        let arena = Arena::new(1 << 20).unwrap();
        let start = format!("{:x}-", arena.mapping.at.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = lines.find(|line| line.starts_with("VmFlags")).expect("a mapping of its own");
        assert!(flags.contains(" dd"), "{flags}");
    }

    #[test]
    fn the_piece_just_freed_is_used_again() {
        let mut arena = Arena::new(1 << 20).unwrap();
        let at = |b: &Buffer| b.as_ptr();
        let first = arena.alloc(4096).unwrap();
        let place = at(&first);
        arena.free(first);
        assert_eq!(at(&arena.alloc(4096).unwrap()), place);
    }

    #[test]
    fn parts_are_apart_until_they_are_joined() {
        let mut arena = Arena::new(64 << 10).unwrap();
        let mut first = arena.alloc(10_000).unwrap();
        let mut middle = first.split_off(512);
        let last = middle.split_off(5000);
        let share = |part: &mut Buffer, byte| part.fill(byte);
        std::thread::scope(|scope| {
            scope.spawn(|| share(&mut first, 1));
            scope.spawn(|| share(&mut middle, 2));
        });
        assert_eq!((first.len(), middle.len(), last.len()), (512, 5000, 4488));
        first.join(middle);
        first.join(last);
        assert!(first[..512].iter().all(|b| *b == 1) && first[512..5512].iter().all(|b| *b == 2));
        assert_eq!(first.len(), 10_000);
        first.truncate(1);
        arena.free(first);
        assert!(arena.alloc(64 << 10).is_some(), "all of it came back");
    }

    #[test]
    #[should_panic(expected = "and as a whole")]
    fn what_is_still_in_use_in_part_is_not_freed() {
        let mut arena = Arena::new(64 << 10).unwrap();
        let mut first = arena.alloc(8192).unwrap();
        let _rest = first.split_off(4096);
        arena.free(first);
    }

    #[test]
    #[should_panic(expected = "only what was split is joined")]
    fn strangers_are_not_joined() {
        let mut arena = Arena::new(64 << 10).unwrap();
        let (mut first, second) = (arena.alloc(4096).unwrap(), arena.alloc(4096).unwrap());
        first.join(second);
    }

    proptest! {
        #[test]
        fn buffers_never_overlap_and_are_aligned(steps in prop::collection::vec((0usize..3, 1usize..40_000), 1..200)) {
            let mut arena = Arena::new(256 << 10).unwrap();
            let mut held: Vec<Buffer> = Vec::new();
            for (what, size) in steps {
                if what == 0 && !held.is_empty() {
                    let buffer = held.swap_remove(size % held.len());
                    arena.free(buffer);
                } else if let Some(buffer) = arena.alloc(size) {
                    prop_assert_eq!(buffer.as_ptr() as usize % UNIT, 0);
                    prop_assert_eq!(buffer.len(), size);
                    for other in &held {
                        prop_assert!(buffer.start + size <= other.start || other.start + other.len <= buffer.start);
                    }
                    held.push(buffer);
                }
            }
            held.drain(..).for_each(|b| arena.free(b));
            prop_assert!(arena.alloc(256 << 10).is_some());
        }
    }
}
