//! `reencrypt`: the load that a volume's users can run while the volume gets another key.

mod disk;

use std::num::NonZeroU64;
use std::time::Duration;

use underseal_datapath::Rate;

use self::disk::{ExperimentDisk, ReencryptionVariant};
use super::{Experiment, Measured};
use crate::load::{Load, LoadEnd, LoadResult};
use crate::rounds::interleaved;
use crate::{AnswerFigure, Cell, Goal, Lab, Panel, PanelShape, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "reencrypt",
    question: "What do the users of a volume notice while it is reencrypted under them?",
    source: "longhorn issue 9345, rook issue 7925, ceph-csi issue 5699: users who ask for it",
    setup: "none was published",
    figures: "none: it is not offered there, or only for volumes that nobody uses",
    rounds: 5,
    run,
};

const AT_REST: &str = "at rest";
const GIVES_WAY: &str = "gives way";

/// The variants that are measured: the rate, and the length of a step.
const WAYS: [(&str, Option<ReencryptionVariant>); 6] = [
    (AT_REST, None),
    (GIVES_WAY, Some(ReencryptionVariant { rate: Rate::GiveWay, hot_zone: 64 << 20 })),
    (
        "100 MB/s",
        Some(ReencryptionVariant {
            rate: Rate::Limit(NonZeroU64::new(100_000_000).unwrap()),
            hot_zone: 64 << 20,
        }),
    ),
    ("full, 64 MiB steps", Some(ReencryptionVariant { rate: Rate::Full, hot_zone: 64 << 20 })),
    ("full, 8 MiB steps", Some(ReencryptionVariant { rate: Rate::Full, hot_zone: 8 << 20 })),
    ("full, 1 MiB steps", Some(ReencryptionVariant { rate: Rate::Full, hot_zone: 1 << 20 })),
];

/// The parts of the time line, and whether the volume is reencrypted in each.
const LINE: [(&str, bool); 8] = [
    ("1: at rest", false),
    ("2: at rest", false),
    ("3: reencrypted", true),
    ("4: reencrypted", true),
    ("5: reencrypted", true),
    ("6: reencrypted", true),
    ("7: at rest", false),
    ("8: at rest", false),
];

/// The users' load, and the rate of the reencryption meanwhile, in MB/s.
struct ServedRun {
    users: LoadResult,
    moved: f64,
}

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let bytes = lab.bytes(512 << 20);
    let disk = ExperimentDisk::new(bytes)?;
    let slice = lab.slice(1500);
    let load = |time| Load::new(4096, 50, LoadEnd::Time(time)).random().depth(8);
    let seen = interleaved(lab, rounds, "reencrypt: 4k at depth 8", WAYS.len(), |way| {
        disk.beside(WAYS[way].1, &load(slice))
    })?;
    let line = time_line(lab, rounds, &disk, &load(slice / 2))?;

    let each = |way: usize, of: &dyn Fn(&ServedRun) -> f64| seen[way].iter().map(of).collect::<Vec<f64>>();
    let over_rest = |way, of: &dyn Fn(&ServedRun) -> f64| Range::of_ratios(&each(way, of), &each(0, of));
    let p99 = |beside: &ServedRun| beside.users.micros(0.99);
    let iops = |beside: &ServedRun| beside.users.iops();
    let (slower, left) = (over_rest(1, &p99), over_rest(1, &iops));
    let moved = |way| Range::of(each(way, &|beside: &ServedRun| beside.moved));
    let names = || WAYS.iter().map(|(name, _)| *name);
    let panel = |title, unit, of: &dyn Fn(&ServedRun) -> f64| {
        let cells = (0..WAYS.len()).map(|way| Cell::from(Range::of(each(way, of))));
        Panel::new(title, unit, names()).row("4k", cells)
    };
    let latency = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)].into_iter().fold(
        Panel::new("Latency of the users' requests", Unit::Micros, names())
            .shape(PanelShape::Dots)
            .less_is_better(),
        |panel, (name, share)| {
            let of = |beside: &ServedRun| beside.users.micros(share);
            panel.row(name, (0..WAYS.len()).map(|way| Cell::from(Range::of(each(way, &of)))))
        },
    );
    Ok(Measured {
        setup: vec![
            format!(
                "a file of {} MiB in memory under AES-256-XTS with 4 KiB sectors; it gets another key, with checksums, again and \
                 again while the load runs; the state is a file in memory, too",
                bytes >> 20
            ),
            "the load: one thread, reads and writes of 4 KiB anywhere, half of each, 8 at a time".into(),
            "\"gives way\" is the default of reencryption".into(),
        ],
        answer: format!(
            "While the volume is reencrypted at {}, giving way, p99 is {} that at rest, and {} of the requests are left.",
            Unit::MbPerS.show(moved(1).median),
            Unit::Times.show(slower.median),
            Unit::Part.show(left.median),
        ),
        findings: vec![
            AnswerFigure::new("p99 over that at rest, giving way", Unit::Times, slower)
                .goal(Goal::AtMost(2.0)),
            AnswerFigure::new("requests a second over those at rest, giving way", Unit::Part, left)
                .goal(Goal::AtLeast(0.8)),
            AnswerFigure::new("reencrypted, giving way", Unit::MbPerS, moved(1)),
            AnswerFigure::new("reencrypted, as fast as it goes", Unit::MbPerS, moved(3)),
        ],
        panels: vec![
            panel("The users' requests", Unit::Iops, &iops),
            latency,
            panel("Reencrypted meanwhile", Unit::MbPerS, &|beside| beside.moved),
            line,
        ],
    })
}

/// Measures the latency in parts of the time: before the reencryption, while it gives way, and
/// afterwards.
fn time_line(lab: &Lab<'_>, rounds: usize, disk: &ExperimentDisk, load: &Load) -> Result<Panel> {
    let how = WAYS[1].1;
    let rounds = interleaved(lab, rounds, "reencrypt: time line", 1, |_| {
        let part = |(_, moves): (&str, bool)| disk.beside(how.filter(|_| moves), load);
        LINE.map(part).into_iter().collect::<Result<Vec<ServedRun>>>()
    })?;
    let quantile =
        |part: usize, share| Range::of(rounds[0].iter().map(|parts| parts[part].users.micros(share)));
    let title = format!("Latency over time, a part is {} ms", time(load).as_millis());
    let panel = Panel::new(title, Unit::Micros, ["p50", "p99"]).shape(PanelShape::Dots).less_is_better();
    Ok(LINE.iter().enumerate().fold(panel, |panel, (part, (name, _))| {
        panel.row(*name, [Cell::from(quantile(part, 0.5)), Cell::from(quantile(part, 0.99))])
    }))
}

fn time(load: &Load) -> Duration {
    match load.until {
        LoadEnd::Time(time) => time,
        LoadEnd::Bytes(_) => Duration::ZERO,
    }
}
