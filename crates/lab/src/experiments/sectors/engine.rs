//! The crypto engine: a model that is fitted to the published table, and its predictions beyond the
//! table.
//!
//! A 4 KiB job cannot take the published 150 to 308 us by a fixed cost and a bandwidth alone: a 64
//! KiB job takes 112 us. The engine's queue explains the difference. dm-crypt gives it a job for
//! each sector,
//! so bs=1M iodepth=4 are 1024 jobs at a time in 4 KiB sectors and 64 in 64 KiB sectors. A job that
//! finds the queue full puts its submitter to sleep; waking it is the restart.
//!
//! Fitted: the bandwidth, to the 64 KiB sectors of each column; the restart, to the 4 KiB sectors
//! of each column. Assumed: the fixed cost of a job, and a queue of 64. Not fitted: everything
//! between, and whole requests.

use std::time::Duration;

use super::{Part, sectors};
use crate::engine::{self, EngineLoad, EngineSpec};
use crate::rounds::interleaved;
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Goal, Lab, Panel, Range, Result, Unit};

/// A column of the published table: MB/s in 4 KiB and in 64 KiB sectors, and the published gain.
struct Column {
    name: &'static str,
    encrypts: bool,
    small: f64,
    large: f64,
    gain: f64,
}

const TABLE: [Column; 4] = [
    Column { name: "sequential read", encrypts: false, small: 13.3, large: 581.0, gain: 43.0 },
    Column { name: "random read", encrypts: false, small: 22.8, large: 582.0, gain: 25.0 },
    Column { name: "sequential write", encrypts: true, small: 27.2, large: 586.0, gain: 21.0 },
    Column { name: "random write", encrypts: true, small: 24.0, large: 588.0, gain: 24.0 },
];

const SECTORS: [u32; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const REQUEST: usize = 1 << 20;
const DEPTH: usize = 4;
/// The fixed cost of every job: assumed.
const FIXED: Duration = Duration::from_micros(10);
/// The assumed number of jobs in the engine: the published load's number in 64 KiB sectors.
const QUEUE: usize = 64;

impl Column {
    /// Returns the engine with the column's two figures.
    fn fitted(&self) -> EngineSpec {
        let seconds = |bytes: u32, rate: f64| f64::from(bytes) / (rate * 1e6);
        let fixed = FIXED.as_secs_f64();
        let bandwidth = f64::from(SECTORS[4]) / (seconds(SECTORS[4], self.large) - fixed);
        let restart = seconds(SECTORS[0], self.small) - fixed - f64::from(SECTORS[0]) / bandwidth;
        EngineSpec { fixed: FIXED, bandwidth, depth: QUEUE, restart: Duration::from_secs_f64(restart) }
    }
}

pub(super) fn run(lab: &Lab<'_>, rounds: usize) -> Result<Part> {
    let whole = "4 KiB, a job for the whole request";
    let mut subjects = Vec::new();
    for column in &TABLE {
        for sector in SECTORS {
            subjects.push((column, sector, Some(1)));
        }
        subjects.push((column, SECTORS[0], None));
    }
    let each = SECTORS.len() + 1;
    let seen = interleaved(lab, rounds, "sectors: the engine", subjects.len(), |nth| {
        let (column, sector, max_sectors) = subjects[nth];
        // Equal times for all subjects: a slow subject moves fewer bytes.
        let bytes = if nth % each == each - 1 { 192 << 20 } else { (u64::from(sector) * 3) << 10 };
        let bytes = if lab.quick { (bytes / 8).max(4 << 20) } else { bytes };
        let load =
            EngineLoad { request: REQUEST, depth: DEPTH, encrypts: column.encrypts, max_sectors, bytes };
        engine::run(column.fitted(), &volumes::cipher(XTS, sector)?, load)
    })?;
    let range = |column: usize, nth: usize| Range::of(seen[column * each + nth].iter().copied());
    let ratio = |column: usize, over: usize, under: usize| {
        Range::of_ratios(&seen[column * each + over], &seen[column * each + under])
    };

    let mut findings = Vec::new();
    let mut panel = Panel::new(
        "A crypto engine (model), a job for each sector: MB/s by sector size",
        Unit::MbPerS,
        TABLE.iter().map(|column| column.name),
    )
    .note("diamonds: the published table, to which 4 and 64 KiB are fitted; 8 to 32 KiB and whole requests are not fitted");
    for (nth, sector) in SECTORS.iter().enumerate() {
        let published = |column: &Column| match nth {
            0 => Some(column.small),
            4 => Some(column.large),
            _ => None,
        };
        let cells = TABLE.iter().enumerate().map(|(i, column)| {
            let cell = Cell::from(range(i, nth));
            Cell { published: published(column), ..cell }
        });
        panel = panel.row(sectors(*sector), cells);
        for (i, column) in TABLE.iter().enumerate() {
            if let Some(figure) = published(column) {
                let what = format!("engine, {}, {} (fitted)", column.name, sectors(*sector));
                let finding = AnswerFigure::new(what, Unit::MbPerS, range(i, nth)).published(figure);
                findings.push(finding.goal(Goal::Within(0.1)));
            }
        }
    }
    panel = panel.row(whole, (0..TABLE.len()).map(|column| range(column, each - 1)));
    for (i, column) in TABLE.iter().enumerate() {
        let gain = ratio(i, 4, 0);
        let what = format!("engine, {}: 64 KiB over 4 KiB sectors", column.name);
        findings.push(super::times(what, gain).published(column.gain));
    }
    let predicted = Range::of((0..TABLE.len()).flat_map(|i| {
        seen[i * each + each - 1].iter().zip(&seen[i * each]).map(|(whole, small)| whole / small)
    }));
    findings.push(super::times(
        "engine, 4 KiB sectors: a job a request over a job a sector (predicted)",
        predicted,
    ));
    Ok(Part {
        setup: vec![
            format!(
                "engine: fixed cost {} us a job and a queue of {QUEUE} are assumed; bandwidth ({}) is fitted to the 64 KiB \
                 column and restart ({}) to the 4 KiB column of each kind of load",
                FIXED.as_micros(),
                of_each(|spec| format!("{:.0}", spec.bandwidth / 1e6), "MB/s"),
                of_each(|spec| spec.restart.as_micros().to_string(), "us"),
            ),
            "engine: 1M requests, 4 in flight, in memory; dm-crypt's way is a job for each sector, ours one for each request"
                .into(),
        ],
        answer: format!(
            "Giving a crypto engine whole requests is worth {} with 4 KiB sectors, which is what sectors of 64 KiB gained.",
            Unit::Times.show(predicted.median)
        ),
        findings,
        panels: vec![panel],
    })
}

fn of_each(text: impl Fn(&EngineSpec) -> String, unit: &str) -> String {
    let each: Vec<String> = TABLE.iter().map(|column| text(&column.fitted())).collect();
    format!("{} {unit}", each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_gives_back_the_two_figures_that_it_was_made_from() {
        for column in &TABLE {
            let engine = column.fitted();
            let job = |bytes: u32| engine.fixed.as_secs_f64() + f64::from(bytes) / engine.bandwidth;
            let rate = |bytes: u32, seconds: f64| f64::from(bytes) / seconds / 1e6;
            let large = rate(65536, job(65536));
            let small = rate(4096, job(4096) + engine.restart.as_secs_f64());
            assert!((large / column.large - 1.0).abs() < 1e-3, "{}: {large}", column.name);
            assert!((small / column.small - 1.0).abs() < 1e-3, "{}: {small}", column.name);
            assert!(engine.restart > Duration::from_micros(100), "{}", column.name);
        }
    }
}
