//! Medians and ratios, for programs (serde) and for people (`Display`).

use std::fmt;

use serde::Serialize;

use super::fio::Workload;
use super::servers::{self, Server};
use crate::nbd::{Seen, medians};
use crate::{Machine, Range};

/// One server under one workload, over all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct FuseRow {
    /// Which requests.
    pub workload: String,
    /// Whose server.
    pub server: &'static str,
    /// Medians over the rounds.
    pub median: Seen,
    /// Our requests a second over this server's, round by round.
    pub ours_over_this: Range,
    /// What we mean to reach.
    pub goal: Option<f64>,
    /// Every round as it was.
    pub rounds: Vec<Seen>,
}

/// All that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct FuseReport {
    /// Where.
    pub machine: Machine,
    /// Threads of our servers and fuser's.
    pub threads: u16,
    /// Workload by workload, server by server.
    pub rows: Vec<FuseRow>,
    /// Peers that could not be measured, and why.
    pub left_out: Vec<String>,
}

pub(super) fn report(
    machine: Machine,
    threads: u16,
    workloads: &[Workload],
    servers: &[Server],
    seen: &[Vec<Vec<Seen>>],
    left_out: Vec<String>,
) -> FuseReport {
    let ours = servers.iter().position(|server| server.name == servers::OURS).unwrap_or(0);
    let mut rows = Vec::new();
    for (workload, seen) in workloads.iter().zip(seen) {
        for (server, rounds) in servers.iter().zip(seen) {
            rows.push(FuseRow {
                workload: workload.name(),
                server: server.name,
                median: medians(rounds),
                ours_over_this: Range::of(seen[ours].iter().zip(rounds).map(|(a, b)| a.iops / b.iops)),
                goal: goal(server.name),
                rounds: rounds.clone(),
            });
        }
    }
    FuseReport { machine, threads, rows, left_out }
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
        let mut workload = "";
        for row in &self.rows {
            if workload != row.workload {
                workload = &row.workload;
                writeln!(
                    f,
                    "\n{workload:<30}{:>9}{:>9}{:>8}{:>8}{:>9}   ratio (least..most)",
                    "IOPS", "MB/s", "p50 us", "p99 us", "cpu us"
                )?;
            }
            let Seen { iops, mb_per_s, p50_us, p99_us, server_cpu_us, .. } = row.median;
            let Range { least, median: ratio, most } = row.ours_over_this;
            write!(
                f,
                "  {:<28}{iops:>9.0}{mb_per_s:>9.0}{p50_us:>8.0}{p99_us:>8.0}{server_cpu_us:>9.2}   \
                 {ratio:.2} ({least:.2}..{most:.2})",
                row.server
            )?;
            match row.goal {
                Some(goal) => writeln!(f, "   goal {goal}")?,
                None => writeln!(f)?,
            }
        }
        self.left_out.iter().try_for_each(|line| writeln!(f, "\n{line}"))
    }
}
