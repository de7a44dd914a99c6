//! The client: fio, with so many requests in flight.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::BenchError;
use super::disks::Disk;
use crate::nbd::{Seen, seen};

/// Requests of one kind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workload {
    kind: &'static str,
    kib: u32,
    depth: u32,
}

pub(super) const WORKLOADS: [Workload; 8] = [
    Workload { kind: "randread", kib: 4, depth: 1 },
    Workload { kind: "randread", kib: 4, depth: 32 },
    Workload { kind: "randwrite", kib: 4, depth: 1 },
    Workload { kind: "randwrite", kib: 4, depth: 32 },
    Workload { kind: "randread", kib: 64, depth: 8 },
    Workload { kind: "randwrite", kib: 64, depth: 8 },
    Workload { kind: "read", kib: 1024, depth: 4 },
    Workload { kind: "write", kib: 1024, depth: 4 },
];

impl Workload {
    /// `4k randread depth 1`
    pub(super) fn name(&self) -> String {
        let Self { kind, kib, depth } = *self;
        let block = if kib >= 1024 { format!("{}M", kib / 1024) } else { format!("{kib}k") };
        format!("{block} {kind} depth {depth}")
    }
}

/// Writes every byte once, so that nobody reads holes.
pub(super) fn fill(disk: &Disk) -> Result<(), BenchError> {
    fio(disk, &["--rw=write", "--bs=1m", "--iodepth=4"]).map(drop)
}

pub(super) fn run(disk: &Disk, workload: Workload, runtime: Duration) -> Result<Seen, BenchError> {
    let arguments = [
        format!("--rw={}", workload.kind),
        format!("--bs={}k", workload.kib),
        format!("--iodepth={}", workload.depth),
        format!("--runtime={}ms", runtime.as_millis()),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--time_based", "--norandommap", "--randrepeat=0"]);
    let report = fio(disk, &arguments)?;
    // Of the kernel's threads nobody says for whom they work.
    seen(&report, Duration::ZERO)
        .ok_or_else(|| BenchError::new(format!("fio's report over {} cannot be read", disk.name)))
}

fn fio(disk: &Disk, arguments: &[&str]) -> Result<Value, BenchError> {
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=libaio", "--direct=1", "--thread", "--output-format=json"])
        .arg(format!("--filename={}", disk.path.display()))
        .args(arguments)
        .output()
        .map_err(|e| BenchError::because("fio cannot be run: install the package fio", e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let report = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok());
    report.filter(|_| output.status.success()).ok_or_else(|| {
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        BenchError::new(format!("fio over {} ended with {}: {last}", disk.name, output.status))
    })
}
