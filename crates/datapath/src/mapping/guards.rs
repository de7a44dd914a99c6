//! Ranges of a volume that no request may change: a hidden volume inside of an outer one, places
//! that a format keeps as zeros.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Error, ErrorKind, Mapping, Result};

/// The ranges of a volume that no request may change.
#[derive(Debug, Default)]
pub(super) struct Guards {
    /// Each with whether a refused request ends all writing.
    ranges: Vec<(Range<u64>, bool)>,
    /// A request was refused that ended all writing.
    ended: AtomicBool,
}

impl Guards {
    pub(super) fn add(&mut self, range: Range<u64>, ends_writing: bool) {
        self.ranges.push((range, ends_writing));
    }

    pub(super) fn are_none(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Refuses a request that writes to whole sectors `touched`.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub(super) fn check(&self, touched: &Range<u64>) -> Result<()> {
        let refused = |what: &str| {
            let context = format!("bytes {} to {}: {what}", touched.start, touched.end);
            Err(Error::new(ErrorKind::ReadOnly, context))
        };
        if self.ended.load(Ordering::SeqCst) {
            return refused("a write to a protected range was refused before: nothing is written any more");
        }
        let hit =
            self.ranges.iter().filter(|(range, _)| touched.start < range.end && range.start < touched.end);
        // All of them: one that ends writing must not be missed behind one that does not.
        match hit.map(|(_, ends_writing)| *ends_writing).reduce(|a, b| a || b) {
            None => Ok(()),
            Some(false) => refused("the range is kept as it is by the volume's format"),
            Some(true) => {
                if !self.ended.swap(true, Ordering::SeqCst) {
                    log::error!(
                        "bytes {} to {}: a write would damage the protected hidden volume and was refused; so is every \
                         later write, until the volume is opened again",
                        touched.start,
                        touched.end
                    );
                }
                refused("the write would damage the protected hidden volume")
            }
        }
    }
}

impl Mapping {
    /// Refuses every request that would change a byte of `range` (bytes of the volume), in whole
    /// sectors, before anything of it is written. With `ends_writing` such a request ends all
    /// writing: later requests that change anything are refused too, whichever queue they come to.
    /// The volume keeps its size.
    #[must_use]
    pub fn with_guard(mut self, range: Range<u64>, ends_writing: bool) -> Self {
        self.guards.add(range, ends_writing);
        self.fixed_size = true;
        self
    }

    /// Refuses another size: the volume's format fixes it.
    #[must_use]
    pub fn with_fixed_size(mut self) -> Self {
        self.fixed_size = true;
        self
    }

    /// Refuses every request that would change anything, though the devices could.
    #[must_use]
    pub fn without_writes(mut self) -> Self {
        self.shape.read_only = true;
        self.shape.discards = false;
        self.control.set_modifies(false);
        self
    }

    /// Refuses a request that would change `touched`, in bytes of the volume.
    ///
    /// # Errors
    /// `ReadOnly`.
    #[inline]
    pub(crate) fn check_guards(&self, touched: Range<u64>) -> Result<()> {
        if self.guards.are_none() {
            return Ok(());
        }
        let sector = u64::from(self.shape.sector);
        let end = touched.end.checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        self.guards.check(&(touched.start / sector * sector..end))
    }
}
