//! Verified hash blocks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of bytes of kept blocks.
const ROOM: usize = 8 << 20;

/// Verified hash blocks by their numbers. A new block replaces the oldest.
#[derive(Default)]
pub(crate) struct VerifiedBlocks(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    blocks: HashMap<u64, Arc<[u8]>>,
    order: VecDeque<u64>,
}

impl VerifiedBlocks {
    /// Returns the block of this number, if it is kept.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<[u8]>> {
        self.kept().blocks.get(&number).cloned()
    }

    /// Keeps a block.
    pub(crate) fn put(&self, number: u64, block: &Arc<[u8]>) {
        let mut kept = self.kept();
        if kept.blocks.insert(number, block.clone()).is_some() {
            return;
        }
        kept.order.push_back(number);
        while kept.order.len() > (ROOM / block.len().max(1)).max(1) {
            let Some(oldest) = kept.order.pop_front() else { break };
            kept.blocks.remove(&oldest);
        }
    }

    /// Drops all blocks.
    pub(crate) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_block_goes_for_a_new_one() {
        let cache = VerifiedBlocks::default();
        let block: Arc<[u8]> = vec![7; ROOM / 4].into();
        for number in 0..5 {
            cache.put(number, &block);
        }
        cache.put(4, &block);
        assert!(cache.get(0).is_none());
        assert!((1..5).all(|number| cache.get(number).is_some()));
        cache.clear();
        assert!(cache.get(4).is_none());
    }
}
