//! fio, the client of most measurements: its arguments, and its report.

use std::process::Command;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::nbd::NbdError as BenchError;
use crate::range::Range;

/// The result that the client measured of one server in one round, and the server's cost.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FioResult {
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

/// Runs fio over the subject of that name, and returns its report.
pub(crate) fn report(fio: &mut Command, over: &str) -> Result<Value, BenchError> {
    let output = fio
        .args(["--name=bench", "--thread", "--output-format=json", "--randrepeat=0"])
        .output()
        .map_err(|e| BenchError::because("fio cannot be run: install the package fio", e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // The nbd engine says "connected" before the report begins.
    let report = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok());
    report.filter(|_| output.status.success()).ok_or_else(|| {
        let last = String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned();
        BenchError::new(format!("fio over {over} ended with {}: {last}", output.status))
    })
}

/// The figures in a report's one group of jobs.
pub(crate) fn seen(report: &Value, cpu: Duration, over: &str) -> Result<FioResult, BenchError> {
    told(report, cpu).ok_or_else(|| BenchError::new(format!("fio's report over {over} cannot be read")))
}

fn told(report: &Value, cpu: Duration) -> Option<FioResult> {
    let job = report.get("jobs")?.get(0)?;
    let side = ["read", "write"]
        .into_iter()
        .filter_map(|side| job.get(side))
        .find(|side| number(side, "iops") > 0.0)?;
    let percentile = |which| {
        let ns = side.get("clat_ns").and_then(|c| c.get("percentile")).map_or(0.0, |p| number(p, which));
        ns / 1000.0
    };
    Some(FioResult {
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

/// Returns the median of each figure.
pub(crate) fn medians(rounds: &[FioResult]) -> FioResult {
    let median = |of: fn(&FioResult) -> f64| Range::of(rounds.iter().map(of)).median;
    FioResult {
        iops: median(|s| s.iops),
        mb_per_s: median(|s| s.mb_per_s),
        p50_us: median(|s| s.p50_us),
        p99_us: median(|s| s.p99_us),
        p999_us: median(|s| s.p999_us),
        server_cpu_us: median(|s| s.server_cpu_us),
    }
}

/// Returns a request's size in the form of workload names: `4k`, `1M`.
pub(crate) fn block(kib: u32) -> String {
    if kib >= 1024 { format!("{}M", kib / 1024) } else { format!("{kib}k") }
}
