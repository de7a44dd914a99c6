//! Rows, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use crate::{Machine, ThroughputSample};

/// A subject over a shape of work.
#[derive(Debug, Clone, Serialize)]
pub struct CipherRow {
    /// The cipher: `aes-xts-plain64`.
    pub cipher: String,
    /// The AES key's bits: half of an XTS key.
    pub aes_bits: usize,
    /// `encrypt` or `decrypt`.
    pub direction: &'static str,
    /// The size of the sector in bytes.
    pub sector: usize,
    /// The size of the request in bytes.
    pub request: usize,
    /// The code: `underseal avx512`, a library with its version, or a limit.
    pub subject: String,
    /// Whether this mode uses the path in this direction.
    pub in_use: bool,
    /// The throughput.
    pub sample: ThroughputSample,
    /// Nanoseconds for one request.
    pub ns: f64,
    /// The limit of comparison: `aes rounds zmm` or `read-xor-write`.
    pub limit: &'static str,
    /// The subject's part of that limit, measured in the same rounds.
    pub percent_of_limit: f64,
    /// The chosen path's throughput divided by this subject's.
    pub ours_over_this: f64,
}

/// Two threads compared with one.
#[derive(Debug, Clone, Serialize)]
pub struct Scaling {
    /// The size of each thread's buffer in bytes.
    pub request: usize,
    /// A single thread's throughput.
    pub one: ThroughputSample,
    /// The throughput of two threads together.
    pub two: ThroughputSample,
    /// The quotient of two threads and one.
    pub factor: f64,
}

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// Groups of subjects, each group with its limits.
    pub rows: Vec<CipherRow>,
    /// AES-256-XTS over 4 KiB sectors on two threads; empty with one processor.
    pub scaling: Vec<Scaling>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.machine;
        writeln!(
            f,
            "{}, {} processors; kernels {}; in use {}",
            m.cpu,
            m.processors,
            m.kernels.join(" "),
            m.chosen
        )?;
        let mut group = None;
        for row in &self.rows {
            let title = (&row.cipher, row.aes_bits, row.direction, row.sector, row.request);
            if group != Some(title) {
                group = Some(title);
                writeln!(
                    f,
                    "\n{} (AES-{}) {}, {} sectors, {} request",
                    row.cipher,
                    row.aes_bits,
                    row.direction,
                    size(row.sector),
                    size(row.request)
                )?;
                writeln!(
                    f,
                    "  {:30} {:>8} {:>7} {:>10} {:>7} {:>7}",
                    "", "GB/s", "spread", "ns", "limit", "ours is"
                )?;
            }
            writeln!(
                f,
                "  {:30} {:8.2} {:6.1}% {:10.0} {:6.1}% {:6.2}x",
                if row.in_use { format!("{}, in use", row.subject) } else { row.subject.clone() },
                row.sample.gb_per_s,
                row.sample.spread * 100.0,
                row.ns,
                row.percent_of_limit,
                row.ours_over_this
            )?;
        }
        for s in &self.scaling {
            writeln!(
                f,
                "\ntwo threads, {} each: {:.2} GB/s, one: {:.2} GB/s, factor {:.2}",
                size(s.request),
                s.two.gb_per_s,
                s.one.gb_per_s,
                s.factor
            )?;
        }
        Ok(())
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        0x10_0000.. => format!("{} MiB", bytes >> 20),
        0x400.. => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}
