//! Locks on blocks: reads share a range, writes have it exclusively.
//!
//! Locks stand in one list, in order of arrival; one is granted when no earlier lock excludes it.
//! So no request is overtaken for ever, and since a request has one lock and waits only for earlier
//! ones, there is no deadlock. The list is as long as there are requests in flight: it is searched
//! from the front.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::lock;

/// The block locks of a volume.
#[derive(Default)]
pub(crate) struct BlockLocks {
    list: Mutex<List>,
    freed: Condvar,
}

#[derive(Default)]
struct List {
    claims: Vec<Entry>,
    next: u64,
    waiting: usize,
}

struct Entry {
    number: u64,
    blocks: Range<u64>,
    alone: bool,
}

/// Blocks that are locked until this is dropped.
pub(crate) struct BlockGuard {
    of: Arc<BlockLocks>,
    number: u64,
}

impl BlockLocks {
    /// Waits for a lock on blocks, shared for reading, or `alone` for changes.
    pub(crate) fn take(self: &Arc<Self>, blocks: Range<u64>, alone: bool) -> BlockGuard {
        let mut list = self.list();
        let number = list.add(blocks.clone(), alone);
        while list.meets(number, &blocks, alone) {
            list.waiting += 1;
            list = self.freed.wait(list).unwrap_or_else(PoisonError::into_inner);
            list.waiting -= 1;
        }
        drop(list);
        BlockGuard { of: self.clone(), number }
    }

    /// As [`take`](Self::take), without waiting.
    pub(crate) fn try_take(self: &Arc<Self>, blocks: Range<u64>, alone: bool) -> Option<BlockGuard> {
        let mut list = self.list();
        if list.meets(u64::MAX, &blocks, alone) {
            return None;
        }
        let number = list.add(blocks, alone);
        drop(list);
        Some(BlockGuard { of: self.clone(), number })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        lock(&self.list)
    }
}

impl List {
    fn add(&mut self, blocks: Range<u64>, alone: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        self.claims.push(Entry { number, blocks, alone });
        number
    }

    /// True when an earlier lock than `number` excludes one on these blocks.
    fn meets(&self, number: u64, blocks: &Range<u64>, alone: bool) -> bool {
        self.claims
            .iter()
            .take_while(|c| c.number < number)
            .any(|c| (c.alone || alone) && c.blocks.start < blocks.end && blocks.start < c.blocks.end)
    }
}

impl Drop for BlockGuard {
    fn drop(&mut self) {
        let mut list = self.of.list();
        list.claims.retain(|c| c.number != self.number);
        if list.waiting > 0 {
            self.of.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[test]
    fn reads_share_and_writes_do_not() {
        let claims = Arc::new(BlockLocks::default());
        let first = claims.take(0..4, false);
        let second = claims.try_take(3..5, false).expect("reads share");
        assert!(claims.try_take(3..4, true).is_none());
        let third = claims.try_take(5..6, true).expect("nobody is there");
        assert!(claims.try_take(5..6, false).is_none());
        drop((first, second, third));
        assert!(claims.try_take(0..6, true).is_some());
    }

    #[test]
    fn a_write_that_waits_is_not_overtaken_by_reads() {
        let claims = Arc::new(BlockLocks::default());
        let read = claims.take(0..1, false);
        std::thread::scope(|scope| {
            let write = scope.spawn(|| drop(claims.take(0..1, true)));
            while claims.list().claims.len() < 2 {
                std::thread::yield_now();
            }
            assert!(claims.try_take(0..1, false).is_none(), "the write is before it");
            drop(read);
            write.join().unwrap();
        });
        assert!(claims.list().claims.is_empty());
    }

    #[test]
    fn many_threads_change_what_they_claim_alone() {
        let claims = Arc::new(BlockLocks::default());
        // Two counters that are equal whenever their block is not locked.
        let cells: Vec<[AtomicU64; 2]> = (0..4).map(|_| Default::default()).collect();
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let (claims, cells) = (&claims, &cells);
                scope.spawn(move || {
                    for i in 0..2000 {
                        let (block, alone) = ((i * 7 + thread) % 4, i % 3 == thread % 3);
                        let _claim = claims.take(block as u64..block as u64 + 1, alone);
                        let [a, b] = &cells[block];
                        if alone {
                            a.fetch_add(1, SeqCst);
                            std::hint::spin_loop();
                            b.fetch_add(1, SeqCst);
                        } else {
                            assert_eq!(a.load(SeqCst), b.load(SeqCst));
                        }
                    }
                });
            }
        });
    }
}
