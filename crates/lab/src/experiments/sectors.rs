//! `sectors`: the gains and costs of sectors of up to 64 KiB.
//!
//! ```text
//!   engine     a crypto engine behind DMA: jobs of one sector against jobs of a whole request
//!   processor  the cipher alone, and random requests of 64 KiB
//!   amplified  small random writes: the read-modify-write of whole sectors
//! ```

mod amplified;
mod engine;
mod processor;

use super::{Experiment, Measured};
use crate::{AnswerFigure, Lab, Panel, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "sectors",
    question: "What do encryption sectors above 4 KiB gain, and what do small writes on them cost?",
    source: "RFC \"dm-crypt: change maximum sector size to PAGE_SIZE\", dm-devel, November 2021 to March 2022",
    setup: "Qualcomm qce engine, xts(aes), 1 GiB RAM disk, fio libaio bs=1M iodepth=4; Cortex-A53 with AES instructions, \
            tcrypt; NVMe SSD, fio pvsync bs=64k, 32 jobs",
    figures: "engine: 13.3, 22.8, 27.2, 24 MB/s in 4 KiB sectors (sequential and random reads, sequential and random \
              writes), 581, 582, 586, 588 in 64 KiB sectors; tcrypt 657 to 832 MB/s; SSD: random read +9%, random write +16%",
    rounds: 3,
    run,
};

/// A part of the experiment.
struct Part {
    setup: Vec<String>,
    answer: String,
    findings: Vec<AnswerFigure>,
    panels: Vec<Panel>,
}

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let parts = [engine::run(lab, rounds)?, processor::run(lab, rounds)?, amplified::run(lab, rounds)?];
    let mut all =
        Measured { setup: Vec::new(), answer: String::new(), findings: Vec::new(), panels: Vec::new() };
    let mut answers = Vec::new();
    for Part { setup, answer, findings, panels } in parts {
        all.setup.extend(setup);
        answers.push(answer);
        all.findings.extend(findings);
        all.panels.extend(panels);
    }
    all.answer = answers.join(" ");
    Ok(all)
}

/// Returns a sector's size for titles.
fn sectors(bytes: u32) -> String {
    format!("{} KiB sectors", bytes >> 10)
}

/// `1.09` for `+9%`.
fn times(what: impl Into<String>, range: crate::Range) -> AnswerFigure {
    AnswerFigure::new(what, Unit::Times, range)
}
