//! `integrity`: the cost of tags beside the sectors, by mode, sector size and depth.

mod layer;

use std::sync::Arc;

use underseal_datapath::Policy;
use underseal_device::Device;
use underseal_device_lab::{ModelDevice, Profile};
use underseal_integrity::WriteMode;

use self::layer::TagLayer;
use super::{Experiment, Measured};
use crate::load::{Load, LoadEnd, LoadResult, LoadTarget};
use crate::rounds::{Contenders, Grid, size};
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Goal, Lab, Panel, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "integrity",
    question: "What does authentication cost, by mode, sector size and depth?",
    source: "commit 468dfca38b1a \"dm integrity: add a bitmap mode\", Linux 5.2, May 2019",
    setup: "an SSD on SATA 3 Gb/s; large sequential writes with dd, direct, 1 MB each; dm-integrity alone",
    figures: "248 MB/s on the device, 123 with the journal (0.50 of it), 223 with the bitmap (0.90)",
    rounds: 3,
    run,
};

/// The published rates of large writes, divided by the device's rate.
const PUBLISHED_JOURNAL: f64 = 123.0 / 248.0;
const PUBLISHED_BITMAP: f64 = 223.0 / 248.0;

const PLAIN: &str = "none";
const AEAD_DIRECT: &str = "AEAD, direct";
const AEAD_JOURNAL: &str = "AEAD, journal";
const CRC_BITMAP: &str = "crc32c, bitmap";
const CRC_JOURNAL: &str = "crc32c, journal";
const HMAC_DIRECT: &str = "hmac, direct";
const HMAC_JOURNAL: &str = "hmac, journal";

/// All variants but the volume without tags.
const WAYS: [(&str, TagLayer, WriteMode); 6] = [
    (AEAD_DIRECT, TagLayer::Aead, WriteMode::Direct),
    (AEAD_JOURNAL, TagLayer::Aead, WriteMode::Journal),
    (CRC_BITMAP, TagLayer::Hash("crc32c"), WriteMode::Bitmap),
    (CRC_JOURNAL, TagLayer::Hash("crc32c"), WriteMode::Journal),
    (HMAC_DIRECT, TagLayer::Hash("hmac(sha256)"), WriteMode::Direct),
    (HMAC_JOURNAL, TagLayer::Hash("hmac(sha256)"), WriteMode::Journal),
];

const LARGE: usize = 1 << 20;

fn loads(lab: &Lab<'_>) -> Vec<(String, Load)> {
    let until = LoadEnd::Time(lab.slice(250));
    let mut loads = Vec::new();
    for (what, reads) in [("reads", 100), ("writes", 0)] {
        for bytes in [4 << 10, 64 << 10] {
            for depth in [1, 32] {
                let load = Load::new(bytes, reads, until).random().depth(depth);
                loads.push((format!("random {what} of {} at depth {depth}", size(bytes)), load));
            }
        }
        let load = Load::new(LARGE, reads, until).depth(4);
        loads.push((format!("sequential {what} of {} at depth 4", size(LARGE)), load));
    }
    loads
}

/// A load's number in [`loads`].
const READS_4K_32: usize = 1;
const WRITES_4K_32: usize = 6;
const LARGE_WRITES: usize = 9;

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let bytes = lab.bytes(64 << 20);
    let loads = loads(lab);
    let mut panels = Vec::new();
    let mut findings = Vec::new();
    let mut answers = Vec::new();
    for (name, profile) in [("memory", None), ("a SATA SSD (model)", Some(Profile::sata_ssd()))] {
        for sector in [4096, 512] {
            let what = format!("integrity: {name}, sectors of {sector}");
            let ways = ways(bytes, sector, profile.as_ref())?;
            let grid = ways.measure(lab, rounds, &what, &loads)?;
            panels.push(panel(&grid, &loads, &format!("{name}, sectors of {sector} bytes")));
            if sector == 4096 {
                answers.push(answer(&grid, name));
                if profile.is_some() {
                    findings.extend(found(&grid));
                }
            }
        }
    }
    Ok(Measured {
        setup: vec![
            format!("volumes over {} MiB of memory, and over the model of an SSD on SATA; nothing flushes", bytes >> 20),
            "none: AES-256-XTS without tags; AEAD: AES-256-GCM with stored IVs, its tags in the layer; crc32c and hmac (SHA-256): \
             AES-256-XTS over a layer with that internal hash"
                .into(),
            "the journal is an eighth of the volume; tags are cached (16 MiB)".into(),
        ],
        answer: answers.join(" "),
        findings,
        panels,
    })
}

/// The volumes, each over a separate device.
fn ways(bytes: u64, sector: u32, profile: Option<&Profile>) -> Result<Contenders> {
    let device = || -> Result<Arc<dyn Device>> {
        let ram = volumes::ram(bytes)?;
        Ok(match profile {
            Some(profile) => Arc::new(ModelDevice::new(ram, profile)),
            None => ram,
        })
    };
    let target = |mapping| LoadTarget::Volume(mapping, Policy::INLINE);
    let mut ways = vec![(PLAIN, target(volumes::mapping(XTS, sector, &device()?)?))];
    for (name, tags, mode) in WAYS {
        ways.push((name, target(layer::mapping(&device()?, tags, mode, sector)?)));
    }
    Ok(Contenders(ways))
}

/// Rates divided by those of the volume without tags.
fn panel(grid: &Grid, loads: &[(String, Load)], title: &str) -> Panel {
    let names = WAYS.iter().map(|(name, ..)| *name);
    let panel = Panel::new(format!("Rates over those without tags: {title}"), Unit::Part, names)
        .note("each bar: bytes a second over those of AES-256-XTS alone, under the same load");
    loads.iter().enumerate().fold(panel, |panel, (load, (name, _))| {
        let plain = Unit::MbPerS.show(grid.range(PLAIN, load, LoadResult::mb_per_s).median);
        let cells = WAYS.iter().map(|(way, ..)| Cell::from(part(grid, way, load)));
        panel.row(format!("{name} ({plain})"), cells)
    })
}

fn part(grid: &Grid, way: &str, load: usize) -> Range {
    grid.ratio(way, PLAIN, load, LoadResult::mb_per_s)
}

fn found(grid: &Grid) -> Vec<AnswerFigure> {
    let of = |way: &str, load: usize| {
        AnswerFigure::new(format!("SSD: {}, {way}", grid.load(load)), Unit::Part, part(grid, way, load))
    };
    vec![
        of(CRC_JOURNAL, LARGE_WRITES).published(PUBLISHED_JOURNAL),
        of(CRC_BITMAP, LARGE_WRITES).published(PUBLISHED_BITMAP),
        of(AEAD_JOURNAL, LARGE_WRITES).goal(Goal::AtLeast(0.45)),
        of(AEAD_JOURNAL, WRITES_4K_32).goal(Goal::AtLeast(0.4)),
        of(AEAD_DIRECT, WRITES_4K_32).goal(Goal::AtLeast(0.6)),
        of(AEAD_DIRECT, READS_4K_32).goal(Goal::AtLeast(0.75)),
        of(AEAD_JOURNAL, READS_4K_32).goal(Goal::AtLeast(0.75)),
        of(HMAC_JOURNAL, WRITES_4K_32),
        of(HMAC_DIRECT, WRITES_4K_32),
    ]
}

fn answer(grid: &Grid, device: &str) -> String {
    let median = |way, load| Unit::Part.show(part(grid, way, load).median);
    format!(
        "On {device} AEAD leaves {} of the large writes with the journal and {} without, and {} of the reads of 4k at depth 32.",
        median(AEAD_JOURNAL, LARGE_WRITES),
        median(AEAD_DIRECT, LARGE_WRITES),
        median(AEAD_DIRECT, READS_4K_32)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_of_the_loads_that_they_name() {
        let lab = Lab { program: "".into(), rounds: None, quick: true, progress: &|_| {} };
        let loads = loads(&lab);
        assert_eq!(loads.len(), 10);
        assert_eq!(loads[READS_4K_32].0, "random reads of 4k at depth 32");
        assert_eq!(loads[WRITES_4K_32].0, "random writes of 4k at depth 32");
        assert_eq!(loads[LARGE_WRITES].0, "sequential writes of 1M at depth 4");
    }
}
