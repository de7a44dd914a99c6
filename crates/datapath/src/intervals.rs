//! Ranges in order of arrival, exclusive or shared: for any number of them.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges, found by position. A range holds as soon as no earlier one excludes it.
pub(crate) struct Intervals<T> {
    claims: BTreeMap<Key, Claim<T>>,
    /// How many ranges each class has.
    classes: [u32; CLASSES as usize],
    /// The number of the next range to arrive.
    next: u64,
    /// Ranges that may get their turn, while `leave` looks for it.
    turns: Vec<Key>,
}

/// Classes are powers of two of lengths. Within a class, a range that overlaps another one begins
/// within it or not far before.
const CLASSES: u32 = u64::BITS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    class: u32,
    start: u64,
    /// The range's number in order of arrival.
    order: u64,
}

struct Claim<T> {
    end: u64,
    of: T,
    shared: bool,
    holds: bool,
}

impl<T: PartialEq> Intervals<T> {
    pub(crate) fn new() -> Self {
        Self { claims: BTreeMap::new(), classes: [0; CLASSES as usize], next: 0, turns: Vec::new() }
    }

    /// Adds a range. False: an earlier range excludes it; [`Intervals::leave`] names it when its
    /// turn comes. Shared ranges do not wait for each other.
    pub(crate) fn enter(&mut self, range: Range<u64>, of: T, shared: bool) -> bool {
        let holds = !self.is_excluded(&range, shared, u64::MAX);
        self.put(range, of, shared, holds);
        holds
    }

    /// Adds a range that holds already, whatever it overlaps.
    pub(crate) fn hold(&mut self, range: Range<u64>, of: T, shared: bool) {
        self.put(range, of, shared, true);
    }

    /// Removes a range, whether it holds or waits, and calls `turn` for the ranges that hold from
    /// now on.
    pub(crate) fn leave(&mut self, range: Range<u64>, of: &T, mut turn: impl FnMut(&T)) {
        let (class, start) = (class(&range), range.start);
        let same = Key { class, start, order: 0 }..=Key { class, start, order: u64::MAX };
        let Some(key) = self.claims.range(same).find(|(_, claim)| claim.of == *of).map(|(key, _)| *key)
        else {
            return;
        };
        self.claims.remove(&key);
        self.classes[class as usize] -= 1;
        let mut turns = std::mem::take(&mut self.turns);
        turns.extend(self.overlapping(&range).filter(|(_, claim)| !claim.holds).map(|(key, _)| *key));
        turns.sort_unstable_by_key(|key| key.order);
        for key in turns.drain(..) {
            let Some(claim) = self.claims.get(&key) else { continue };
            if !self.is_excluded(&(key.start..claim.end), claim.shared, key.order)
                && let Some(claim) = self.claims.get_mut(&key)
            {
                claim.holds = true;
                turn(&claim.of);
            }
        }
        self.turns = turns;
    }

    fn put(&mut self, range: Range<u64>, of: T, shared: bool, holds: bool) {
        let key = Key { class: class(&range), start: range.start, order: self.next };
        self.next += 1;
        self.classes[key.class as usize] += 1;
        self.claims.insert(key, Claim { end: range.end, of, shared, holds });
    }

    /// True when a range that arrived before `order` excludes this one.
    fn is_excluded(&self, range: &Range<u64>, shared: bool, order: u64) -> bool {
        self.overlapping(range).any(|(key, claim)| key.order < order && !(claim.shared && shared))
    }

    fn overlapping<'a>(&'a self, range: &Range<u64>) -> impl Iterator<Item = (&'a Key, &'a Claim<T>)> {
        let Range { start, end } = *range;
        let classes = (0..CLASSES).filter(|class| self.classes[*class as usize] > 0);
        let near = classes.flat_map(move |class| {
            let longest = 1u64.checked_shl(class + 1).map_or(u64::MAX, |length| length - 1);
            let from = Key { class, start: start.saturating_sub(longest), order: 0 };
            self.claims.range(from..Key { class, start: end.max(from.start), order: 0 })
        });
        near.filter(move |(_, claim)| claim.end > start)
    }
}

fn class(range: &Range<u64>) -> u32 {
    (range.end - range.start).max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn none_that_hold_exclude_each_other_and_all_get_their_turn_in_order(
            ranges in prop::collection::vec((0u64..50, 1u64..20, 0u32..60, any::<bool>()), 1..40),
            picks in prop::collection::vec(0usize..1000, 40),
        ) {
            // Some ranges are long, so that others lie within them.
            let len = |len, shift| if shift > 50 { len << shift } else { len };
            let all: Vec<_> = ranges.into_iter().map(|(start, n, shift, shared)| (start..start + len(n, shift), shared)).collect();
            let overlap = |a: &Range<u64>, b: &Range<u64>| a.start < b.end && b.start < a.end;
            let excludes = |a: usize, b: usize| overlap(&all[a].0, &all[b].0) && !(all[a].1 && all[b].1);
            let mut claims = Intervals::new();
            let mut holding: Vec<usize> =
                (0..all.len()).filter(|i| claims.enter(all[*i].0.clone(), *i, all[*i].1)).collect();
            let mut over = vec![];
            for pick in picks.into_iter().take(all.len()) {
                for (n, a) in holding.iter().enumerate() {
                    prop_assert!(holding[..n].iter().all(|b| !excludes(*a, *b)));
                }
                let waits = |i: usize| !over.contains(&i) && !holding.contains(&i);
                for i in (0..all.len()).filter(|i| waits(*i)) {
                    prop_assert!((0..i).any(|j| !over.contains(&j) && excludes(i, j)), "no range waits without a reason");
                }
                let done = holding.swap_remove(pick % holding.len());
                prop_assert!((0..done).all(|i| over.contains(&i) || !excludes(i, done)), "in order");
                over.push(done);
                claims.leave(all[done].0.clone(), &done, |next| holding.push(*next));
            }
            prop_assert_eq!(over.len(), all.len());
        }
    }
}
