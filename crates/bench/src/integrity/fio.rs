//! The client: fio, with several requests in flight, through one of the exports.

use std::process::Command;

use serde_json::Value;

use super::volumes::BenchVolume;
use super::{BenchError, IntegrityBenchOptions};
use crate::fio::{FioResult, block, report, seen};
use crate::rounds::BenchWorkload;

/// The export that the client uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExportKind {
    Nbd,
    Fuse,
}

/// Requests of one kind through one export.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntegrityLoad {
    door: ExportKind,
    pub(super) kind: &'static str,
    pub(super) kib: u32,
    depth: u32,
}

const fn through(door: ExportKind) -> [IntegrityLoad; 4] {
    [
        IntegrityLoad { door, kind: "randread", kib: 4, depth: 32 },
        IntegrityLoad { door, kind: "randwrite", kib: 4, depth: 32 },
        IntegrityLoad { door, kind: "randread", kib: 64, depth: 8 },
        IntegrityLoad { door, kind: "write", kib: 1024, depth: 4 },
    ]
}

const NBD: [IntegrityLoad; 4] = through(ExportKind::Nbd);
const FUSE: [IntegrityLoad; 4] = through(ExportKind::Fuse);
pub(super) const LOADS: [IntegrityLoad; 8] =
    [NBD[0], NBD[1], NBD[2], NBD[3], FUSE[0], FUSE[1], FUSE[2], FUSE[3]];

impl BenchWorkload for IntegrityLoad {
    /// `NBD 4k randread depth 32`
    fn name(&self) -> String {
        let Self { door, kind, kib, depth } = *self;
        let door = if door == ExportKind::Nbd { "NBD" } else { "FUSE" };
        let block = block(kib);
        format!("{door} {block} {kind} depth {depth}")
    }
}

/// Writes every byte once.
pub(super) fn fill(volume: &BenchVolume, size: u64) -> Result<(), BenchError> {
    fio(volume, ExportKind::Nbd, &["--rw=write", "--bs=1m", "--iodepth=4", &format!("--size={size}")])
        .map(drop)
}

pub(super) fn run(
    volume: &BenchVolume,
    load: IntegrityLoad,
    options: &IntegrityBenchOptions,
) -> Result<FioResult, BenchError> {
    let arguments = [
        format!("--rw={}", load.kind),
        format!("--bs={}k", load.kib),
        format!("--iodepth={}", load.depth),
        format!("--size={}", options.size),
        format!("--runtime={}ms", options.turns.runtime.as_millis()),
    ];
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--time_based", "--norandommap"]);
    let before = volume.server.cpu_time()?;
    let report = fio(volume, load.door, &arguments)?;
    let cpu = volume.server.cpu_time()?.saturating_sub(before);
    seen(&report, cpu, volume.server.name)
}

fn fio(volume: &BenchVolume, door: ExportKind, arguments: &[&str]) -> Result<Value, BenchError> {
    let mut fio = Command::new("fio");
    match door {
        ExportKind::Nbd => fio
            .arg("--ioengine=nbd")
            .arg(format!("--uri=nbd+unix:///?socket={}", volume.server.socket.display())),
        ExportKind::Fuse => fio
            .args(["--ioengine=libaio", "--direct=1", "--fallocate=none"])
            .arg(format!("--filename={}", volume.file.display())),
    };
    report(fio.args(arguments), volume.server.name)
}
