//! Every server under every workload, in turn, for several rounds, so that a noisy neighbour
//! affects all servers alike.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;

/// The program that is compared with its peers, the workloads, and their duration.
#[derive(Debug, Clone)]
pub struct InterleavedRounds {
    /// The command of our server.
    pub underseal: PathBuf,
    /// The number of rounds of every server, mount or disk with every workload.
    pub rounds: usize,
    /// The time of each run.
    pub runtime: Duration,
    /// Only the workloads whose name contains this.
    pub only: Option<String>,
    /// The command of an earlier build, which is measured in place of the peers. Servers over a
    /// socket have turns over one image; mounts are made twice, over an image that was made early
    /// and over one that was made late. Where an image lies in memory was worth a fifth of the
    /// requests of the same program.
    pub before: Option<PathBuf>,
}

impl InterleavedRounds {
    /// Compares with an earlier build, if there is one, in place of the peers.
    #[must_use]
    pub fn with(self, before: Option<PathBuf>) -> Self {
        Self { before, ..self }
    }

    /// Whether a workload is one of the requested ones.
    pub(crate) fn want(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// The requested workloads. Returns an error when no workload contains the requested name.
    pub(crate) fn wanted<W: BenchWorkload>(
        &self,
        all: impl IntoIterator<Item = W>,
    ) -> Result<Vec<W>, BenchError> {
        let wanted: Vec<W> = all.into_iter().filter(|workload| self.want(&workload.name())).collect();
        match (&self.only, wanted.is_empty()) {
            (Some(only), true) => Err(BenchError::new(format!("no workload has {only:?} in its name"))),
            _ => Ok(wanted),
        }
    }
}

/// A kind of requests for every server.
pub(crate) trait BenchWorkload {
    /// Returns the name in rows: `4k randread depth 32`.
    fn name(&self) -> String;

    /// Whether the workload uses the files that the previous workload left in the same round.
    fn follows(&self) -> bool {
        false
    }
}

/// Measures workload after workload. `report` makes a report of the results of the finished
/// workloads: by workload, by server, round by round; the observer gets it after each finished
/// workload.
///
/// Returns the first error of `run`, unless the observer has ended the measurement.
pub(crate) fn interleaved<W: BenchWorkload, S, T, R: Serialize + Display>(
    rounds: usize,
    workloads: &[W],
    servers: &[S],
    observer: &mut impl Observer,
    mut run: impl FnMut(&S, &W) -> Result<T, BenchError>,
    report: impl Fn(&[Vec<Vec<T>>]) -> R,
) -> Result<(), BenchError> {
    let mut seen = Vec::new();
    for group in workloads.chunk_by(|_, next| next.follows()) {
        let first = seen.len();
        for _ in group {
            seen.push(servers.iter().map(|_| Vec::with_capacity(rounds)).collect::<Vec<_>>());
        }
        for round in 0..rounds {
            for (workload, seen) in group.iter().zip(&mut seen[first..]) {
                observer.progress(&format!("{}: round {} of {rounds}", workload.name(), round + 1));
                for i in 0..servers.len() {
                    // Each round begins with another server, so that no server always follows the
                    // same server.
                    let turn = (i + round) % servers.len();
                    let result = run(&servers[turn], workload);
                    // The signal that ends this program usually ends the clients and servers too.
                    if observer.is_stopped() {
                        return Ok(());
                    }
                    seen[turn].push(result?);
                }
            }
        }
        observer.rows(&report(&seen));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Step(&'static str, bool);

    impl BenchWorkload for Step {
        fn name(&self) -> String {
            self.0.into()
        }

        fn follows(&self) -> bool {
            self.1
        }
    }

    const STEPS: [Step; 4] =
        [Step("read", false), Step("make", false), Step("find", true), Step("write", false)];

    /// Ends the measurement after `last` reports.
    struct Reader {
        heard: Vec<String>,
        reports: Vec<String>,
        last: usize,
    }

    impl Observer for Reader {
        fn progress(&mut self, text: &str) {
            self.heard.push(text.into());
        }

        fn rows(&mut self, so_far: &(impl Serialize + Display)) {
            self.reports.push(so_far.to_string());
        }

        fn is_stopped(&self) -> bool {
            self.reports.len() >= self.last
        }
    }

    /// The runs in order, and the reports that the reader received.
    fn measured(last: usize, fails: Option<&str>) -> (Vec<String>, Reader, Result<(), BenchError>) {
        let mut reader = Reader { heard: Vec::new(), reports: Vec::new(), last };
        let mut runs = Vec::new();
        let run = |server: &char, step: &Step| {
            runs.push(format!("{} {server}", step.0));
            if fails == Some(step.0) { Err(BenchError::new("killed")) } else { Ok(*server) }
        };
        let report = |seen: &[Vec<Vec<char>>]| {
            let row = |(step, servers): (&Step, &Vec<Vec<char>>)| format!("{} {servers:?} ", step.0);
            STEPS.iter().zip(seen).map(row).collect::<String>()
        };
        let result = interleaved(2, &STEPS, &['a', 'b'], &mut reader, run, report);
        (runs, reader, result)
    }

    #[test]
    fn rows_are_reported_as_soon_as_their_rounds_are_done() {
        let (runs, reader, result) = measured(9, None);
        result.unwrap();
        let order = "read a,read b,read b,read a,make a,make b,find a,find b,make b,make a,find b,find a,\
                     write a,write b,write b,write a";
        assert_eq!(runs.join(","), order);
        let row = |name: &str| format!("{name} [['a', 'a'], ['b', 'b']] ");
        let [read, make, find, write] = ["read", "make", "find", "write"].map(row);
        let (first, then) = (read.clone(), format!("{read}{make}{find}"));
        assert_eq!(reader.reports, [first, then.clone(), then + &write]);
        assert_eq!(&reader.heard[..2], ["read: round 1 of 2", "read: round 2 of 2"]);
    }

    #[test]
    fn a_measurement_that_is_ended_keeps_its_rows() {
        let (runs, reader, result) = measured(1, None);
        result.unwrap();
        assert_eq!((runs.len(), reader.reports.len()), (5, 1), "{runs:?}");
        let (_, reader, result) = measured(1, Some("make"));
        assert!(result.is_ok() && reader.reports.len() == 1, "the signal reaches clients as well");
    }

    #[test]
    fn a_failure_ends_the_measurement_after_its_rows() {
        let (_, reader, result) = measured(9, Some("find"));
        assert_eq!(result.unwrap_err().to_string(), "killed");
        assert_eq!(reader.reports.len(), 1);
    }

    #[test]
    fn a_name_that_no_workload_has_is_refused() {
        let only = |only: &str| InterleavedRounds {
            underseal: PathBuf::new(),
            rounds: 1,
            runtime: Duration::ZERO,
            only: Some(only.into()),
            before: None,
        };
        let error = only("sync").wanted(STEPS).err().unwrap();
        assert_eq!(error.to_string(), "no workload has \"sync\" in its name");
        assert_eq!(only("i").wanted(STEPS).unwrap().len(), 2);
    }
}
