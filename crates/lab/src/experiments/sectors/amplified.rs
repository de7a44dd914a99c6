//! The objection: a write of 4 KiB on a sector of 64 KiB reads the sector, changes it, encrypts it
//! again and writes it.

use std::sync::Arc;

use underseal_datapath::Policy;
use underseal_device::{Device, IoKind};
use underseal_device_lab::{ModelDevice, Profile, RecorderDevice};

use super::{Part, sectors, times};
use crate::load::{self, Load, LoadEnd, LoadTarget};
use crate::rounds::interleaved;
use crate::volumes::{self, XTS};
use crate::{Lab, Panel, Range, Result, Unit};

const SECTORS: [u32; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const WRITE: usize = 4 << 10;
const DEPTH: usize = 8;
/// More records than a round makes.
const RECORDS: usize = 1 << 19;

pub(super) fn run(lab: &Lab<'_>, rounds: usize) -> Result<Part> {
    let ssd: Arc<dyn Device> =
        Arc::new(ModelDevice::new(volumes::ram(lab.bytes(128 << 20))?, &Profile::nvme()));
    let recorder = Arc::new(RecorderDevice::new(ssd, RECORDS));
    let device: Arc<dyn Device> = recorder.clone();
    let block = u32::try_from(WRITE).unwrap_or(u32::MAX);
    let mut volumes_ = Vec::new();
    for sector in SECTORS {
        let mapping = volumes::bare_mapping(volumes::cipher(XTS, sector)?, &device)?.with_block(block)?;
        volumes_.push(LoadTarget::Volume(Arc::new(mapping), Policy::INLINE));
    }
    let load = Load::new(WRITE, 0, LoadEnd::Time(lab.slice(300))).random().depth(DEPTH);
    let seen = interleaved(lab, rounds, "sectors: small writes", SECTORS.len(), |nth| {
        recorder.take();
        let seen = load::run(&volumes_[nth], &load)?;
        let records = recorder.take();
        let moved = |kind| records.iter().filter(|r| r.kind == kind).map(|r| r.len).sum::<u64>() as f64;
        let writes = records.iter().filter(|r| r.kind == IoKind::Write).count().max(1);
        // The recorder also sees the warm-up's requests, so the bytes of the volume's writes are
        // counted from the recorded writes.
        let above = (writes * WRITE) as f64;
        Ok((seen.iops(), moved(IoKind::Read) / above, moved(IoKind::Write) / above))
    })?;
    let range = |nth: usize, of: fn(&(f64, f64, f64)) -> f64| Range::of(seen[nth].iter().map(of));
    let mut amplified = Panel::new(
        "Random writes of 4 KiB: bytes moved below for a byte written above",
        Unit::Times,
        ["read", "written"],
    )
    .less_is_better();
    let mut rate =
        Panel::new("Random writes of 4 KiB, NVMe SSD (model), 8 in flight", Unit::Iops, ["writes"]);
    for (nth, sector) in SECTORS.iter().enumerate() {
        amplified = amplified.row(sectors(*sector), [range(nth, |s| s.1), range(nth, |s| s.2)]);
        rate = rate.row(sectors(*sector), [range(nth, |s| s.0)]);
    }
    let each = |nth: usize| seen[nth].iter().map(|seen| seen.0).collect::<Vec<_>>();
    let kept = Range::of_ratios(&each(4), &each(0));
    let moved = range(4, |s| s.1 + s.2);
    Ok(Part {
        setup: vec![format!(
            "small writes: random writes of 4 KiB, {DEPTH} in flight, on a model of an NVMe SSD; what was moved below is \
                 counted by a recorder between volume and disk"
        )],
        answer: format!(
            "But small random writes on 64 KiB sectors move {} the bytes and keep {} of their rate.",
            Unit::Times.show(moved.median),
            Unit::Part.show(kept.median)
        ),
        findings: vec![
            times("small writes, 64 KiB sectors: bytes moved for a byte written", moved),
            crate::AnswerFigure::new("small writes: rate on 64 KiB over 4 KiB sectors", Unit::Part, kept),
        ],
        panels: vec![amplified, rate],
    })
}
