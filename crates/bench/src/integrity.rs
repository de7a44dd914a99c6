//! The cost of authentication: volumes with tags compared with the same volume without, through NBD
//! and FUSE, interleaved.
//!
//! ```text
//!   integrity()   every load x every volume, in turn, in each of the rounds
//!     volumes     aes-xts alone, AES-GCM and HMAC-SHA256 with and without a journal: one server
//!                 each, with two exports, NBD and FUSE
//!     fio         the client: its nbd engine, or libaio on the mounted file, past the page cache
//!     report      medians, ratios round by round
//! ```

mod fio;
mod report;
mod volumes;

use std::path::PathBuf;

use crate::Machine;
use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;
use crate::rounds::{InterleavedRounds, interleaved};

pub use report::{IntegrityReport, IntegrityRow};

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct IntegrityBenchOptions {
    /// The rounds of the benchmark.
    pub turns: InterleavedRounds,
    /// The place of images and mounts: a file system in memory. Each image needs `size` and some
    /// more.
    pub directory: PathBuf,
    /// The size of each volume in bytes.
    pub size: u64,
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When a tool is missing or a server or client fails.
pub fn integrity(options: &IntegrityBenchOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let loads = options.turns.wanted(fio::LOADS)?;
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    observer.progress("making and filling the volumes");
    let volumes = volumes::start(options)?;
    for volume in &volumes {
        fio::fill(volume, options.size)?;
    }
    let run = |volume: &_, load: &_| fio::run(volume, *load, options);
    let report = |seen: &[_]| report::report(&machine, &loads, &volumes, seen);
    interleaved(options.turns.rounds, &loads, &volumes, observer, run, report)
}
