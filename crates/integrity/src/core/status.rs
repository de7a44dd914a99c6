//! What a running volume tells of itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::lock;

/// So many sectors that fail are remembered.
const FIRST: usize = 16;

/// Counters of a running volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntegrityStatus {
    /// Blocks that were read and whose tags are others.
    pub mismatches: u64,
    /// The first sectors that did, in the order in which they were met.
    pub first_mismatches: Vec<u64>,
    /// Sectors whose tags are made anew, and of how many; nothing when that is done.
    pub recalculated: Option<(u64, u64)>,
    /// Sections of the journal in use, and how many there may be; nothing in other modes.
    pub journal: Option<(usize, usize)>,
    /// Why it takes no more writes.
    pub failed: Option<String>,
}

/// Blocks that failed.
#[derive(Default)]
pub(super) struct MismatchLog {
    count: AtomicU64,
    first: Mutex<Vec<u64>>,
}

impl MismatchLog {
    pub(super) fn add(&self, sector: u64) {
        self.count.fetch_add(1, Relaxed);
        let mut first = lock(&self.first);
        if first.len() < FIRST && !first.contains(&sector) {
            first.push(sector);
            log::warn!("the tag of sector {sector} is wrong");
        }
    }

    pub(super) fn tell(&self) -> (u64, Vec<u64>) {
        let first = lock(&self.first).clone();
        (self.count.load(Relaxed), first)
    }
}
