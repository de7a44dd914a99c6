//! `zoned`: a zone accepts writes only in the order of its sectors. Which policies keep this order.

use std::sync::Arc;

use underseal_datapath::{Dispatch, Policy, WriteOrder};
use underseal_device::{Device, RamDevice, Zones};
use underseal_device_lab::ZonedDevice;
use underseal_volume::DispatchFlags;

use super::{Experiment, Measured};
use crate::load::{self, Load, LoadEnd, LoadTarget};
use crate::rounds::interleaved;
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Error, ErrorKind, Goal, Lab, Panel, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "zoned",
    question: "Do the writes of a zone stay in the order that shingled disks demand?",
    source: "RFC \"dm-crypt: add DM_CRYPT_FORCE_INLINE\" and its thread, dm-devel, June 2020",
    setup: "host-managed SMR disks under dm-crypt",
    figures: "queued writes can be reordered, which sequential zones forbid; inline writes keep the order, reads need not be \
              inline (hence a flag for each); no numbers",
    rounds: 5,
    run,
};

const INLINE: &str = "inline";
const MIXED: &str = "reads by workers, writes inline";
const ARRIVAL: &str = "workers, arrival order";
const SORTED: &str = "workers, sorted";
const UNSORTED: &str = "workers, unsorted";
const ADAPTIVE: &str = "adaptive";
const WAYS: [&str; 6] = [INLINE, MIXED, ARRIVAL, SORTED, UNSORTED, ADAPTIVE];

const WRITE: usize = 64 << 10;
const ZONES: Zones = Zones { size: 4 << 20, conventional: 0 };

fn policy(way: &str) -> Policy {
    match way {
        INLINE => Policy::INLINE,
        MIXED => Policy { write: Dispatch::Inline, ..Policy::WORKERS },
        ARRIVAL => Policy { write_order: WriteOrder::Arrival, ..Policy::WORKERS },
        SORTED => Policy::from_flags(DispatchFlags::default()),
        UNSORTED => Policy::WORKERS,
        _ => Policy::ADAPTIVE,
    }
}

/// An empty zoned disk; `declared`: the disk reports its zones.
fn disk(size: u64, declared: bool) -> Result<Arc<ZonedDevice>> {
    Ok(Arc::new(ZonedDevice::new(Arc::new(RamDevice::new(size)), ZONES, declared)?))
}

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let size = lab.bytes(128 << 20);
    let load = Load::new(WRITE, 0, LoadEnd::Bytes(size)).depth(32);
    let seen = interleaved(lab, rounds, "zoned: every zone is written once", WAYS.len(), |way| {
        let zoned = disk(size, false)?;
        let device: Arc<dyn Device> = zoned.clone();
        let volume = LoadTarget::Volume(volumes::mapping(XTS, 4096, &device)?, policy(WAYS[way]));
        let (seen, _) = load::run_with_errors(&volume, &load)?;
        if (zoned.violations() == 0) != (seen.errors == 0) {
            return Err(Error::new(
                ErrorKind::Wrong,
                "a write that a zone refused did not fail, or the reverse",
            ));
        }
        Ok((seen.errors as f64, seen.mb_per_s()))
    })?;
    let errors = |way: &str| {
        let nth = WAYS.iter().position(|name| *name == way).unwrap_or(0);
        Range::of(seen[nth].iter().map(|(errors, _)| *errors))
    };
    let mut failed = Panel::new("Writes that a zone refused", Unit::Count, ["refused"])
        .less_is_better()
        .note(format!("of {} writes of 64 KiB, 32 in flight", size / WRITE as u64));
    let mut rates = Panel::new("What reached the disk", Unit::MbPerS, ["rate"]);
    for (way, seen) in WAYS.iter().zip(&seen) {
        failed = failed.row(*way, [Cell::from(errors(way))]);
        rates = rates.row(*way, [Cell::from(Range::of(seen.iter().map(|(_, rate)| *rate)))]);
    }
    let refused = refused(size)?;
    let unsorted = errors(UNSORTED);
    let broken = if unsorted.median > 0.0 {
        format!("unsorted workers lose {:.0} of {} writes", unsorted.median, size / WRITE as u64)
    } else {
        "unsorted workers had luck in these rounds".into()
    };
    let none =
        |what: &str, way: &str| AnswerFigure::new(what, Unit::Count, errors(way)).goal(Goal::AtMost(0.0));
    Ok(Measured {
        setup: vec![
            format!(
                "a zoned disk in memory, {} zones of {} MiB, each written once from its start, 32 writes of 64 KiB in \
                 flight, AES-256-XTS",
                size / ZONES.size,
                ZONES.size >> 20
            ),
            format!(
                "the disk does not tell that it is zoned: where it does, the volume refuses these policies: {}",
                refused.join("; ")
            ),
        ],
        answer: format!("Inline writes stay in order, whoever decrypts reads; {broken}."),
        findings: vec![
            none("writes refused under inline", INLINE),
            none("writes refused, reads by workers, writes inline", MIXED),
            none("writes refused, workers in arrival order", ARRIVAL),
            AnswerFigure::new("writes refused, unsorted workers", Unit::Count, unsorted),
            AnswerFigure::new("writes refused, sorted workers", Unit::Count, errors(SORTED)),
        ],
        panels: vec![failed, rates],
    })
}

/// The policies that a volume over a disk with reported zones refuses.
fn refused(size: u64) -> Result<Vec<&'static str>> {
    let device: Arc<dyn Device> = disk(size, true)?;
    let mapping = volumes::mapping(XTS, 4096, &device)?;
    Ok(WAYS.into_iter().filter(|way| mapping.set_policy(policy(way)).is_err()).collect())
}
