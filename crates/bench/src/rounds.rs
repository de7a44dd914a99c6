//! Every server under every workload, in turn, so many rounds: a noisy neighbour meets all of them alike.

use std::path::PathBuf;
use std::time::Duration;

/// Which program is set beside its peers, under what, and for how long.
#[derive(Debug, Clone)]
pub struct InterleavedRounds {
    /// The command that serves our volumes.
    pub underseal: PathBuf,
    /// How often every server, mount or disk meets every workload.
    pub rounds: usize,
    /// How long each time.
    pub runtime: Duration,
    /// Only the workloads whose name contains this.
    pub only: Option<String>,
}

impl InterleavedRounds {
    /// Whether a workload is among those that were asked for.
    pub(crate) fn want(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }
}

/// What was seen: by workload, by server, round by round. `progress` hears what is being done.
///
/// # Errors
/// The first that `run` ends with.
pub(crate) fn interleaved<W, S, T, E>(
    rounds: usize,
    workloads: &[W],
    name: impl Fn(&W) -> String,
    servers: &[S],
    mut progress: impl FnMut(&str),
    mut run: impl FnMut(&S, &W) -> Result<T, E>,
) -> Result<Vec<Vec<Vec<T>>>, E> {
    let mut seen: Vec<Vec<Vec<T>>> =
        workloads.iter().map(|_| servers.iter().map(|_| Vec::with_capacity(rounds)).collect()).collect();
    for round in 0..rounds {
        for (workload, seen) in workloads.iter().zip(&mut seen) {
            progress(&format!("round {} of {rounds}: {}", round + 1, name(workload)));
            for i in 0..servers.len() {
                // Each round begins with another server: none always follows the same one.
                let turn = (i + round) % servers.len();
                seen[turn].push(run(&servers[turn], workload)?);
            }
        }
    }
    Ok(seen)
}
