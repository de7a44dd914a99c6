//! The disk of a virtual machine compared with qemu-storage-daemon's, under one driver: libblkio's,
//! interleaved.
//!
//! ```text
//!   vhost_user()   every workload x every server, in turn, in each of the rounds
//!     servers      ours (cipher, no cipher), qemu-storage-daemon (luks, no cipher): one ring each
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
use crate::observer::Observer;
use crate::place::SocketServer;
use crate::rounds::{InterleavedRounds, interleaved};

pub use report::VhostUserReport;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct VhostUserOptions {
    /// The rounds of the benchmark.
    pub turns: InterleavedRounds,
    /// The place of the images: a file system in memory. Each needs `size`.
    pub directory: PathBuf,
    /// The size of each image in bytes.
    pub size: u64,
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When a tool is missing or a server or the driver fails.
pub fn vhost_user(options: &VhostUserOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let workloads = options.turns.wanted(driver::WORKLOADS)?;
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    observer.progress("making and filling the images");
    let servers = servers::start(options)?;
    let pinned = servers::pin_client();
    for server in &servers {
        let _turn = server.begin_turn()?;
        driver::fill(server, options.size)?;
    }
    let run = |server: &SocketServer, workload: &_| -> Result<FioResult, BenchError> {
        let _turn = server.begin_turn()?;
        driver::run(server, *workload, options)
    };
    let report = |seen: &[_]| report::report(&machine, pinned, &workloads, &servers, seen);
    interleaved(options.turns.rounds, &workloads, &servers, observer, run, report)
}
