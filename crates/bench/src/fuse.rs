//! The mounted volume beside its peers and the bare transport: real requests by fio, direct, interleaved.
//!
//! ```text
//!   fuse()        every workload x every server, in turn, so many rounds
//!     servers     ours (cipher, no cipher, no device), a fuser file in memory, nbdfuse over qemu-nbd,
//!                 qemu-storage-daemon: each with an image and a mount of its own
//!     fio         the client: threads that read or write the file past the page cache
//!     report      medians, ratios round by round
//! ```

mod fio;
mod memory;
mod report;
mod servers;

use std::path::PathBuf;
use std::time::Duration;

use crate::Machine;
use crate::nbd::NbdError as BenchError;

pub use memory::serve_fuse_memory;
pub use report::{FuseReport, FuseRow};
pub use servers::serve_null_memory;

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// The command that mounts our volumes: this program.
    pub underseal: PathBuf,
    /// Where images and mounts lie: a file system in memory.
    pub directory: PathBuf,
    /// Each image's bytes.
    pub size: u64,
    /// Threads of the servers that let them be chosen.
    pub threads: u16,
    /// How often every server meets every workload.
    pub rounds: usize,
    /// How long each time.
    pub runtime: Duration,
    /// Only the workloads whose name contains this.
    pub only: Option<String>,
}

/// Measures. `progress` hears what is being done.
///
/// # Errors
/// When a tool is missing or a server or client fails.
pub fn fuse(options: &FuseOptions, mut progress: impl FnMut(&str)) -> Result<FuseReport, BenchError> {
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be told", e))?;
    progress("making and filling the images");
    let (servers, left_out) = servers::start(options)?;
    for server in &servers {
        fio::fill(server, options.size)?;
    }
    let only = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let workloads: Vec<_> = fio::WORKLOADS.into_iter().filter(|w| only(&w.name())).collect();
    let mut seen = vec![vec![Vec::with_capacity(options.rounds); servers.len()]; workloads.len()];
    for round in 0..options.rounds {
        for (workload, seen) in workloads.iter().zip(&mut seen) {
            progress(&format!("round {} of {}: {}", round + 1, options.rounds, workload.name()));
            for i in 0..servers.len() {
                // Each round begins with another server: none always follows the same one.
                let turn = (i + round) % servers.len();
                seen[turn].push(fio::run(&servers[turn], *workload, options)?);
            }
        }
    }
    Ok(report::report(machine, options.threads, &workloads, &servers, &seen, left_out))
}
