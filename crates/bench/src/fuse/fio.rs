//! The client: fio, whose threads each wait for one request at a time.

use std::process::Command;

use serde_json::Value;

use super::servers::Server;
use super::{BenchError, FuseOptions};
use crate::nbd::{Seen, seen};

/// The longest request's bytes.
const BLOCK: u64 = 1 << 20;

/// Requests of one kind by so many threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workload {
    kind: &'static str,
    kib: u32,
    threads: u32,
}

pub(super) const WORKLOADS: [Workload; 12] = [
    Workload { kind: "randread", kib: 4, threads: 1 },
    Workload { kind: "randread", kib: 4, threads: 4 },
    Workload { kind: "randwrite", kib: 4, threads: 1 },
    Workload { kind: "randwrite", kib: 4, threads: 4 },
    Workload { kind: "randread", kib: 128, threads: 1 },
    Workload { kind: "randread", kib: 128, threads: 4 },
    Workload { kind: "randwrite", kib: 128, threads: 1 },
    Workload { kind: "randwrite", kib: 128, threads: 4 },
    Workload { kind: "read", kib: 1024, threads: 1 },
    Workload { kind: "read", kib: 1024, threads: 4 },
    Workload { kind: "write", kib: 1024, threads: 1 },
    Workload { kind: "write", kib: 1024, threads: 4 },
];

impl Workload {
    /// `4k randread threads 1`
    pub(super) fn name(&self) -> String {
        let Self { kind, kib, threads } = *self;
        let block = if kib >= 1024 { format!("{}M", kib / 1024) } else { format!("{kib}k") };
        format!("{block} {kind} threads {threads}")
    }
}

/// Writes every byte once, so that no server reads holes.
pub(super) fn fill(server: &Server, size: u64) -> Result<(), BenchError> {
    fio(server, &["--rw=write", "--bs=1m", &format!("--size={size}")]).map(drop)
}

pub(super) fn run(server: &Server, workload: Workload, options: &FuseOptions) -> Result<Seen, BenchError> {
    let share = options.size / u64::from(workload.threads) / BLOCK * BLOCK;
    let arguments = [
        format!("--rw={}", workload.kind),
        format!("--bs={}k", workload.kib),
        format!("--numjobs={}", workload.threads),
        // Each thread has a part of the file to itself.
        format!("--size={share}"),
        format!("--offset_increment={share}"),
        format!("--runtime={}ms", options.turns.runtime.as_millis()),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--time_based", "--norandommap", "--randrepeat=0"]);
    let before = server.cpu_time()?;
    let report = fio(server, &arguments)?;
    let cpu = server.cpu_time()?.saturating_sub(before);
    seen(&report, cpu)
        .ok_or_else(|| BenchError::new(format!("fio's report over {} cannot be read", server.name)))
}

fn fio(server: &Server, arguments: &[&str]) -> Result<Value, BenchError> {
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=psync", "--direct=1", "--thread", "--group_reporting"])
        .args(["--output-format=json", "--fallocate=none"])
        .arg(format!("--filename={}", server.file.display()))
        .args(arguments)
        .output()
        .map_err(|e| BenchError::because("fio cannot be run: install the package fio", e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let report = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok());
    report.filter(|_| output.status.success()).ok_or_else(|| {
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        BenchError::new(format!("fio over {} ended with {}: {last}", server.name, output.status))
    })
}
