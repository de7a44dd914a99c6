//! The client: fio with its nbd engine (libnbd).

use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::servers::Server;
use super::{NbdError, NbdOptions};

/// A stream of requests of one kind.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Workload {
    /// fio's word: `randread`, `write`, ..
    pub kind: &'static str,
    /// A request's bytes.
    pub block: u32,
    /// Requests in flight.
    pub depth: u32,
    /// What we mean to reach over nbdkit's luks filter.
    pub goal_nbdkit: Option<f64>,
    /// What we mean to reach over qemu-nbd's luks driver.
    pub goal_qemu: Option<f64>,
}

const fn workload(
    kind: &'static str,
    kib: u32,
    depth: u32,
    nbdkit: Option<f64>,
    qemu: Option<f64>,
) -> Workload {
    Workload { kind, block: kib << 10, depth, goal_nbdkit: nbdkit, goal_qemu: qemu }
}

pub(super) const WORKLOADS: [Workload; 8] = [
    workload("randread", 4, 1, None, None),
    workload("randwrite", 4, 1, None, None),
    workload("randread", 4, 32, Some(2.4), Some(4.5)),
    workload("randwrite", 4, 32, Some(2.4), Some(4.5)),
    workload("randread", 64, 8, Some(3.0), None),
    workload("randwrite", 64, 8, Some(3.0), None),
    workload("read", 1024, 4, Some(2.2), None),
    workload("write", 1024, 4, Some(2.2), None),
];

impl Workload {
    /// `4k randread depth 32`
    pub fn name(&self) -> String {
        let block = if self.block >> 20 > 0 {
            format!("{}M", self.block >> 20)
        } else {
            format!("{}k", self.block >> 10)
        };
        format!("{block} {} depth {}", self.kind, self.depth)
    }
}

/// What the client saw of one server in one round, and what it cost the server.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Seen {
    /// Requests a second.
    pub iops: f64,
    /// 10^6 bytes a second.
    pub mb_per_s: f64,
    /// Completion latency in microseconds: half, 99 in 100 and 999 in 1000 requests took no longer.
    pub p50_us: f64,
    /// See `p50_us`.
    pub p99_us: f64,
    /// See `p50_us`.
    pub p999_us: f64,
    /// The server's processor time for a request, in microseconds.
    pub server_cpu_us: f64,
}

/// Says what is missing.
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
pub(super) fn fill(server: &Server, size: u64) -> Result<(), NbdError> {
    fio(server, &["--rw=write", "--bs=1m", "--iodepth=4", &format!("--size={size}")]).map(drop)
}

pub(super) fn run(server: &Server, workload: Workload, options: &NbdOptions) -> Result<Seen, NbdError> {
    let arguments = [
        format!("--rw={}", workload.kind),
        format!("--bs={}", workload.block),
        format!("--iodepth={}", workload.depth),
        format!("--size={}", options.size),
        format!("--runtime={}ms", options.turns.runtime.as_millis()),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--time_based", "--norandommap", "--randrepeat=0"]);
    let before = server.cpu_time()?;
    let output = fio(server, &arguments)?;
    let cpu = server.cpu_time()?.saturating_sub(before);
    seen(&output, cpu)
        .ok_or_else(|| NbdError::new(format!("fio's report over {} cannot be read", server.name)))
}

fn fio(server: &Server, arguments: &[&str]) -> Result<Value, NbdError> {
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=nbd", "--thread", "--output-format=json"])
        .arg(format!("--uri={}", server.uri()))
        .args(arguments)
        .output()
        .map_err(|e| NbdError::because("fio cannot be run: install the package fio", e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // The engine says "connected" before the report begins.
    let report = text.find('{').and_then(|at| serde_json::from_str::<Value>(&text[at..]).ok());
    match report {
        Some(report) if output.status.success() => Ok(report),
        _ => Err(NbdError::new(format!(
            "fio over {} ended with {}: {}",
            server.name,
            output.status,
            String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default()
        ))),
    }
}

/// What a report says of its one group of jobs.
pub(crate) fn seen(report: &Value, cpu: Duration) -> Option<Seen> {
    let job = report.get("jobs")?.get(0)?;
    let side = ["read", "write"]
        .into_iter()
        .filter_map(|side| job.get(side))
        .find(|side| number(side, "iops") > 0.0)?;
    let percentile = |which| {
        let ns = side.get("clat_ns").and_then(|c| c.get("percentile")).map_or(0.0, |p| number(p, which));
        ns / 1000.0
    };
    Some(Seen {
        iops: number(side, "iops"),
        mb_per_s: number(side, "bw_bytes") / 1e6,
        p50_us: percentile("50.000000"),
        p99_us: percentile("99.000000"),
        p999_us: percentile("99.900000"),
        server_cpu_us: cpu.as_secs_f64() * 1e6 / number(side, "total_ios"),
    })
}

fn number(value: &Value, key: &str) -> f64 {
    value.get(key).and_then(Value::as_f64).unwrap_or(0.0)
}
