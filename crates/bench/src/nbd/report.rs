//! Medians and ratios, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use super::fio::NbdWorkload;
use super::servers::{self, NbdServerProcess};
use crate::Machine;
use crate::comparison::{self, ServerRow};
use crate::fio::FioResult;
use crate::rounds::BenchWorkload;

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct NbdReport {
    /// The machine.
    pub machine: Machine,
    /// The rows by workload, then by server.
    pub rows: Vec<ServerRow>,
}

pub(super) fn report(
    machine: &Machine,
    workloads: &[NbdWorkload],
    servers: &[NbdServerProcess],
    seen: &[Vec<Vec<FioResult>>],
) -> NbdReport {
    let names: Vec<_> = servers.iter().map(|server| server.name).collect();
    let titles: Vec<_> = workloads.iter().map(NbdWorkload::name).collect();
    let of_title = |title: &str| workloads.iter().find(|workload| workload.name() == title);
    let goal = |server, title: &str| of_title(title).and_then(|workload| goal(server, workload));
    NbdReport { machine: machine.clone(), rows: comparison::rows(&titles, &names, seen, goal) }
}

fn goal(server: &str, workload: &NbdWorkload) -> Option<f64> {
    match server {
        servers::NBDKIT => workload.goal_nbdkit,
        servers::QEMU => workload.goal_qemu,
        servers::OURS_NULL if workload.block == 4096 && workload.depth > 1 => Some(0.93),
        _ => None,
    }
}

impl fmt::Display for NbdReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        writeln!(
            f,
            "{cpu}, {processors} processors; AES kernel {chosen}; client: fio's nbd engine, one connection"
        )?;
        writeln!(
            f,
            "aes-xts-plain64, 512-bit keys; images in memory; ratio: underseal with 4 KiB sectors over this one"
        )?;
        comparison::table(f, &self.rows)
    }
}
