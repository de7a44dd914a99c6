//! Ranges of one queue's writes, first come, first served: few enough for a linear search.
//!
//! [`crate::intervals`] does the same for any number of ranges, shared or not; it allocates, which
//! no request may.

use std::ops::Range;

/// Ranges in order of arrival. A range holds as soon as no earlier one overlaps it.
pub(crate) struct WriteOrdering<T> {
    all: Vec<Claim<T>>,
}

struct Claim<T> {
    range: Range<u64>,
    of: T,
    holds: bool,
}

impl<T: PartialEq + Clone> WriteOrdering<T> {
    pub(crate) fn new(room: usize) -> Self {
        Self { all: Vec::with_capacity(room) }
    }

    /// Adds a range. False: an earlier range overlaps it; [`WriteOrdering::leave`] names it when
    /// its turn comes.
    pub(crate) fn enter(&mut self, range: Range<u64>, of: T) -> bool {
        let holds = self.is_free(&range);
        self.all.push(Claim { range, of, holds });
        holds
    }

    /// True when no entry overlaps a range.
    pub(crate) fn is_free(&self, range: &Range<u64>) -> bool {
        !self.all.iter().any(|other| overlap(&other.range, range))
    }

    /// Removes a range, whether it holds or waits, and calls `turn` for the ranges that hold from
    /// now on.
    pub(crate) fn leave(&mut self, of: &T, mut turn: impl FnMut(&T)) {
        let Some(at) = self.all.iter().position(|claim| claim.of == *of) else { return };
        let freed = self.all.remove(at).range;
        for next in at..self.all.len() {
            let (before, rest) = self.all.split_at_mut(next);
            let claim = &mut rest[0];
            let waited = !claim.holds && overlap(&claim.range, &freed);
            if waited && !before.iter().any(|other| overlap(&other.range, &claim.range)) {
                claim.holds = true;
                turn(&claim.of);
            }
        }
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_two_that_hold_overlap_and_all_get_their_turn_in_order(
            ranges in prop::collection::vec((0u64..50, 1u64..20), 1..40),
            picks in prop::collection::vec(0usize..1000, 40),
        ) {
            let all: Vec<_> = ranges.into_iter().map(|(start, len)| start..start + len).collect();
            let excludes = |a: usize, b: usize| overlap(&all[a], &all[b]);
            let mut claims = WriteOrdering::new(4);
            let mut holding: Vec<usize> =
                (0..all.len()).filter(|i| claims.enter(all[*i].clone(), *i)).collect();
            let mut over = vec![];
            for pick in picks.into_iter().take(all.len()) {
                for (n, a) in holding.iter().enumerate() {
                    prop_assert!(holding[..n].iter().all(|b| !excludes(*a, *b)));
                }
                let waits = |i: usize| !over.contains(&i) && !holding.contains(&i);
                for i in (0..all.len()).filter(|i| waits(*i)) {
                    prop_assert!((0..i).any(|j| !over.contains(&j) && excludes(i, j)), "nobody waits for nothing");
                }
                let done = holding.swap_remove(pick % holding.len());
                prop_assert!((0..done).all(|i| over.contains(&i) || !excludes(i, done)), "in order");
                over.push(done);
                claims.leave(&done, |next| holding.push(*next));
            }
            prop_assert_eq!(over.len(), all.len());
        }
    }
}
