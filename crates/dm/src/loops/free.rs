//! The first number in the search for a free one: a search through all used numbers, for each of
//! thousands of devices, takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The smallest number that may be free.
#[derive(Clone)]
pub(crate) struct FreeNumber {
    number: Arc<AtomicU32>,
    least: u32,
}

impl FreeNumber {
    /// Returns numbers from this number on.
    pub(crate) fn from(least: u32) -> Self {
        Self { number: Arc::new(AtomicU32::new(least)), least }
    }

    pub(crate) fn get(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Records that all numbers up to this one are in use.
    pub(crate) fn taken(&self, number: u32) {
        self.number.store(number.saturating_add(1), Ordering::Relaxed);
    }

    pub(crate) fn given_back(&self, number: u32) {
        self.number.fetch_min(number.max(self.least), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_are_given_back_come_first_again_and_none_below_the_least() {
        let free = FreeNumber::from(1000);
        free.taken(1000);
        free.taken(1001);
        assert_eq!(free.get(), 1002);
        free.given_back(1001);
        assert_eq!(free.get(), 1001);
        free.given_back(1500);
        free.given_back(7);
        assert_eq!(free.get(), 1000);
    }
}
