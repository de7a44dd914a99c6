//! `tail`: the latency of reads while other processes keep every processor busy.

use std::sync::Arc;
use std::time::Duration;

use underseal_datapath::{Histogram, Policy};
use underseal_device::Device;
use underseal_device_lab::{ModelDevice, Profile};
use underseal_volume::DispatchFlags;

use super::{Experiment, Measured};
use crate::hogs::Hogs;
use crate::load::{Load, LoadEnd, LoadResult, LoadTarget};
use crate::rounds::{Contenders, Grid};
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Goal, Lab, Machine, Panel, PanelShape, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "tail",
    question: "What do work queues do to the slowest reads of a busy machine?",
    source: "RFC \"dm-crypt: add DM_CRYPT_FORCE_INLINE\" and its thread, dm-devel, June 2020",
    setup: "production servers under load, SATA and NVMe SSDs",
    figures: "\"much worse, spiky and unstable\" p99 of reads, from the scheduler's latency at each hand-over; no numbers",
    rounds: 5,
    run,
};

const BARE: &str = "plain";
const QUEUE: &str = "work queue";
const INLINE: &str = "inline";
const ADAPTIVE: &str = "adaptive";

/// The time between two reads, as in a server with other work.
const PACE: Duration = Duration::from_micros(300);
const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let ram = volumes::ram(lab.bytes(64 << 20))?;
    let ssd: Arc<dyn Device> = Arc::new(ModelDevice::new(ram.clone(), &Profile::nvme()));
    let devices = [("memory", ram), ("an NVMe SSD (model)", ssd)];
    let hogs = Machine::this()?.processors;
    let slice = lab.slice(700);
    let load = Load::new(4096, 100, LoadEnd::Time(slice)).random().pace(PACE);
    let loads = [("reads".to_owned(), load)];
    let mut panels = Vec::new();
    let mut findings = Vec::new();
    let mut worst = Vec::new();
    for (device_name, device) in &devices {
        let mapping = volumes::mapping(XTS, 4096, device)?;
        let volume = |policy| LoadTarget::Volume(mapping.clone(), policy);
        let ways = Contenders(vec![
            (BARE, LoadTarget::Bare(device.clone())),
            (QUEUE, volume(Policy::from_flags(DispatchFlags::default()))),
            (INLINE, volume(Policy::INLINE)),
            (ADAPTIVE, volume(Policy::ADAPTIVE)),
        ]);
        let idle = ways.measure(lab, rounds, &format!("tail: {device_name}, idle"), &loads)?;
        let busy = {
            let _hogs = Hogs::start(&lab.program, hogs)?;
            ways.measure(lab, rounds, &format!("tail: {device_name}, busy"), &loads)?
        };
        panels.push(panel(device_name, [("idle", &idle), ("busy", &busy)]));
        for way in [INLINE, ADAPTIVE] {
            let ratio = busy.ratio(way, QUEUE, 0, |seen| seen.micros(0.99));
            let what = format!("p99 on {device_name}, busy: {way} over the work queue");
            findings.push(AnswerFigure::new(what, Unit::Part, ratio).goal(Goal::AtMost(0.5)));
        }
        let p99 = |way| busy.range(way, 0, |seen| seen.micros(0.99)).median;
        worst.push(format!(
            "{device_name}: {} inline, {} through the work queue",
            Unit::Micros.show(p99(INLINE)),
            Unit::Micros.show(p99(QUEUE))
        ));
    }
    Ok(Measured {
        setup: vec![
            format!(
                "random reads of 4 KiB under AES-256-XTS, one at a time, one every {} us; {} reads in each round",
                PACE.as_micros(),
                slice.as_micros() / PACE.as_micros().max(1)
            ),
            format!("busy: {hogs} other processes that never sleep, as many as there are processors"),
            "plain is the device without a volume; the work queue is what dm-crypt does without flags".into(),
        ],
        answer: format!("p99 of reads on a busy machine, in {}.", worst.join("; in ")),
        findings,
        panels,
    })
}

fn panel(device: &str, grids: [(&str, &Grid); 2]) -> Panel {
    let ways = [BARE, QUEUE, INLINE, ADAPTIVE];
    let mut panel = Panel::new(format!("Latency of reads in {device}"), Unit::Micros, ways)
        .shape(PanelShape::Dots)
        .less_is_better();
    for (state, grid) in grids {
        for (name, share) in QUANTILES {
            panel =
                panel.row(format!("{state} {name}"), ways.map(|way| Cell::from(quantile(grid, way, share))));
        }
    }
    panel
}

/// The quantile over all rounds together, and the least and the most of single rounds.
fn quantile(grid: &Grid, way: &str, share: f64) -> Range {
    let each = grid.range(way, 0, |seen: &LoadResult| seen.micros(share));
    let mut all = Histogram::default();
    grid.all(way, 0).iter().for_each(|seen| all.merge(&seen.latency));
    let median = all.quantile(share).as_secs_f64() * 1e6;
    Range { median, least: each.least.min(median), most: each.most.max(median) }
}
