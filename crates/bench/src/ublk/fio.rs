//! The client: fio, with several requests in flight.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::BenchError;
use super::disks::BenchDisk;
use crate::fio::{FioResult, block, report, seen};
use crate::rounds::BenchWorkload;

/// Requests of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct UblkWorkload {
    kind: &'static str,
    kib: u32,
    depth: u32,
}

pub(super) const WORKLOADS: [UblkWorkload; 8] = [
    UblkWorkload { kind: "randread", kib: 4, depth: 1 },
    UblkWorkload { kind: "randread", kib: 4, depth: 32 },
    UblkWorkload { kind: "randwrite", kib: 4, depth: 1 },
    UblkWorkload { kind: "randwrite", kib: 4, depth: 32 },
    UblkWorkload { kind: "randread", kib: 64, depth: 8 },
    UblkWorkload { kind: "randwrite", kib: 64, depth: 8 },
    UblkWorkload { kind: "read", kib: 1024, depth: 4 },
    UblkWorkload { kind: "write", kib: 1024, depth: 4 },
];

impl BenchWorkload for UblkWorkload {
    /// `4k randread depth 1`
    fn name(&self) -> String {
        let Self { kind, kib, depth } = *self;
        let block = block(kib);
        format!("{block} {kind} depth {depth}")
    }
}

/// Writes every byte once, so that no read meets a hole.
pub(super) fn fill(disk: &BenchDisk) -> Result<(), BenchError> {
    fio(disk, &["--rw=write", "--bs=1m", "--iodepth=4"]).map(drop)
}

pub(super) fn run(
    disk: &BenchDisk,
    workload: UblkWorkload,
    runtime: Duration,
) -> Result<FioResult, BenchError> {
    let arguments = [
        format!("--rw={}", workload.kind),
        format!("--bs={}k", workload.kib),
        format!("--iodepth={}", workload.depth),
        format!("--runtime={}ms", runtime.as_millis()),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--time_based", "--norandommap"]);
    let report = fio(disk, &arguments)?;
    // The time of Linux's threads cannot be assigned to a disk.
    seen(&report, Duration::ZERO, disk.name)
}

fn fio(disk: &BenchDisk, arguments: &[&str]) -> Result<Value, BenchError> {
    let mut fio = Command::new("fio");
    fio.args(["--ioengine=libaio", "--direct=1"])
        .arg(format!("--filename={}", disk.path.display()))
        .args(arguments);
    report(&mut fio, disk.name)
}
