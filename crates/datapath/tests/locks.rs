//! The range lock, by the model checker loom: every interleaving of few threads over few words.

// The crate and both files use these names.
#[path = "../src/intervals.rs"]
mod intervals;
#[path = "../src/locks.rs"]
#[expect(dead_code, reason = "the crate uses more of it")]
mod locks;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32 as Counter, AtomicU64 as Word, Ordering};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    use loom::sync::atomic::fence;

    /// loom weakens sequentially consistent operations, unless there are fences.
    macro_rules! fenced {
        ($name:ident, $inner:ident, $value:ty) => {
            pub(crate) struct $name($inner);

            #[allow(dead_code, reason = "each type uses a part")]
            impl $name {
                pub(crate) fn new(value: $value) -> Self {
                    Self($inner::new(value))
                }

                pub(crate) fn load(&self, order: Ordering) -> $value {
                    fence(Ordering::SeqCst);
                    self.0.load(order)
                }

                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    self.0.store(value, order);
                    fence(Ordering::SeqCst);
                }

                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    let before = self.0.swap(value, order);
                    fence(Ordering::SeqCst);
                    before
                }

                pub(crate) fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                    let before = self.0.fetch_add(value, order);
                    fence(Ordering::SeqCst);
                    before
                }

                pub(crate) fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                    let before = self.0.fetch_sub(value, order);
                    fence(Ordering::SeqCst);
                    before
                }

                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    let result = self.0.compare_exchange(current, new, success, failure);
                    fence(Ordering::SeqCst);
                    result
                }
            }
        };
    }

    fenced!(AtomicU64, Word, u64);
    fenced!(AtomicU32, Counter, u32);
}

use std::ops::Range;

use locks::{Claimant, LockOutcome, RangeLock};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Bytes of a lock stripe, as a power of two.
const STRIPE: u32 = 12;

/// A thread that waits for its turn.
#[derive(Clone)]
struct Waiter(usize, Arc<(Mutex<bool>, Condvar)>);

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Claimant for Waiter {
    fn granted(&self) {
        *self.1.0.lock().unwrap() = true;
        self.1.1.notify_one();
    }
}

/// Cells that the lock separates: loom reports a read or write of a cell beside another thread's
/// write.
struct Volume {
    lock: RangeLock<Waiter>,
    stripes: Vec<UnsafeCell<()>>,
}

impl Volume {
    fn new(stripes: u64, words: u32) -> Arc<Self> {
        let stripes = (0..stripes).map(|_| UnsafeCell::new(())).collect();
        Arc::new(Self { lock: RangeLock::with_words(STRIPE, words), stripes })
    }

    /// Locks stripes, reads or writes their cells, and releases them.
    fn use_it(&self, thread: usize, stripes: Range<u64>, shared: bool) {
        let range = stripes.start << STRIPE..stripes.end << STRIPE;
        let waiter = Waiter(thread, Arc::new((Mutex::new(false), Condvar::new())));
        let claimed = self.lock.claim(range.clone(), shared, || waiter.clone());
        if claimed == LockOutcome::Waits {
            let mut granted = waiter.1.0.lock().unwrap();
            // If the turn never came, loom would find a deadlock here.
            while !*granted {
                granted = waiter.1.1.wait(granted).unwrap();
            }
        }
        for (_, stripe) in (0..).zip(&self.stripes).filter(|(number, _)| stripes.contains(number)) {
            if shared {
                stripe.with(|_| ());
            } else {
                stripe.with_mut(|_| ());
            }
        }
        match claimed {
            LockOutcome::Taken => self.lock.give_back(range, shared),
            _ => self.lock.leave(range, waiter),
        }
    }
}

fn explore(uses: &'static [(Range<u64>, bool)], stripes: u64, words: u32) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let volume = Volume::new(stripes, words);
        let threads: Vec<_> = uses[1..]
            .iter()
            .enumerate()
            .map(|(number, (range, shared))| {
                let volume = volume.clone();
                thread::spawn(move || volume.use_it(number + 1, range.clone(), *shared))
            })
            .collect();
        volume.use_it(0, uses[0].0.clone(), uses[0].1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // The lock is idle again: every stripe is taken by its word.
        for stripe in 0..stripes {
            let range = stripe << STRIPE..(stripe + 1) << STRIPE;
            assert!(volume.lock.take(range.clone(), false), "{stripe}");
            volume.lock.give_back(range, false);
        }
    });
}

#[test]
fn writers_of_a_grain_follow_each_other() {
    explore(&[(0..1, false), (0..1, false), (0..1, false)], 1, 1);
}

#[test]
fn a_grain_is_not_read_while_it_is_written() {
    explore(&[(0..1, true), (0..1, false), (0..1, true)], 1, 1);
}

#[test]
fn grains_that_share_a_word_are_kept_apart_from_their_own_only() {
    explore(&[(0..1, false), (2..3, true), (0..1, true)], 3, 1);
}

#[test]
fn ranges_that_overlap_in_part_do_not_wait_for_each_other_for_ever() {
    explore(&[(0..2, false), (1..3, false), (0..1, true)], 3, 2);
}

#[test]
fn a_long_range_is_seen_by_those_who_take_words_or_sees_them() {
    explore(&[(0..300, false), (0..1, false)], 1, 1);
    explore(&[(0..300, false), (0..1, true), (0..300, true)], 1, 1);
}
