//! Medians and ratios, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use super::driver::VhostUserWorkload;
use super::servers;
use crate::Machine;
use crate::comparison::{self, ServerRow};
use crate::fio::FioResult;
use crate::place::SocketServer;
use crate::rounds::BenchWorkload;

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct VhostUserReport {
    /// The machine.
    pub machine: Machine,
    /// Whether servers and client were pinned to separate processors.
    pub pinned: bool,
    /// The rows by workload, then by server.
    pub rows: Vec<ServerRow>,
}

pub(super) fn report(
    machine: &Machine,
    pinned: bool,
    workloads: &[VhostUserWorkload],
    servers: &[SocketServer],
    seen: &[Vec<Vec<FioResult>>],
) -> VhostUserReport {
    let names: Vec<_> = servers.iter().map(|server| server.name).collect();
    let workloads: Vec<_> = workloads.iter().map(VhostUserWorkload::name).collect();
    VhostUserReport {
        machine: machine.clone(),
        pinned,
        rows: comparison::rows(&workloads, &names, seen, goal),
    }
}

fn goal(server: &'static str, workload: &str) -> Option<f64> {
    match server {
        _ if !workload.starts_with("4k") || !workload.ends_with("depth 32") => None,
        servers::OURS_NULL => Some(0.9),
        servers::DAEMON => Some(3.0),
        _ => None,
    }
}

impl fmt::Display for VhostUserReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        let pinned =
            if self.pinned { "each on a separate processor" } else { "wherever the system put them" };
        writeln!(f, "{cpu}, {processors} processors; AES kernel {chosen}; client: libblkio's virtio driver")?;
        writeln!(
            f,
            "aes-xts-plain64, 512-bit keys; images in memory; one ring; client and server {pinned}; ratio: underseal \
             with 4 KiB sectors over this one"
        )?;
        comparison::table(f, &self.rows)
    }
}
