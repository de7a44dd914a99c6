//! The whole server compared with its peers: real clients, one image each on a RAM disk,
//! interleaved.
//!
//! ```text
//!   nbd()         every workload x every server, in turn, in each of the rounds
//!     servers     ours (ciphers, no cipher, no device), qemu-nbd, nbdkit: one image each
//!     remote      the same over other servers instead of images
//!     fio         the client: fio's nbd engine, and its results
//!     report      medians, ratios round by round, processor time for a request
//! ```

mod fio;
mod remote;
mod report;
mod servers;

use std::path::PathBuf;

use crate::Machine;
use crate::observer::Observer;
use crate::rounds::{InterleavedRounds, interleaved};

pub use fio::NbdWorkload;
pub use report::NbdReport;
pub use servers::serve_memory;
pub(crate) use servers::{missing, process_time, run};

/// The reason why a measurement failed: the action and its cause.
#[derive(Debug)]
pub struct NbdError {
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl NbdError {
    pub(crate) fn new(context: impl Into<String>) -> Self {
        Self { context: context.into(), source: None }
    }

    pub(crate) fn because(
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self { context: context.into(), source: Some(source.into()) }
    }
}

impl std::fmt::Display for NbdError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.context)
    }
}

impl std::error::Error for NbdError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as _)
    }
}

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct NbdOptions {
    /// The rounds of the benchmark.
    pub turns: InterleavedRounds,
    /// The place of the images: a file system in memory. Each needs `size`.
    pub directory: PathBuf,
    /// The size of each image in bytes.
    pub size: u64,
    /// The volumes are on other NBD servers instead of files.
    pub over_nbd: bool,
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When a tool is missing or a server or client fails.
pub fn nbd(options: &NbdOptions, observer: &mut impl Observer) -> Result<(), NbdError> {
    fio::check()?;
    let workloads = options.turns.wanted(fio::WORKLOADS)?;
    let machine = Machine::this().map_err(|e| NbdError::because("this machine cannot be identified", e))?;
    observer.progress("making and filling the images");
    let servers = servers::start(options)?;
    for server in &servers {
        let _turn = server.begin_turn()?;
        fio::fill(server, options.size)?;
    }
    let run = |server: &servers::NbdServerProcess, workload: &_| {
        let _turn = server.begin_turn()?;
        fio::run(server, *workload, options)
    };
    let report = |seen: &[_]| report::report(&machine, &workloads, &servers, seen);
    interleaved(options.turns.rounds, &workloads, &servers, observer, run, report)
}
