//! A block device of ours beside the kernel's own dm-crypt, each on a RAM disk: real requests by
//! fio, direct, interleaved.
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

use crate::Machine;
use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;
use crate::rounds::{InterleavedRounds, interleaved};

pub use report::UblkReport;

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct UblkOptions {
    /// Of the benchmark.
    pub turns: InterleavedRounds,
    /// RAM disks, one for each that is measured. What is on them is lost.
    pub devices: Vec<PathBuf>,
}

/// Measures, and tells the observer.
///
/// # Errors
/// When there are too few RAM disks, a tool is missing, or a server or client fails.
pub fn ublk(options: &UblkOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let workloads = options.turns.wanted(fio::WORKLOADS)?;
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be told", e))?;
    observer.progress("making and filling the disks");
    let disks = disks::start(options)?;
    for disk in &disks {
        fio::fill(disk)?;
    }
    let run = |disk: &_, workload: &_| fio::run(disk, *workload, options.turns.runtime);
    let report = |seen: &[_]| report::report(&machine, &workloads, &disks, seen);
    interleaved(options.turns.rounds, &workloads, &disks, observer, run, report)
}
