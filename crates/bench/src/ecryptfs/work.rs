//! The work on a mount: fio's requests, and a tree of small files.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::mounted::{MountBenchOptions, MountedFolder};
use crate::fio::{FioResult, block, report, seen};
use crate::nbd::NbdError as BenchError;
use crate::rounds::BenchWorkload;

/// A workload of the mount.
#[derive(Debug, Clone, Copy)]
pub(super) enum MountWork {
    /// Requests of one kind, through the page cache, by `threads` threads with a file each.
    Requests { kind: &'static str, kib: u32, threads: u32 },
    /// A step in the life of a tree, in this order.
    Tree(&'static str),
}

const fn requests(kind: &'static str, kib: u32, threads: u32) -> MountWork {
    MountWork::Requests { kind, kib, threads }
}

pub(super) const WORK: [MountWork; 12] = [
    requests("write", 1024, 1),
    requests("write", 1024, 4),
    requests("read", 1024, 1),
    requests("read", 1024, 4),
    requests("randread", 4, 1),
    requests("randread", 4, 4),
    requests("randwrite", 4, 1),
    requests("randwrite", 4, 4),
    MountWork::Tree("untar"),
    MountWork::Tree("ls -lR"),
    MountWork::Tree("find"),
    MountWork::Tree("rm -r"),
];

impl BenchWorkload for MountWork {
    fn name(&self) -> String {
        match self {
            Self::Requests { kind, kib, threads } => format!("{} {kind} threads {threads}", block(*kib)),
            Self::Tree(step) => format!("tree: {step}"),
        }
    }

    /// The steps of a tree depend on each other.
    fn follows(&self) -> bool {
        matches!(self, Self::Tree(step) if *step != "untar")
    }
}

impl MountWork {
    /// The project's goal beside gocryptfs.
    pub(super) fn goal(name: &str) -> f64 {
        match name {
            name if name.starts_with("1M") => 2.0,
            name if name.starts_with("4k") => 1.3,
            _ => 1.0,
        }
    }

    pub(super) fn run(
        &self,
        on: &MountedFolder,
        options: &MountBenchOptions,
        tar: &Path,
    ) -> Result<FioResult, BenchError> {
        let before = on.cpu_time()?;
        match self {
            Self::Requests { kind, kib, threads } => {
                let report = fio(on, kind, *kib, *threads, options)?;
                let cpu = on.cpu_time()?.saturating_sub(before);
                seen(&report, cpu, on.name)
            }
            Self::Tree(step) => {
                let mut command = match *step {
                    "untar" => {
                        let mut tarred = Command::new("tar");
                        tarred.arg("-C").arg(&on.plain).arg("-xf").arg(tar);
                        tarred
                    }
                    words => {
                        let (program, more) = words.split_once(' ').unwrap_or((words, ""));
                        let mut command = Command::new(program);
                        command.args(more.split_whitespace()).arg(on.plain.join("tree"));
                        command
                    }
                };
                let started = Instant::now();
                let status = command
                    .stdout(Stdio::null())
                    .status()
                    .map_err(|e| BenchError::because(format!("{step} cannot be run"), e))?;
                let took = started.elapsed();
                if !status.success() {
                    return Err(BenchError::new(format!("{step} over {} ended with {status}", on.name)));
                }
                Ok(each(options.files, took, on.cpu_time()?.saturating_sub(before)))
            }
        }
    }
}

/// The result per file of a step over `files` files.
fn each(files: u32, took: Duration, cpu: Duration) -> FioResult {
    let files = f64::from(files.max(1));
    let us = took.as_secs_f64() * 1e6 / files;
    FioResult {
        iops: 1e6 / us,
        mb_per_s: 0.0,
        p50_us: us,
        p99_us: us,
        p999_us: us,
        server_cpu_us: cpu.as_secs_f64() * 1e6 / files,
    }
}

fn fio(
    on: &MountedFolder,
    kind: &str,
    kib: u32,
    threads: u32,
    options: &MountBenchOptions,
) -> Result<Value, BenchError> {
    let mut fio = Command::new("fio");
    fio.args(["--ioengine=psync", "--group_reporting", "--time_based"])
        // Linux's cached pages of the files are dropped first; the files start over each time.
        .args(["--invalidate=1", "--fallocate=none"])
        .arg(format!("--directory={}", on.plain.display()))
        .args([format!("--rw={kind}"), format!("--bs={kib}k"), format!("--numjobs={threads}")])
        .args([
            format!("--size={}", options.size),
            format!("--runtime={}ms", options.turns.runtime.as_millis()),
        ]);
    report(&mut fio, on.name)
}

/// Packs a tree of `files` small files.
pub(super) fn pack(folder: &Path, files: u32) -> Result<std::path::PathBuf, BenchError> {
    let failed = |e: std::io::Error| BenchError::because("a tree of small files cannot be made", e);
    let tree = folder.join("tree");
    for n in 0..files {
        let within = tree.join(format!("folder {}", n / 100));
        if n % 100 == 0 {
            fs::create_dir_all(&within).map_err(failed)?;
        }
        // Like sources: a few hundred bytes to a few KiB.
        let len = 200 + (n as usize).wrapping_mul(2_654_435_761) % 6000;
        fs::write(within.join(format!("file {n}")), vec![b'x'; len]).map_err(failed)?;
    }
    let tar = folder.join("tree.tar");
    let status = Command::new("tar").arg("-C").arg(folder).arg("-cf").arg(&tar).arg("tree").status();
    if !status.map_err(failed)?.success() {
        return Err(BenchError::new("tar failed"));
    }
    fs::remove_dir_all(&tree).map_err(failed)?;
    Ok(tar)
}
