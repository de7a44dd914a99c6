//! A block device of ours compared with the kernel's own dm-crypt, each on a RAM disk: real
//! requests by fio, direct, interleaved.
//!
//! ```text
//!   ublk()        every workload x every disk, in turn, in each of the rounds
//!     disks       ours (cipher, no cipher), dm-crypt (default, without its work queues), RAM disk
//!     fio         the client: libaio, several requests in flight
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

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct UblkOptions {
    /// The rounds of the benchmark.
    pub turns: InterleavedRounds,
    /// RAM disks, one for each measured disk. All data on them are lost.
    pub devices: Vec<PathBuf>,
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When too few RAM disks are given, a tool is missing, or a server or client fails.
pub fn ublk(options: &UblkOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let workloads = options.turns.wanted(fio::WORKLOADS)?;
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    observer.progress("making and filling the disks");
    let disks = disks::start(options)?;
    for disk in &disks {
        fio::fill(disk)?;
    }
    let run = |disk: &_, workload: &_| fio::run(disk, *workload, options.turns.runtime);
    let report = |seen: &[_]| report::report(&machine, &workloads, &disks, seen);
    interleaved(options.turns.rounds, &workloads, &disks, observer, run, report)
}
