//! The cost of authentication: volumes with tags beside the same one without, through NBD and FUSE,
//! interleaved.
//!
//! ```text
//!   integrity()   every load x every volume, in turn, so many rounds
//!     volumes     aes-xts alone, AES-GCM and HMAC-SHA256 with and without a journal: each a server with both doors
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

/// What to measure, and for how long.
#[derive(Debug, Clone)]
pub struct IntegrityBenchOptions {
    /// Of the benchmark.
    pub turns: InterleavedRounds,
    /// Where images and mounts lie: a file system in memory. Each image takes `size` and some more.
    pub directory: PathBuf,
    /// Each volume's bytes.
    pub size: u64,
}

/// Measures, and tells the observer.
///
/// # Errors
/// When a tool is missing or a server or client fails.
pub fn integrity(options: &IntegrityBenchOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let loads = options.turns.wanted(fio::LOADS)?;
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be told", e))?;
    observer.progress("making and filling the volumes");
    let volumes = volumes::start(options)?;
    for volume in &volumes {
        fio::fill(volume, options.size)?;
    }
    let run = |volume: &_, load: &_| fio::run(volume, *load, options);
    let report = |seen: &[_]| report::report(&machine, &loads, &volumes, seen);
    interleaved(options.turns.rounds, &loads, &volumes, observer, run, report)
}
