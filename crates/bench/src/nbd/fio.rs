//! The client: fio with its nbd engine (libnbd).

use std::process::Command;

use serde::Serialize;
use serde_json::Value;

use super::servers::NbdServerProcess;
use super::{NbdError, NbdOptions};
use crate::fio::{FioResult, block, report, seen};
use crate::rounds::BenchWorkload;

/// A stream of requests of one kind.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct NbdWorkload {
    /// fio's word: `randread`, `write`, ..
    pub kind: &'static str,
    /// The size of a request in bytes.
    pub block: u32,
    /// The number of simultaneous requests.
    pub depth: u32,
    /// The project's goal relative to nbdkit's luks filter.
    pub goal_nbdkit: Option<f64>,
    /// The project's goal relative to qemu-nbd's luks driver.
    pub goal_qemu: Option<f64>,
}

const fn workload(
    kind: &'static str,
    kib: u32,
    depth: u32,
    nbdkit: Option<f64>,
    qemu: Option<f64>,
) -> NbdWorkload {
    NbdWorkload { kind, block: kib << 10, depth, goal_nbdkit: nbdkit, goal_qemu: qemu }
}

pub(super) const WORKLOADS: [NbdWorkload; 8] = [
    workload("randread", 4, 1, None, None),
    workload("randwrite", 4, 1, None, None),
    workload("randread", 4, 32, Some(2.4), Some(4.5)),
    workload("randwrite", 4, 32, Some(2.4), Some(4.5)),
    workload("randread", 64, 8, Some(3.0), None),
    workload("randwrite", 64, 8, Some(3.0), None),
    workload("read", 1024, 4, Some(2.2), None),
    workload("write", 1024, 4, Some(2.2), None),
];

impl BenchWorkload for NbdWorkload {
    /// `4k randread depth 32`
    fn name(&self) -> String {
        format!("{} {} depth {}", block(self.block >> 10), self.kind, self.depth)
    }
}

/// Refuses to run without fio's NBD engine.
pub(super) fn check() -> Result<(), NbdError> {
    let engines = Command::new("fio")
        .arg("--enghelp")
        .output()
        .map_err(|e| NbdError::because("fio cannot be run: install the package fio", e))?;
    if String::from_utf8_lossy(&engines.stdout).lines().any(|line| line.trim() == "nbd") {
        return Ok(());
    }
    Err(NbdError::new("this fio has no nbd engine: Debian's package fio has one"))
}

/// Writes every byte once, so that no server reads holes.
pub(super) fn fill(server: &NbdServerProcess, size: u64) -> Result<(), NbdError> {
    fio(server, &["--rw=write", "--bs=1m", "--iodepth=4", &format!("--size={size}")]).map(drop)
}

pub(super) fn run(
    server: &NbdServerProcess,
    workload: NbdWorkload,
    options: &NbdOptions,
) -> Result<FioResult, NbdError> {
    let arguments = [
        format!("--rw={}", workload.kind),
        format!("--bs={}", workload.block),
        format!("--iodepth={}", workload.depth),
        format!("--size={}", options.size),
        format!("--runtime={}ms", options.turns.runtime.as_millis()),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--time_based", "--norandommap"]);
    let before = server.cpu_time()?;
    let output = fio(server, &arguments)?;
    let cpu = server.cpu_time()?.saturating_sub(before);
    seen(&output, cpu, server.name)
}

fn fio(server: &NbdServerProcess, arguments: &[&str]) -> Result<Value, NbdError> {
    let mut fio = Command::new("fio");
    fio.arg("--ioengine=nbd").arg(format!("--uri={}", server.uri())).args(arguments);
    report(&mut fio, server.name)
}
