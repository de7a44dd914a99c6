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
use std::time::Duration;

use crate::Machine;
use crate::nbd::{NbdError as BenchError, Seen};
use crate::rounds::interleaved;

pub use report::VhostUserReport;

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct VhostUserOptions {
    /// The command that serves our volumes: this program.
    pub underseal: PathBuf,
    /// Where the images lie: a file system in memory. Each takes `size`.
    pub directory: PathBuf,
    /// Each image's bytes.
    pub size: u64,
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
    let only = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let workloads: Vec<_> = driver::WORKLOADS.into_iter().filter(|w| only(&w.name())).collect();
    let run =
        |server: &_, workload: &_| -> Result<Seen, BenchError> { driver::run(server, *workload, options) };
    let seen = interleaved(options.rounds, &workloads, driver::Workload::name, &servers, progress, run)?;
    Ok(report::report(machine, pinned, &workloads, &servers, &seen))
}
