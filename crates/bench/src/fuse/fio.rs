//! The client: fio, each of whose threads waits for one request at a time.

use std::process::Command;

use serde_json::Value;

use super::servers::MountedPeer;
use super::{BenchError, FuseOptions};
use crate::fio::{FioResult, block, report, seen};
use crate::rounds::BenchWorkload;

/// The longest request's bytes.
const BLOCK: u64 = 1 << 20;

/// Requests of one kind by several threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct FuseWorkload {
    kind: &'static str,
    kib: u32,
    threads: u32,
}

pub(super) const WORKLOADS: [FuseWorkload; 12] = [
    FuseWorkload { kind: "randread", kib: 4, threads: 1 },
    FuseWorkload { kind: "randread", kib: 4, threads: 4 },
    FuseWorkload { kind: "randwrite", kib: 4, threads: 1 },
    FuseWorkload { kind: "randwrite", kib: 4, threads: 4 },
    FuseWorkload { kind: "randread", kib: 128, threads: 1 },
    FuseWorkload { kind: "randread", kib: 128, threads: 4 },
    FuseWorkload { kind: "randwrite", kib: 128, threads: 1 },
    FuseWorkload { kind: "randwrite", kib: 128, threads: 4 },
    FuseWorkload { kind: "read", kib: 1024, threads: 1 },
    FuseWorkload { kind: "read", kib: 1024, threads: 4 },
    FuseWorkload { kind: "write", kib: 1024, threads: 1 },
    FuseWorkload { kind: "write", kib: 1024, threads: 4 },
];

impl BenchWorkload for FuseWorkload {
    /// `4k randread threads 1`
    fn name(&self) -> String {
        let Self { kind, kib, threads } = *self;
        let block = block(kib);
        format!("{block} {kind} threads {threads}")
    }
}

/// Writes every byte once, so that no server reads holes.
pub(super) fn fill(server: &MountedPeer, size: u64) -> Result<(), BenchError> {
    fio(server, &["--rw=write", "--bs=1m", &format!("--size={size}")]).map(drop)
}

pub(super) fn run(
    server: &MountedPeer,
    workload: FuseWorkload,
    options: &FuseOptions,
) -> Result<FioResult, BenchError> {
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
    arguments.extend(["--time_based", "--norandommap"]);
    let before = server.cpu_time()?;
    let report = fio(server, &arguments)?;
    let cpu = server.cpu_time()?.saturating_sub(before);
    seen(&report, cpu, server.name)
}

fn fio(server: &MountedPeer, arguments: &[&str]) -> Result<Value, BenchError> {
    let mut fio = Command::new("fio");
    fio.args(["--ioengine=psync", "--direct=1", "--group_reporting", "--fallocate=none"]);
    fio.arg(format!("--filename={}", server.file.display())).args(arguments);
    report(&mut fio, server.name)
}
