//! Medians and ratios, for programs (serde) and for users (`Display`).

use std::fmt;

use serde::Serialize;

use super::fio::IntegrityLoad;
use super::volumes::{self, BenchVolume};
use crate::fio::{FioResult, medians};
use crate::rounds::BenchWorkload;
use crate::{Machine, Range, comparison};

/// A volume under a load, over all rounds.
#[derive(Debug, Clone, Serialize)]
pub struct IntegrityRow {
    /// The export and the requests.
    pub load: String,
    /// The authentication of its sectors.
    pub volume: &'static str,
    /// Medians over the rounds.
    pub median: FioResult,
    /// The volume's requests a second divided by those of the volume without tags, round by round.
    pub of_plain: Range,
    /// The project's goal.
    pub goal: Option<f64>,
    /// The results of every round.
    pub rounds: Vec<FioResult>,
}

/// The results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct IntegrityReport {
    /// The machine.
    pub machine: Machine,
    /// The rows by load, then by volume.
    pub rows: Vec<IntegrityRow>,
}

pub(super) fn report(
    machine: &Machine,
    loads: &[IntegrityLoad],
    volumes: &[BenchVolume],
    seen: &[Vec<Vec<FioResult>>],
) -> IntegrityReport {
    let mut rows = Vec::new();
    for (load, seen) in loads.iter().zip(seen) {
        let Some(plain) = seen.first() else { continue };
        for (number, (volume, rounds)) in volumes.iter().zip(seen).enumerate() {
            let name = volume.server.name;
            rows.push(IntegrityRow {
                load: load.name(),
                volume: name,
                median: medians(rounds),
                of_plain: Range::of(rounds.iter().zip(plain).map(|(this, plain)| this.iops / plain.iops)),
                goal: (number > 0).then(|| goal(name, load)).flatten(),
                rounds: rounds.clone(),
            });
        }
    }
    IntegrityReport { machine: machine.clone(), rows }
}

fn goal(volume: &str, load: &IntegrityLoad) -> Option<f64> {
    let is_aead = [volumes::GCM_DIRECT, volumes::GCM_JOURNAL].contains(&volume);
    let is_direct = [volumes::GCM_DIRECT, volumes::HMAC_DIRECT].contains(&volume);
    match (load.kind, load.kib) {
        ("randread", _) => is_aead.then_some(0.75),
        _ if is_direct => Some(0.6),
        (_, 4) => Some(0.4),
        _ => Some(0.45),
    }
}

impl fmt::Display for IntegrityReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, processors, chosen, .. } = &self.machine;
        writeln!(f, "{cpu}, {processors} processors; AES kernel {chosen}; client: fio, without flushes")?;
        writeln!(
            f,
            "LUKS2, 4 KiB sectors, 256-bit AES; images in memory; ratio: this volume over the one without tags"
        )?;
        for rows in self.rows.chunk_by(|row, next| row.load == next.load) {
            comparison::heading(f, &rows[0].load, "")?;
            for row in rows {
                comparison::line(f, row.volume, &row.median, &row.of_plain)?;
                comparison::end_with_goal(f, row.goal, row.of_plain.median)?;
            }
        }
        Ok(())
    }
}
