//! `policies`: every policy under every shape of load, to recommend one.

use underseal_datapath::Policy;
use underseal_volume::DispatchFlags;

use super::{Experiment, Measured};
use crate::hogs::Hogs;
use crate::load::{Load, LoadEnd, LoadResult, LoadTarget};
use crate::rounds::{Contenders, Grid, size};
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Goal, Lab, Machine, Panel, PanelRow, PanelShape, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "policies",
    question: "Which policy should a user take?",
    source: "the threads of all the other experiments",
    setup: "as there",
    figures: "each thread answered for its own load; nobody measured all of them side by side",
    rounds: 5,
    run,
};

const WAYS: [&str; 5] = ["inline", "adaptive", "workers", "same-cpu", "kernel"];
const SIZES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, 1 << 20];
const DEPTHS: [usize; 3] = [1, 8, 32];

fn policy(way: &str) -> Policy {
    match way {
        "inline" => Policy::INLINE,
        "adaptive" => Policy::ADAPTIVE,
        "workers" => Policy::WORKERS,
        "same-cpu" => Policy::SAME_CPU,
        // Workers and one submitter that sorts: dm-crypt without flags.
        _ => Policy::from_flags(DispatchFlags::default()),
    }
}

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let device = volumes::ram(lab.bytes(128 << 20))?;
    let mapping = volumes::mapping(XTS, 4096, &device)?;
    let ways = Contenders(WAYS.map(|way| (way, LoadTarget::Volume(mapping.clone(), policy(way)))).into());
    let slice = LoadEnd::Time(lab.slice(40));
    let shapes: Vec<(usize, usize)> =
        SIZES.iter().flat_map(|size| DEPTHS.map(|depth| (*size, depth))).collect();
    let loads = |reads| -> Vec<(String, Load)> {
        let load = |(bytes, depth)| Load::new(bytes, reads, slice).random().depth(depth);
        shapes.iter().map(|shape| (format!("{} x{}", size(shape.0), shape.1), load(*shape))).collect()
    };
    let both = |state: &str| -> Result<[Grid; 2]> {
        let reads = ways.measure(lab, rounds, &format!("policies: reads, {state}"), &loads(100))?;
        Ok([reads, ways.measure(lab, rounds, &format!("policies: writes, {state}"), &loads(0))?])
    };
    let [idle_reads, idle_writes] = both("idle")?;
    let [busy_reads, busy_writes] = {
        let _hogs = Hogs::start(&lab.program, Machine::this()?.processors)?;
        both("busy")?
    };
    let grids = [
        ("reads, idle machine", idle_reads),
        ("writes, idle machine", idle_writes),
        ("reads, every processor busy", busy_reads),
        ("writes, every processor busy", busy_writes),
    ];
    let mut heat = Panel::new("Throughput of each policy", Unit::MbPerS, shapes.iter().map(|(bytes, depth)| {
        format!("{}\u{d7}{depth}", size(*bytes))
    }))
    .shape(PanelShape::Heat)
    .note("columns are the size of a request and how many are in flight; the number is percent of the best of its column");
    for (name, grid) in &grids {
        for way in WAYS {
            let cells =
                (0..shapes.len()).map(|load| Some(Cell::from(grid.range(way, load, LoadResult::mb_per_s))));
            heat.rows.push(PanelRow {
                group: Some((*name).into()),
                label: way.into(),
                cells: cells.collect(),
            });
        }
    }
    let standings: Vec<Standing> = WAYS.into_iter().map(|way| standing(way, &grids, shapes.len())).collect();
    let mut summary = Panel::new("Part of the best, over the whole grid", Unit::Part, ["median", "worst"])
        .note("whiskers run over all cells of the grid");
    for standing in &standings {
        let worst = Range { median: standing.parts.least, ..standing.parts };
        let worst = Range { most: worst.least, ..worst };
        summary = summary.row(standing.way, [standing.parts, worst]);
    }
    let best = standings.iter().max_by(|a, b| a.parts.least.total_cmp(&b.parts.least));
    let answer = best.map_or_else(String::new, |best| {
        format!(
            "{}: at its worst ({}) it reaches {} of the best, and {} in the middle of the grid.",
            best.way,
            best.worst,
            Unit::Part.show(best.parts.least),
            Unit::Part.show(best.parts.median)
        )
    });
    let findings = standings.iter().map(|standing| {
        let finding = AnswerFigure::new(
            format!("{}: part of the best, over the grid; worst at {}", standing.way, standing.worst),
            Unit::Part,
            standing.parts,
        );
        if standing.way == "adaptive" { finding.goal(Goal::AtLeast(0.95)) } else { finding }
    });
    Ok(Measured {
        setup: vec![
            "memory, AES-256-XTS in sectors of 4 KiB, one thread, random requests".into(),
            "busy: as many other processes that never sleep as there are processors".into(),
        ],
        answer,
        findings: findings.collect(),
        panels: vec![heat, summary],
    })
}

/// The results of a policy over the whole grid.
struct Standing {
    way: &'static str,
    /// The policy's part of the best, over all cells.
    parts: Range,
    /// The cell with the smallest part.
    worst: String,
}

fn standing(way: &'static str, grids: &[(&str, Grid)], loads: usize) -> Standing {
    let mut parts = Vec::new();
    for (name, grid) in grids {
        for load in 0..loads {
            let median = |way| grid.range(way, load, LoadResult::mb_per_s).median;
            let best = WAYS.map(median).into_iter().fold(0.0, f64::max);
            parts.push((median(way) / best, format!("{}, {name}", grid.load(load))));
        }
    }
    let worst =
        parts.iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or_else(String::new, |part| part.1.clone());
    Standing { way, parts: Range::of(parts.into_iter().map(|part| part.0)), worst }
}
