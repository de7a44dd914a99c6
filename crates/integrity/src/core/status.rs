//! The counters and state of a running volume.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::lock;

/// The number of mismatching sectors that are kept.
const FIRST: usize = 16;

/// Counters of a running volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntegrityStatus {
    /// Blocks that were read and do not match their tags.
    pub mismatches: u64,
    /// The first mismatching sectors, in order of detection.
    pub first_mismatches: Vec<u64>,
    /// Recalculated sectors, and their total; `None` without a recalculation.
    pub recalculated: Option<(u64, u64)>,
    /// Sections of the journal in use, and their limit; `None` in other modes.
    pub journal: Option<(usize, usize)>,
    /// The reason why the volume takes no more writes.
    pub failed: Option<String>,
}

/// Blocks with mismatching tags.
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
