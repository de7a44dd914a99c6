//! The possible contents of a disk after a loss of power.
//!
//! Writes before the last sync are there. For later writes, each 512-byte sector is there or not,
//! in any order. A choice of these states is tried, the same in each run.

use std::ops::Range;

use super::{Event, apply};

const SECTOR: usize = 512;
/// With up to this many writes in progress, each set of arrived writes is tried; with more writes,
/// the sets without one or two of them.
const FEW: usize = 5;
/// For longer writes only some of the places of a tear are tried: the places near both ends, and
/// some between.
const SECTORS: usize = 16;

/// A write in progress.
type Write<'e> = (u64, &'e [u8]);

/// Calls `check` with each of those states after each event, and with a description of the state.
pub(super) fn each(events: &[Event], mut synced: Vec<u8>, mut check: impl FnMut(&[u8], &str)) {
    let mut disk = synced.clone();
    let mut pending: Vec<Write<'_>> = Vec::new();
    check(&disk, "before everything");
    for (i, event) in events.iter().enumerate() {
        match event {
            Event::Write(offset, bytes) => pending.push((*offset, bytes)),
            Event::Sync(range) => pending.retain(|(offset, bytes)| {
                let stays = !range.contains(offset);
                if !stays {
                    apply(&mut synced, *offset, bytes);
                }
                stays
            }),
        }
        let mut try_one = |arrived: &[Write<'_>], what: &str| {
            disk.copy_from_slice(&synced);
            arrived.iter().for_each(|(offset, bytes)| apply(&mut disk, *offset, bytes));
            check(&disk, &format!("event {i} of {}: {what}", events.len()));
        };
        for lost in sets_lost(pending.len()) {
            let arrived = without(&pending, &lost);
            try_one(&arrived, &format!("without writes {lost:?}"));
            if overlap(&arrived) {
                let reversed: Vec<_> = arrived.into_iter().rev().collect();
                try_one(&reversed, &format!("without writes {lost:?}, the last first"));
            }
        }
        for torn in 0..pending.len() {
            let others = without(&pending, &[torn]);
            for (parts, what) in torn_in(pending[torn]) {
                try_one(&[&others[..], &parts].concat(), &format!("write {torn} {what}"));
                if !others.is_empty() {
                    try_one(&parts, &format!("write {torn} {what}, and nothing else"));
                }
            }
        }
    }
}

/// Returns sets of writes that did not arrive.
fn sets_lost(count: usize) -> Vec<Vec<usize>> {
    if count <= FEW {
        let set = |bits: usize| (0..count).filter(|i| bits >> i & 1 == 1).collect();
        return (0..1 << count).map(set).collect();
    }
    let singles = (0..count).map(|i| vec![i]);
    let pairs = (0..count).flat_map(|i| (i + 1..count).map(move |k| vec![i, k]));
    let ends = (0..count).map(|i| (i..count).collect());
    std::iter::once(vec![]).chain(singles).chain(pairs).chain(ends).collect()
}

fn without<'e>(writes: &[Write<'e>], lost: &[usize]) -> Vec<Write<'e>> {
    writes.iter().enumerate().filter(|(i, _)| !lost.contains(i)).map(|(_, write)| *write).collect()
}

fn overlap(writes: &[Write<'_>]) -> bool {
    let range = |(offset, bytes): &Write<'_>| *offset..*offset + bytes.len() as u64;
    let meet = |a: Range<u64>, b: Range<u64>| a.start < b.end && b.start < a.end;
    writes.iter().enumerate().any(|(i, a)| writes[i + 1..].iter().any(|b| meet(range(a), range(b))))
}

/// Returns a torn write: its sectors up to some place, or all sectors but one.
fn torn_in((offset, bytes): Write<'_>) -> Vec<(Vec<Write<'_>>, String)> {
    let first = SECTOR - usize::try_from(offset).unwrap() % SECTOR;
    let mut cuts: Vec<usize> = (first..bytes.len()).step_by(SECTOR).collect();
    cuts.insert(0, 0);
    cuts.push(bytes.len());
    let part = |range: Range<usize>| (offset + range.start as u64, &bytes[range]);
    let count = cuts.len() - 1;
    let near_an_end = |i: &usize| *i < SECTORS / 4 || count - i <= SECTORS / 4;
    let tried = (0..count).filter(|i| near_an_end(i) || i % count.div_ceil(SECTORS / 2) == 0);
    let mut all = Vec::new();
    for i in tried.filter(|_| count > 1) {
        let (before, after) = (part(0..cuts[i]), part(cuts[i + 1]..bytes.len()));
        all.push((vec![before], format!("up to sector {i}")));
        all.push((vec![before, after], format!("without sector {i}")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::ALL;
    use super::*;

    fn states(events: &[Event], size: usize) -> Vec<Vec<u8>> {
        let mut seen = Vec::new();
        each(events, vec![0; size], |disk, _| seen.push(disk.iter().step_by(SECTOR).copied().collect()));
        seen.sort();
        seen.dedup();
        seen
    }

    #[test]
    fn a_crash_leaves_any_of_the_sectors_under_way_and_all_of_those_that_are_synced() {
        let write = |sector: u64, value: u8, len: usize| {
            Event::Write(sector * SECTOR as u64, vec![value; len * SECTOR])
        };
        // Each set of two sectors of one write, and of two writes.
        let all = [vec![0, 0], vec![0, 1], vec![1, 0], vec![1, 1]];
        assert_eq!(states(&[write(0, 1, 2), Event::Sync(ALL)], 1024), all);
        assert_eq!(states(&[write(0, 1, 1), write(1, 1, 1), Event::Sync(ALL)], 1024), all);
        // Synced writes stay.
        let ordered = [write(0, 1, 1), Event::Sync(ALL), write(1, 1, 1), Event::Sync(ALL)];
        assert_eq!(states(&ordered, 1024), [vec![0, 0], vec![1, 0], vec![1, 1]]);
        // A sync of one part leaves the writes to the other part in progress.
        let apart = [write(0, 1, 1), write(1, 1, 1), Event::Sync(0..512), write(1, 2, 1)];
        let both = states(&apart, 1024);
        assert!(both.contains(&vec![1, 0]) && both.contains(&vec![1, 2]) && !both.contains(&vec![0, 2]));
        // Two writes to the same place arrive in any order.
        let twice = [write(0, 1, 1), write(0, 2, 1)];
        assert_eq!(states(&twice, 512), [vec![0], vec![1], vec![2]]);
        // A part of a sector is in one sector all the same.
        let part = [Event::Write(100, vec![1; 100]), Event::Write(512, vec![2; 80]), Event::Sync(ALL)];
        assert_eq!(states(&part, 1024).len(), 2);
    }

    #[test]
    fn of_many_writes_each_pair_may_be_lost() {
        let events: Vec<_> = (0..9).map(|i| Event::Write(i * SECTOR as u64, vec![1; SECTOR])).collect();
        let states = states(&events, 9 * SECTOR);
        for (i, k) in (0..9).flat_map(|i| (0..9).map(move |k| (i, k))) {
            let state: Vec<u8> = (0..9).map(|at| u8::from(at != i && at != k)).collect();
            assert!(states.contains(&state), "{i} {k}");
        }
    }
}
