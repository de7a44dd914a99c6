//! Medians and ratios, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use super::disks::{BenchDisk, NULL};
use super::fio::UblkWorkload;
use crate::Machine;
use crate::comparison::{self, ServerRow};
use crate::fio::FioResult;
use crate::rounds::BenchWorkload;

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct UblkReport {
    /// The machine.
    pub machine: Machine,
    /// The rows by workload, then by disk.
    pub rows: Vec<ServerRow>,
}

pub(super) fn report(
    machine: &Machine,
    workloads: &[UblkWorkload],
    disks: &[BenchDisk],
    seen: &[Vec<Vec<FioResult>>],
) -> UblkReport {
    let names: Vec<_> = disks.iter().map(|disk| disk.name).collect();
    let workloads: Vec<_> = workloads.iter().map(UblkWorkload::name).collect();
    let goal = |disk: &str, _: &str| (disk == NULL).then_some(0.9);
    UblkReport { machine: machine.clone(), rows: comparison::rows(&workloads, &names, seen, goal) }
}

impl fmt::Display for UblkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        writeln!(f, "{cpu}, {processors} processors; AES kernel {chosen}; client: fio, libaio, direct")?;
        writeln!(
            f,
            "aes-xts-plain64, 512-bit keys, 4 KiB sectors, on RAM disks; ratio: underseal with the cipher over this one; \
             no processor time, since of the kernel's threads nobody says for whom they work"
        )?;
        if cpu.contains("TCG") {
            writeln!(
                f,
                "This machine is emulated: AES costs it tens of times what it costs a processor, next to all else."
            )?;
        }
        comparison::table(f, &self.rows)
    }
}
