//! A volume on an image of a Ceph cluster, compared with the same path without a cipher, librbd's
//! own LUKS2 and librbd alone, interleaved.
//!
//! ```text
//!   rbd()        every workload x every client, in turn, in each of the rounds; first reads
//!     images     one for each process, made and removed with Ceph's tool
//!     clients    the measured processes: their orders and answers
//!     drive      a measured process: reads orders, writes figures
//!       ours     our queue, over the image; with and without a cipher
//!       librbd   librbd's own calls, with and without its encryption
//!     first      from a program's start to the first bytes
//!     report     medians, ratios round by round, processor time for a request
//! ```

mod clients;
mod drive;
mod first;
mod images;
mod librbd;
mod ours;
mod report;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Machine;
use crate::nbd::NbdError as BenchError;
use crate::observer::Observer;
use crate::rounds::{BenchWorkload, InterleavedRounds, interleaved};

pub use drive::{DriveOptions, DriveSubject, drive_rbd};
pub use report::RbdReport;

/// The options of the measurement.
#[derive(Debug, Clone)]
pub struct RbdOptions {
    /// The rounds of the benchmark.
    pub turns: InterleavedRounds,
    /// The cluster's configuration. `None` stands for Ceph's default places.
    pub conf: Option<PathBuf>,
    /// The pool of the images.
    pub pool: String,
    /// The size of each volume in bytes.
    pub size: u64,
}

/// A stream of requests of one kind, at random places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Workload {
    writes: bool,
    block: usize,
    depth: usize,
}

const fn workload(writes: bool, kib: usize, depth: usize) -> Workload {
    Workload { writes, block: kib << 10, depth }
}

const WORKLOADS: [Workload; 4] =
    [workload(false, 4, 32), workload(true, 4, 32), workload(false, 1024, 8), workload(true, 1024, 8)];

impl BenchWorkload for Workload {
    /// `4k randread depth 32`
    fn name(&self) -> String {
        let (size, unit) =
            if self.block >> 20 > 0 { (self.block >> 20, "M") } else { (self.block >> 10, "k") };
        format!("{size}{unit} rand{} depth {}", if self.writes { "write" } else { "read" }, self.depth)
    }
}

/// The requests of a process under a workload, and their cost.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Did {
    requests: u64,
    seconds: f64,
    /// The processor time of all its threads.
    cpu_seconds: f64,
}

/// Measures, and reports to the observer.
///
/// # Errors
/// When Ceph's tool or the cluster is missing, or a client fails.
pub fn rbd(options: &RbdOptions, observer: &mut impl Observer) -> Result<(), BenchError> {
    let workloads = options.turns.wanted(WORKLOADS)?;
    let machine = Machine::this().map_err(|e| BenchError::because("this machine cannot be identified", e))?;
    observer.progress("making the images");
    let images = images::Images::new(options)?;
    let first = first::measure(options, &images, observer)?;
    observer.progress("filling the images");
    let clients = clients::start(&images)?;
    let run = |client: &clients::RbdClient, workload: &Workload| client.run(*workload, options.turns.runtime);
    let report = |seen: &[_]| report::report(&machine, &workloads, &clients, seen, &first);
    interleaved(options.turns.rounds, &workloads, &clients, observer, run, report)
}
