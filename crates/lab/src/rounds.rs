//! Interleaved measurements: every subject runs in every round, so that compared figures were
//! measured close in time.

use underseal_bench::Range;

use crate::load::{self, Load, LoadResult, LoadTarget};
use crate::stalls::Stalls;
use crate::{Cell, Lab, Panel, Result, Unit};

/// The largest number of repetitions after the machine stood still.
const AGAIN: usize = 3;

/// Runs every subject once in each round; each round begins with another subject, so that no
/// subject always follows the same one.
///
/// A measurement during which the machine stood still is repeated, a few times at most. Returns the
/// rounds of each subject, in the order of subjects.
pub(crate) fn interleaved<T>(
    lab: &Lab<'_>,
    rounds: usize,
    what: &str,
    subjects: usize,
    mut run: impl FnMut(usize) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let rounds = lab.rounds(rounds);
    let mut seen: Vec<Vec<T>> = (0..subjects).map(|_| Vec::with_capacity(rounds)).collect();
    let stalls = Stalls::watch();
    for round in 0..rounds {
        (lab.progress)(&format!("{what}: round {} of {rounds}", round + 1));
        for i in 0..subjects {
            let turn = (i + round) % subjects;
            let mut before = stalls.seen();
            let mut result = run(turn)?;
            for _ in 0..AGAIN {
                let now = stalls.seen();
                if now == before {
                    break;
                }
                (lab.progress)(&format!("{what}: the machine stood still; repeating this part"));
                before = now;
                result = run(turn)?;
            }
            seen[turn].push(result);
        }
    }
    Ok(seen)
}

/// The variants, by name.
pub(crate) struct Contenders(pub(crate) Vec<(&'static str, LoadTarget)>);

/// Results of several ways under several loads, for every round.
pub(crate) struct Grid {
    ways: Vec<&'static str>,
    loads: Vec<String>,
    /// The results by variant, then by load, then by round.
    seen: Vec<Vec<Vec<LoadResult>>>,
}

impl Contenders {
    /// Measures each variant under each load.
    pub(crate) fn measure(
        &self,
        lab: &Lab<'_>,
        rounds: usize,
        what: &str,
        loads: &[(String, Load)],
    ) -> Result<Grid> {
        let count = loads.len();
        // The ways under one load run one after the other, because they are compared with each
        // other.
        let pairs: Vec<(usize, usize)> =
            (0..count).flat_map(|load| (0..self.0.len()).map(move |way| (way, load))).collect();
        let rounds = interleaved(lab, rounds, what, pairs.len(), |nth| {
            let (way, load) = pairs[nth];
            load::run(&self.0[way].1, &loads[load].1)
        })?;
        let mut seen: Vec<Vec<Vec<LoadResult>>> = self.0.iter().map(|_| Vec::with_capacity(count)).collect();
        for ((way, _), rounds) in pairs.iter().zip(rounds) {
            seen[*way].push(rounds);
        }
        Ok(Grid {
            ways: self.0.iter().map(|(name, _)| *name).collect(),
            loads: loads.iter().map(|(name, _)| name.clone()).collect(),
            seen,
        })
    }
}

impl Grid {
    /// Returns a variant's number.
    ///
    /// # Panics
    /// When the experiment has no variant of this name.
    pub(crate) fn way(&self, name: &str) -> usize {
        self.ways.iter().position(|way| *way == name).expect("an experiment asks for its own ways")
    }

    /// A load's name.
    pub(crate) fn load(&self, load: usize) -> &str {
        &self.loads[load]
    }

    /// Returns all rounds of a variant under a load.
    pub(crate) fn all(&self, way: &str, load: usize) -> &[LoadResult] {
        &self.seen[self.way(way)][load]
    }

    /// A figure of each round of a way under a load.
    pub(crate) fn each(&self, way: &str, load: usize, of: impl Fn(&LoadResult) -> f64) -> Vec<f64> {
        self.all(way, load).iter().map(of).collect()
    }

    pub(crate) fn range(&self, way: &str, load: usize, of: impl Fn(&LoadResult) -> f64) -> Range {
        Range::of(self.each(way, load, of))
    }

    /// Ratio of one way to another, round by round.
    pub(crate) fn ratio(
        &self,
        over: &str,
        under: &str,
        load: usize,
        of: impl Fn(&LoadResult) -> f64 + Copy,
    ) -> Range {
        Range::of_ratios(&self.each(over, load, of), &self.each(under, load, of))
    }

    /// Returns a panel with a row for each load and a series for each variant.
    pub(crate) fn panel(&self, title: &str, unit: Unit, of: impl Fn(&LoadResult) -> f64 + Copy) -> Panel {
        let mut panel = Panel::new(title, unit, self.ways.iter().copied());
        for (load, name) in self.loads.iter().enumerate() {
            let cells = self.ways.iter().map(|way| Cell::from(self.range(way, load, of)));
            panel = panel.row(name, cells);
        }
        panel
    }

    /// Returns the load with the smallest quotient of two variants, and this quotient.
    pub(crate) fn worst(
        &self,
        over: &str,
        under: impl Fn(usize) -> Vec<f64>,
        of: impl Fn(&LoadResult) -> f64 + Copy,
    ) -> (&str, Range) {
        let ratios = (0..self.loads.len()).map(|load| {
            (self.loads[load].as_str(), Range::of_ratios(&self.each(over, load, of), &under(load)))
        });
        let nothing = ("", Range::of([]));
        ratios.min_by(|a, b| a.1.median.total_cmp(&b.1.median)).unwrap_or(nothing)
    }

    /// Returns the best of these variants under a load, round by round.
    pub(crate) fn best(
        &self,
        ways: &[&str],
        load: usize,
        of: impl Fn(&LoadResult) -> f64 + Copy,
    ) -> Vec<f64> {
        let best = ways.iter().map(|way| (Range::of(self.each(way, load, of)).median, *way));
        // The best by its median: the best of each round would be chance.
        let best = best.max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or_else(Vec::new, |(_, way)| self.each(way, load, of))
    }
}

/// Returns a number of bytes for titles.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        0x10_0000.. => format!("{}M", bytes >> 20),
        0x400.. => format!("{}k", bytes >> 10),
        _ => format!("{bytes}"),
    }
}
