//! A lock over ranges of a volume, for all its queues: writes of a sector follow each other, and
//! none is read while it is written.
//!
//! ```text
//!   take ---> words   one for a grain that is in hand: taken and given back by one atomic operation each
//!     |
//!     +-----> map     in the order they came: claims that met another one, and long ranges
//!                     whoever waits is told when its turn has come
//! ```
//!
//! A grain is a sector, or a page where sectors are smaller. The word for it is free, or is held by
//! one claim alone or by several that share it, or refers to the map. Whoever finds its word held
//! puts what is in it into the map, and itself behind that: so nothing is overtaken, and nobody
//! waits for a grain that is not its own.
//!
//! A range of many grains has no words: it raises the number of its areas first and looks at all
//! words then, while whoever takes words looks at the area's number afterwards. One of the two sees
//! the other. So a claim may hold a large part of the volume for long, and costs nothing elsewhere.

use std::ops::Range;

use crate::intervals::Intervals;
use crate::sync::{AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering};

/// The smallest grain, in bytes.
const PAGE: u32 = 4096;
/// Words, as a power of two: many more than there are grains in hand, so that two seldom have the
/// same.
const WORDS: u32 = 12;
/// Longer ranges, in grains, have no words.
const FEW: u64 = 256;
/// Areas of the volume that know of long ranges in them, as a power of two of bytes, and how many
/// numbers there are.
const AREA: u32 = 26;
const AREAS: usize = 64;

/// A word that refers to the map. Others hold what is in the upper bits of the grain's number, and
/// who holds it.
const LISTED: u64 = 1 << 63;
const HOLDERS: u32 = 20;
/// In the place of how many share it.
const ALONE: u64 = (1 << HOLDERS) - 1;

/// Somebody who may have to wait.
pub(crate) trait Claimant: Clone + PartialEq {
    /// Its turn has come.
    fn granted(&self);
}

/// What became of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockOutcome {
    /// It is held.
    Taken,
    /// It is held, and is in the map.
    Listed,
    /// It is in the map; [`Claimant::granted`] is called when it is held.
    Waits,
}

pub(crate) struct RangeLock<C> {
    /// A grain's bytes, as a power of two.
    grain: u32,
    words: Box<[AtomicU64]>,
    /// How many long ranges lie in the areas of each number.
    areas: [AtomicU32; AREAS],
    map: Mutex<Map<C>>,
}

struct Map<C> {
    claims: Intervals<Holder<C>>,
    /// By word, how many claims it stands for.
    listed: Box<[u32]>,
}

#[derive(Clone, PartialEq)]
enum Holder<C> {
    Known(C),
    /// One of those that took this grain by its word: which one makes no difference.
    Taker(u64),
}

impl<C: Claimant> RangeLock<C> {
    pub(crate) fn new(sector: u32) -> Self {
        Self::with_words(sector.max(PAGE).ilog2(), WORDS)
    }

    /// As many words as the power of two says.
    pub(crate) fn with_words(grain: u32, words: u32) -> Self {
        let count = 1 << words;
        Self {
            grain,
            words: (0..count).map(|_| AtomicU64::new(0)).collect(),
            areas: std::array::from_fn(|_| AtomicU32::new(0)),
            map: Mutex::new(Map { claims: Intervals::new(), listed: vec![0; count].into() }),
        }
    }

    /// Claims a range of bytes, with others or alone.
    pub(crate) fn claim(&self, range: Range<u64>, shared: bool, claimant: impl FnOnce() -> C) -> LockOutcome {
        let grains = self.grains(range);
        if self.take_all(&grains, shared) {
            return LockOutcome::Taken;
        }
        let mut map = self.map();
        if is_long(&grains) {
            for area in self.areas_of(&grains) {
                area.fetch_add(1, Ordering::SeqCst);
            }
            for place in 0..self.words.len() {
                let seen = self.words[place].load(Ordering::SeqCst);
                if self.holds(place, seen).is_some_and(|grain| grains.contains(&grain)) {
                    self.list(&mut map, place);
                    self.unlist(&mut map, place, 0);
                }
            }
        } else {
            for grain in grains.clone() {
                let place = self.place(grain);
                self.list(&mut map, place);
                map.listed[place] += 1;
            }
        }
        let holds = map.claims.enter(grains, Holder::Known(claimant()), shared);
        if holds { LockOutcome::Listed } else { LockOutcome::Waits }
    }

    /// Claims a range if that needs nobody's turn.
    pub(crate) fn take(&self, range: Range<u64>, shared: bool) -> bool {
        self.take_all(&self.grains(range), shared)
    }

    /// Gives a range back that was [taken](LockOutcome::Taken).
    pub(crate) fn give_back(&self, range: Range<u64>, shared: bool) {
        self.give_all_back(self.grains(range), shared);
    }

    /// Gives a range back that is in the map, or the place in the line for it.
    pub(crate) fn leave(&self, range: Range<u64>, claimant: C) {
        let grains = self.grains(range);
        let mut map = self.map();
        map.leave(grains.clone(), &Holder::Known(claimant));
        if is_long(&grains) {
            for area in self.areas_of(&grains) {
                area.fetch_sub(1, Ordering::SeqCst);
            }
        } else {
            grains.for_each(|grain| self.unlist(&mut map, self.place(grain), 1));
        }
    }

    fn take_all(&self, grains: &Range<u64>, shared: bool) -> bool {
        if is_long(grains) {
            return false;
        }
        let taken = grains.clone().take_while(|grain| self.take_one(*grain, shared)).count() as u64;
        let all = taken == grains.end - grains.start;
        // After the words: a long range is in the number by now, or finds them.
        if all && self.areas_of(grains).all(|area| area.load(Ordering::SeqCst) == 0) {
            return true;
        }
        self.give_all_back(grains.start..grains.start + taken, shared);
        false
    }

    fn give_all_back(&self, grains: Range<u64>, shared: bool) {
        grains.for_each(|grain| self.give_one_back(grain, shared));
    }

    fn take_one(&self, grain: u64, shared: bool) -> bool {
        let word = &self.words[self.place(grain)];
        let first = self.tag(grain) | if shared { 1 } else { ALONE };
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

    fn give_one_back(&self, grain: u64, shared: bool) {
        let place = self.place(grain);
        let mut seen = self.tag(grain) | if shared { 1 } else { ALONE };
        while seen != LISTED {
            let next = if shared && seen & ALONE > 1 { seen - 1 } else { 0 };
            match self.words[place].compare_exchange(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        let mut map = self.map();
        map.leave(grain..grain + 1, &Holder::Taker(grain));
        self.unlist(&mut map, place, 1);
    }

    /// Puts into the map what a word holds, and makes it refer there.
    fn list(&self, map: &mut Map<C>, place: usize) {
        let seen = self.words[place].swap(LISTED, Ordering::SeqCst);
        let Some(grain) = self.holds(place, seen) else { return };
        let holders = seen & ALONE;
        let shared = holders != ALONE;
        for _ in 0..if shared { holders } else { 1 } {
            map.claims.hold(grain..grain + 1, Holder::Taker(grain), shared);
            map.listed[place] += 1;
        }
    }

    /// So many claims fewer are in the map for a word: after the last one it is free.
    fn unlist(&self, map: &mut Map<C>, place: usize, gone: u32) {
        map.listed[place] -= gone;
        if map.listed[place] == 0 {
            self.words[place].store(0, Ordering::SeqCst);
        }
    }

    /// The numbers of the areas that a range lies in, each once.
    fn areas_of(&self, grains: &Range<u64>) -> impl Iterator<Item = &AtomicU32> {
        let shift = AREA.saturating_sub(self.grain);
        let (first, last) = (grains.start >> shift, grains.end.saturating_sub(1) >> shift);
        let count = if grains.is_empty() { 0 } else { (last - first).saturating_add(1) };
        (0..count.min(AREAS as u64)).map(move |n| &self.areas[to_usize((first + n) % AREAS as u64)])
    }

    fn grains(&self, range: Range<u64>) -> Range<u64> {
        let last = range.end.saturating_sub(1);
        if range.is_empty() { 0..0 } else { range.start >> self.grain..(last >> self.grain) + 1 }
    }

    /// The word for a grain. Neighbours have neighbouring words; the rest scatters what lies far
    /// apart.
    fn place(&self, grain: u64) -> usize {
        let upper = grain >> self.bits();
        to_usize(grain.wrapping_add(self.scatter(upper)) & self.mask())
    }

    /// What a word says beside its place to name a grain.
    fn tag(&self, grain: u64) -> u64 {
        (grain >> self.bits()) << HOLDERS
    }

    /// The grain that is held by what was seen in a word.
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

    /// A thread that panicked did so outside of the lock's few lines.
    fn map(&self) -> MutexGuard<'_, Map<C>> {
        self.map.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl<C: Claimant> Map<C> {
    fn leave(&mut self, grains: Range<u64>, holder: &Holder<C>) {
        self.claims.leave(grains, holder, |next| {
            // The others hold what they have already.
            if let Holder::Known(claimant) = next {
                claimant.granted();
            }
        });
    }
}

fn is_long(grains: &Range<u64>) -> bool {
    grains.end - grains.start > FEW
}

#[expect(clippy::cast_possible_truncation, reason = "below the number of words")]
fn to_usize(number: u64) -> usize {
    number as usize
}
