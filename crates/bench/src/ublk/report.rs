//! What the rounds came to.

use std::fmt;

use serde::Serialize;

use super::disks::{Disk, NULL, OURS};
use super::fio::Workload;
use crate::nbd::{Seen, medians};
use crate::{Machine, Range};

/// One disk under one workload.
#[derive(Debug, Clone, Serialize)]
pub struct UblkRow {
    /// `4k randread depth 1`
    pub workload: String,
    /// Whose disk.
    pub disk: &'static str,
    /// Medians over the rounds.
    pub median: Seen,
    /// Our requests a second over this one's, round by round.
    pub ours_over_this: Range,
    /// What the ratio is meant to reach.
    pub goal: Option<f64>,
    /// Every round.
    pub rounds: Vec<Seen>,
}

/// All that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct UblkReport {
    /// Where.
    pub machine: Machine,
    /// Each workload with each disk.
    pub rows: Vec<UblkRow>,
}

pub(super) fn report(
    machine: Machine,
    workloads: &[Workload],
    disks: &[Disk],
    seen: &[Vec<Vec<Seen>>],
) -> UblkReport {
    let ours = disks.iter().position(|disk| disk.name == OURS).unwrap_or(0);
    let mut rows = Vec::new();
    for (workload, seen) in workloads.iter().zip(seen) {
        let iops = |rounds: &[Seen]| rounds.iter().map(|seen| seen.iops).collect::<Vec<_>>();
        for (disk, rounds) in disks.iter().zip(seen) {
            rows.push(UblkRow {
                workload: workload.name(),
                disk: disk.name,
                median: medians(rounds),
                ours_over_this: Range::of_ratios(&iops(&seen[ours]), &iops(rounds)),
                goal: (disk.name == NULL).then_some(0.9),
                rounds: rounds.clone(),
            });
        }
    }
    UblkReport { machine, rows }
}

impl fmt::Display for UblkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        writeln!(f, "{cpu}, {processors} processors; AES kernel {chosen}; client: fio, libaio, direct")?;
        writeln!(
            f,
            "aes-xts-plain64, 512-bit keys, 4 KiB sectors, RAM disks; ratio: underseal with the cipher over this one"
        )?;
        if cpu.contains("TCG") {
            writeln!(
                f,
                "This machine is emulated: AES costs it tens of times more than a processor, and so does the kernel's \
                 code; only ratios between disks with a cipher say something."
            )?;
        }
        let mut workload = "";
        for row in &self.rows {
            if workload != row.workload {
                workload = &row.workload;
                writeln!(
                    f,
                    "\n{workload:<28}{:>9}{:>9}{:>9}{:>9}   ratio (least..most)",
                    "IOPS", "MB/s", "p50 us", "p99 us"
                )?;
            }
            let Seen { iops, mb_per_s, p50_us, p99_us, .. } = row.median;
            let Range { least, median: ratio, most } = row.ours_over_this;
            write!(
                f,
                "  {:<26}{iops:>9.0}{mb_per_s:>9.1}{p50_us:>9.0}{p99_us:>9.0}   {ratio:.2} ({least:.2}..{most:.2})",
                row.disk
            )?;
            match row.goal {
                Some(goal) => writeln!(f, "   goal {goal}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
