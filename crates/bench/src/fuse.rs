//! The mounted volume compared with its peers and the bare transport: real requests by fio, direct,
//! interleaved.
//!
//! ```text
//!   fuse()        every workload x every server, in turn, in each of the rounds
//!     servers     underseal (cipher, no cipher, no device), a fuser file in memory, nbdfuse over
//!                 qemu-nbd, qemu-storage-daemon: each with a separate image and mount
//!     fio         the client: threads that read or write the file past the page cache
//!     report      medians, ratios round by round
//! ```

mod fio;
mod memory;
mod report;
mod servers;

use std::path::PathBuf;

use crate::Machine;
use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;
use crate::rounds::{InterleavedRounds, interleaved};

pub use memory::serve_fuse_memory;
pub use report::FuseReport;
pub use servers::serve_null_memory;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// The rounds of the benchmark.
    pub turns: InterleavedRounds,
    /// The place of images and mounts: a file system in memory.
    pub directory: PathBuf,
    /// The size of each image in bytes.
    pub size: u64,
    /// The number of threads of the servers with this setting.
    pub threads: u16,
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When a tool is missing or a server or client fails.
pub fn fuse(options: &FuseOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let workloads = options.turns.wanted(fio::WORKLOADS)?;
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    observer.progress("making and filling the images");
    let (servers, left_out) = servers::start(options)?;
    for server in &servers {
        fio::fill(server, options.size)?;
    }
    let run = |server: &_, workload: &_| fio::run(server, *workload, options);
    let report =
        |seen: &[_]| report::report(&machine, options.threads, &workloads, &servers, seen, &left_out);
    interleaved(options.turns.rounds, &workloads, &servers, observer, run, report)
}
