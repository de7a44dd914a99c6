//! A block device of ours beside the kernel's own dm-crypt, each on a RAM disk: real requests by fio, direct, interleaved.
//!
//! ```text
//!   ublk()        every workload x every disk, in turn, so many rounds
//!     disks       ours (cipher, no cipher), dm-crypt (as it comes, without its work queues), the bare RAM disk
//!     fio         the client: libaio, so many requests in flight
//!     report      medians, ratios round by round
//! ```

mod disks;
mod fio;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use crate::Machine;
use crate::nbd::NbdError as BenchError;
use crate::rounds::interleaved;

pub use report::UblkReport;

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct UblkOptions {
    /// The command that serves our volumes: this program.
    pub underseal: PathBuf,
    /// RAM disks, one for each that is measured. What is on them is lost.
    pub devices: Vec<PathBuf>,
    /// How often every disk meets every workload.
    pub rounds: usize,
    /// How long each time.
    pub runtime: Duration,
    /// Only the workloads whose name contains this.
    pub only: Option<String>,
}

/// Measures. `progress` hears what is being done.
///
/// # Errors
/// When there are too few RAM disks, a tool is missing, or a server or client fails.
pub fn ublk(options: &UblkOptions, mut progress: impl FnMut(&str)) -> Result<UblkReport, BenchError> {
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be told", e))?;
    progress("making and filling the disks");
    let disks = disks::start(options)?;
    for disk in &disks {
        fio::fill(disk)?;
    }
    let only = |name: &str| options.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let workloads: Vec<_> = fio::WORKLOADS.into_iter().filter(|w| only(&w.name())).collect();
    let run = |disk: &_, workload: &_| fio::run(disk, *workload, options.runtime);
    let seen = interleaved(options.rounds, &workloads, fio::Workload::name, &disks, progress, run)?;
    Ok(report::report(machine, &workloads, &disks, &seen))
}
