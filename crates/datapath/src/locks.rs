//! The range lock of a volume, shared by all its queues: writes of a sector follow each other, and
//! no sector is read while it is written.
//!
//! ```text
//!   take ---> words   one for each lock stripe in use: one atomic operation locks, one unlocks
//!     |
//!     +-----> map     in order of arrival: ranges that met a held stripe, and long ranges;
//!                     `Claimant::granted` tells a waiter of its turn
//! ```
//!
//! A lock stripe is a sector, or a page where sectors are smaller. Its word is free, or held by one
//! range alone, or by several that share it, or refers to the map. A thread that finds the word
//! held moves the word's holders to the map and adds its range behind them: so no range is
//! overtaken, and no range waits for a stripe outside of it.
//!
//! A range of many stripes has no words: its thread first raises the numbers of the range's areas
//! and then looks at all words, while a thread that takes words looks at its area's number
//! afterwards. One of the two sees the other. So a range may hold a large part of the volume for
//! long, at no cost elsewhere.

use std::ops::Range;

use crate::intervals::Intervals;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// The smallest lock stripe, in bytes.
const PAGE: u32 = 4096;
/// The number of words, as a power of two: far more than stripes in use, so that two stripes seldom
/// share a word.
const WORDS: u32 = 12;
/// The longest range, in stripes, that has words.
const FEW: u64 = 256;
/// Areas count the long ranges in them. Their size is a power of two of bytes; areas share
/// [`AREAS`] numbers.
const AREA: u32 = 26;
const AREAS: usize = 64;

/// A word that refers to the map. Any other word has the upper bits of the stripe's number, and the
/// number of its holders.
const LISTED: u64 = 1 << 63;
const HOLDERS: u32 = 20;
/// The number of holders of an exclusive word.
const ALONE: u64 = (1 << HOLDERS) - 1;

/// A thread that may have to wait for its range.
pub(crate) trait Claimant: Clone + PartialEq {
    /// The range is held now.
    fn granted(&self);
}

/// The result of a call for a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockOutcome {
    /// The range is held.
    Taken,
    /// The range is held, and is in the map.
    Listed,
    /// The range is in the map; [`Claimant::granted`] is called when it is held.
    Waits,
}

pub(crate) struct RangeLock<C> {
    /// A stripe's bytes, as a power of two.
    stripe: u32,
    words: Box<[AtomicU64]>,
    /// How many long ranges lie in the areas of each number.
    areas: [AtomicU32; AREAS],
    map: Mutex<Map<C>>,
}

struct Map<C> {
    claims: Intervals<Holder<C>>,
    /// How many ranges of the map each word stands for.
    listed: Box<[u32]>,
}

#[derive(Clone, PartialEq)]
enum Holder<C> {
    Known(C),
    /// A holder that took this stripe by its word: the map need not know which one.
    Taker(u64),
}

impl<C: Claimant> RangeLock<C> {
    pub(crate) fn new(sector: u32) -> Self {
        Self::with_words(sector.max(PAGE).ilog2(), WORDS)
    }

    /// A lock with 2^`words` words and stripes of 2^`stripe` bytes.
    pub(crate) fn with_words(stripe: u32, words: u32) -> Self {
        let count = 1 << words;
        Self {
            stripe,
            words: (0..count).map(|_| AtomicU64::new(0)).collect(),
            areas: std::array::from_fn(|_| AtomicU32::new(0)),
            map: Mutex::new(Map { claims: Intervals::new(), listed: vec![0; count].into() }),
        }
    }

    /// Locks a range of bytes, shared or exclusively.
    pub(crate) fn claim(&self, range: Range<u64>, shared: bool, claimant: impl FnOnce() -> C) -> LockOutcome {
        let stripes = self.stripes(range);
        if self.take_all(&stripes, shared) {
            return LockOutcome::Taken;
        }
        let mut map = self.map();
        if is_long(&stripes) {
            for area in self.areas_of(&stripes) {
                area.fetch_add(1, Ordering::SeqCst);
            }
            for place in 0..self.words.len() {
                let seen = self.words[place].load(Ordering::SeqCst);
                if self.holds(place, seen).is_some_and(|stripe| stripes.contains(&stripe)) {
                    self.list(&mut map, place);
                    self.unlist(&mut map, place, 0);
                }
            }
        } else {
            for stripe in stripes.clone() {
                let place = self.place(stripe);
                self.list(&mut map, place);
                map.listed[place] += 1;
            }
        }
        let holds = map.claims.enter(stripes, Holder::Known(claimant()), shared);
        if holds { LockOutcome::Listed } else { LockOutcome::Waits }
    }

    /// Locks a range if it needs no turn.
    pub(crate) fn take(&self, range: Range<u64>, shared: bool) -> bool {
        self.take_all(&self.stripes(range), shared)
    }

    /// Releases a range that was [taken](LockOutcome::Taken).
    pub(crate) fn give_back(&self, range: Range<u64>, shared: bool) {
        self.give_all_back(self.stripes(range), shared);
    }

    /// Releases a range that is in the map, whether it holds or waits.
    pub(crate) fn leave(&self, range: Range<u64>, claimant: C) {
        let stripes = self.stripes(range);
        let mut map = self.map();
        map.leave(stripes.clone(), &Holder::Known(claimant));
        if is_long(&stripes) {
            for area in self.areas_of(&stripes) {
                area.fetch_sub(1, Ordering::SeqCst);
            }
        } else {
            stripes.for_each(|stripe| self.unlist(&mut map, self.place(stripe), 1));
        }
    }

    fn take_all(&self, stripes: &Range<u64>, shared: bool) -> bool {
        if is_long(stripes) {
            return false;
        }
        let taken = stripes.clone().take_while(|stripe| self.take_one(*stripe, shared)).count() as u64;
        let all = taken == stripes.end - stripes.start;
        // This follows the words: a long range has raised the number by now, or finds the words.
        if all && self.areas_of(stripes).all(|area| area.load(Ordering::SeqCst) == 0) {
            return true;
        }
        self.give_all_back(stripes.start..stripes.start + taken, shared);
        false
    }

    fn give_all_back(&self, stripes: Range<u64>, shared: bool) {
        stripes.for_each(|stripe| self.give_one_back(stripe, shared));
    }

    fn take_one(&self, stripe: u64, shared: bool) -> bool {
        let word = &self.words[self.place(stripe)];
        let first = self.tag(stripe) | if shared { 1 } else { ALONE };
        let mut seen = 0;
        loop {
            let next = match seen {
                0 => first,
                _ if shared && seen >> HOLDERS == first >> HOLDERS && seen & ALONE < ALONE - 1 => seen + 1,
                _ => return false,
            };
            match word.compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    fn give_one_back(&self, stripe: u64, shared: bool) {
        let place = self.place(stripe);
        let mut seen = self.tag(stripe) | if shared { 1 } else { ALONE };
        while seen != LISTED {
            let next = if shared && seen & ALONE > 1 { seen - 1 } else { 0 };
            match self.words[place].compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        let mut map = self.map();
        map.leave(stripe..stripe + 1, &Holder::Taker(stripe));
        self.unlist(&mut map, place, 1);
    }

    /// Moves the holders of a word to the map, and makes the word refer there.
    fn list(&self, map: &mut Map<C>, place: usize) {
        let seen = self.words[place].swap(LISTED, Ordering::SeqCst);
        let Some(stripe) = self.holds(place, seen) else { return };
        let holders = seen & ALONE;
        let shared = holders != ALONE;
        for _ in 0..if shared { holders } else { 1 } {
            map.claims.hold(stripe..stripe + 1, Holder::Taker(stripe), shared);
            map.listed[place] += 1;
        }
    }

    /// Subtracts `gone` ranges of the map from a word: after the last one the word is free.
    fn unlist(&self, map: &mut Map<C>, place: usize, gone: u32) {
        map.listed[place] -= gone;
        if map.listed[place] == 0 {
            self.words[place].store(0, Ordering::SeqCst);
        }
    }

    /// The numbers of the areas that a range lies in, each once.
    fn areas_of(&self, stripes: &Range<u64>) -> impl Iterator<Item = &AtomicU32> {
        let shift = AREA.saturating_sub(self.stripe);
        let (first, last) = (stripes.start >> shift, stripes.end.saturating_sub(1) >> shift);
        let count = if stripes.is_empty() { 0 } else { (last - first).saturating_add(1) };
        (0..count.min(AREAS as u64)).map(move |n| &self.areas[to_usize((first + n) % AREAS as u64)])
    }

    fn stripes(&self, range: Range<u64>) -> Range<u64> {
        let last = range.end.saturating_sub(1);
        if range.is_empty() { 0..0 } else { range.start >> self.stripe..(last >> self.stripe) + 1 }
    }

    /// The word of a stripe. Neighbours have neighbouring words; scattering separates distant
    /// stripes.
    fn place(&self, stripe: u64) -> usize {
        let upper = stripe >> self.bits();
        to_usize(stripe.wrapping_add(self.scatter(upper)) & self.mask())
    }

    /// The bits of a word that name a stripe, together with the word's place.
    fn tag(&self, stripe: u64) -> u64 {
        (stripe >> self.bits()) << HOLDERS
    }

    /// The stripe that a word's value names.
    fn holds(&self, place: usize, seen: u64) -> Option<u64> {
        let upper = seen >> HOLDERS;
        let lower = (place as u64).wrapping_sub(self.scatter(upper)) & self.mask();
        (seen != 0 && seen != LISTED).then_some(upper << self.bits() | lower)
    }

    fn scatter(&self, upper: u64) -> u64 {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        upper.wrapping_mul(GOLDEN) >> (u64::BITS - self.bits())
    }

    fn bits(&self) -> u32 {
        self.words.len().ilog2()
    }

    fn mask(&self) -> u64 {
        self.words.len() as u64 - 1
    }

    /// Poisoning is ignored: no thread panics within the few lines that hold the mutex.
    fn map(&self) -> MutexGuard<'_, Map<C>> {
        self.map.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl<C: Claimant> Map<C> {
    fn leave(&mut self, stripes: Range<u64>, holder: &Holder<C>) {
        self.claims.leave(stripes, holder, |next| {
            // Holders from words have their stripe already.
            if let Holder::Known(claimant) = next {
                claimant.granted();
            }
        });
    }
}

fn is_long(stripes: &Range<u64>) -> bool {
    stripes.end - stripes.start > FEW
}

#[expect(clippy::cast_possible_truncation, reason = "below the number of words")]
fn to_usize(number: u64) -> usize {
    number as usize
}
