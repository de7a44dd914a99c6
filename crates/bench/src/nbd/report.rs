//! Medians and ratios, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use super::fio::NbdWorkload;
use super::servers::{self, NbdServerProcess};
use crate::fio::{FioResult, medians};
use crate::rounds::BenchWorkload;
use crate::{Machine, Range};

/// A server under a workload, over all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct NbdRow {
    /// The requests.
    pub workload: String,
    /// The server's name.
    pub server: &'static str,
    /// Medians over the rounds.
    pub median: FioResult,
    /// The quotient of our requests a second and this server's, round by round: the smallest, the
    /// median, the largest.
    pub ours_over_this: [f64; 3],
    /// The quotient of our p99 latency and this server's: the median of the rounds.
    pub our_p99_over_this: f64,
    /// The project's goal.
    pub goal: Option<f64>,
    /// The results of every round.
    pub rounds: Vec<FioResult>,
}

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct NbdReport {
    /// The machine.
    pub machine: Machine,
    /// The rows by workload, then by server.
    pub rows: Vec<NbdRow>,
}

pub(super) fn report(
    machine: &Machine,
    workloads: &[NbdWorkload],
    servers: &[NbdServerProcess],
    seen: &[Vec<Vec<FioResult>>],
) -> NbdReport {
    let mut rows = Vec::new();
    for (workload, seen) in workloads.iter().zip(seen) {
        // Our server is the first.
        let Some(ours) = seen.first() else { continue };
        for (server, rounds) in servers.iter().zip(seen) {
            let ratios =
                |of: fn(&FioResult) -> f64| Range::of(ours.iter().zip(rounds).map(|(a, b)| of(a) / of(b)));
            let iops = ratios(|s| s.iops);
            rows.push(NbdRow {
                workload: workload.name(),
                server: server.name,
                median: medians(rounds),
                ours_over_this: [iops.least, iops.median, iops.most],
                our_p99_over_this: ratios(|s| s.p99_us).median,
                goal: goal(server.name, workload),
                rounds: rounds.clone(),
            });
        }
    }
    NbdReport { machine: machine.clone(), rows }
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
        let mut workload = "";
        for row in &self.rows {
            if workload != row.workload {
                workload = &row.workload;
                writeln!(
                    f,
                    "\n{workload:<30}{:>9}{:>9}{:>8}{:>8}{:>8}{:>9}   ratio (least..most)   p99 ratio",
                    "IOPS", "MB/s", "p50 us", "p99 us", "p99.9", "cpu us"
                )?;
            }
            let FioResult { iops, mb_per_s, p50_us, p99_us, p999_us, server_cpu_us } = row.median;
            let [least, ratio, most] = row.ours_over_this;
            write!(
                f,
                "  {:<28}{iops:>9.0}{mb_per_s:>9.0}{p50_us:>8.0}{p99_us:>8.0}{p999_us:>8.0}{server_cpu_us:>9.2}   \
                 {ratio:.2} ({least:.2}..{most:.2})   {:.2}",
                row.server, row.our_p99_over_this
            )?;
            match row.goal {
                Some(goal) => writeln!(f, "   goal {goal}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
