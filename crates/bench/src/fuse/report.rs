//! Medians and ratios, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use super::fio::FuseWorkload;
use super::servers::{self, MountedPeer};
use crate::Machine;
use crate::comparison::{self, ServerRow};
use crate::fio::FioResult;
use crate::rounds::BenchWorkload;

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct FuseReport {
    /// The machine.
    pub machine: Machine,
    /// The number of threads of our servers and fuser's.
    pub threads: u16,
    /// The rows by workload, then by server.
    pub rows: Vec<ServerRow>,
    /// The peers that could not be measured, with reasons.
    pub left_out: Vec<String>,
}

pub(super) fn report(
    machine: &Machine,
    threads: u16,
    workloads: &[FuseWorkload],
    servers: &[MountedPeer],
    seen: &[Vec<Vec<FioResult>>],
    left_out: &[String],
) -> FuseReport {
    let names: Vec<_> = servers.iter().map(|server| server.name).collect();
    let workloads: Vec<_> = workloads.iter().map(FuseWorkload::name).collect();
    let rows = comparison::rows(&workloads, &names, seen, |server, _| goal(server));
    FuseReport { machine: machine.clone(), threads, rows, left_out: left_out.to_vec() }
}

fn goal(server: &str) -> Option<f64> {
    match server {
        servers::MEMORY => Some(0.9),
        servers::NBDFUSE => Some(2.0),
        servers::DAEMON => Some(1.0),
        _ => None,
    }
}

impl fmt::Display for FuseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        writeln!(
            f,
            "{cpu}, {processors} processors; AES kernel {chosen}; client: fio, direct, a request a thread"
        )?;
        writeln!(
            f,
            "aes-xts-plain64, 512-bit keys; images in memory; underseal and fuser have {} threads; ratio: underseal \
             with 4 KiB sectors over this one",
            self.threads
        )?;
        self.left_out.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        comparison::table(f, &self.rows)
    }
}
