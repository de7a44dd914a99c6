//! The disk of a virtual machine beside qemu-storage-daemon's, under one driver: libblkio's, interleaved.
//!
//! ```text
//!   vhost_user()   every workload x every server, in turn, so many rounds
//!     servers      ours (cipher, no cipher), qemu-storage-daemon (luks, no cipher): one ring, on a processor of its own
//!     driver       the client, on another processor: it waits for signals as a guest does
//!     report       medians, ratios round by round, processor time for a request
//! ```

mod driver;
mod report;
mod servers;

use std::path::PathBuf;

use crate::Machine;
use crate::fio::FioResult;
use crate::nbd::NbdError as BenchError;
use crate::rounds::{InterleavedRounds, interleaved};

pub use report::VhostUserReport;

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct VhostUserOptions {
    /// Of the benchmark.
    pub turns: InterleavedRounds,
    /// Where the images lie: a file system in memory. Each takes `size`.
    pub directory: PathBuf,
    /// Each image's bytes.
    pub size: u64,
}

/// Measures. `progress` hears what is being done.
///
/// # Errors
/// When a tool is missing or a server or the driver fails.
pub fn vhost_user(
    options: &VhostUserOptions,
    mut progress: impl FnMut(&str),
) -> Result<VhostUserReport, BenchError> {
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be told", e))?;
    progress("making and filling the images");
    let servers = servers::start(options)?;
    let pinned = servers::pin_client();
    for server in &servers {
        driver::fill(server, options.size)?;
    }
    let workloads: Vec<_> = driver::WORKLOADS.into_iter().filter(|w| options.turns.want(&w.name())).collect();
    let run = |server: &_, workload: &_| -> Result<FioResult, BenchError> {
        driver::run(server, *workload, options)
    };
    let seen = interleaved(
        options.turns.rounds,
        &workloads,
        driver::VhostUserWorkload::name,
        &servers,
        progress,
        run,
    )?;
    Ok(report::report(machine, pinned, &workloads, &servers, &seen))
}
