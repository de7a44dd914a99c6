//! The processor's own cipher over sectors of 4 and of 64 KiB.

use std::sync::Arc;

use underseal_bench::{Effort, Subject, rates};
use underseal_datapath::Policy;
use underseal_device::Device;
use underseal_device_lab::{ModelDevice, Profile};

use super::{Part, sectors, times};
use crate::load::{Load, LoadEnd, LoadTarget};
use crate::rounds::{Contenders, Grid};
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Lab, Panel, Range, Result, Unit};

const SMALL: u32 = 4 << 10;
const LARGE: u32 = 64 << 10;
const JOBS: usize = 32;
const IN_SMALL: &str = "4 KiB sectors";
const IN_LARGE: &str = "64 KiB sectors";

pub(super) fn run(lab: &Lab<'_>, rounds: usize) -> Result<Part> {
    (lab.progress)("sectors: the processor's cipher");
    let alone = alone(lab, rounds)?;
    let gain = Range::of_ratios(&alone[1], &alone[0]);
    let rate = |nth: usize| Range::of(alone[nth].iter().map(|gb| gb * 1e3));

    let ram = volumes::ram(lab.bytes(256 << 20))?;
    let ssd: Arc<dyn Device> = Arc::new(ModelDevice::new(ram.clone(), &Profile::nvme()));
    let ways = |device| -> Result<Contenders> {
        let volume = |sector| -> Result<LoadTarget> {
            Ok(LoadTarget::Volume(volumes::mapping(XTS, sector, device)?, Policy::INLINE))
        };
        Ok(Contenders(vec![(IN_SMALL, volume(SMALL)?), (IN_LARGE, volume(LARGE)?)]))
    };
    let load = |reads| Load::new(LARGE as usize, reads, LoadEnd::Time(lab.slice(300))).random().threads(JOBS);
    let loads = [("random read".to_owned(), load(100)), ("random write".to_owned(), load(0))];
    let grid = ways(&ssd)?.measure(lab, rounds, "sectors: 32 jobs on an SSD", &loads)?;
    let memory = ways(&ram)?.measure(lab, rounds, "sectors: 32 jobs in memory", &loads)?;
    let ratio = |grid: &Grid, load| grid.ratio(IN_LARGE, IN_SMALL, load, |seen| seen.mb_per_s());
    let small = AnswerFigure::new("tcrypt's operation of 4 KiB", Unit::MbPerS, rate(0)).published(657.0);
    let large = AnswerFigure::new("tcrypt's operation of 64 KiB", Unit::MbPerS, rate(1)).published(832.0);
    Ok(Part {
        setup: vec![
            "processor: xts(aes) with a key of 256 bits, decryption, an operation is one sector, in cache; 32 threads with a \
             random request of 64 KiB each, in memory and on a model of an NVMe SSD"
                .into(),
        ],
        answer: format!("A processor's own AES gains {} from them.", Unit::Times.show(gain.median)),
        findings: vec![
            times("processor: an operation of 64 KiB over one of 4 KiB", gain).published(832.0 / 657.0),
            times("32 random readers on an SSD, 64 KiB over 4 KiB sectors", ratio(&grid, 0)).published(1.09),
            times("32 random writers on an SSD, 64 KiB over 4 KiB sectors", ratio(&grid, 1)).published(1.16),
            times("32 random readers in memory, 64 KiB over 4 KiB sectors", ratio(&memory, 0)),
            times("32 random writers in memory, 64 KiB over 4 KiB sectors", ratio(&memory, 1)),
            small,
            large,
        ],
        panels: vec![
            Panel::new("Decryption by the processor, one sector an operation", Unit::MbPerS, ["cipher"])
                .row(sectors(SMALL), [Cell::from(rate(0))])
                .row(sectors(LARGE), [Cell::from(rate(1))]),
            memory.panel("Random requests of 64 KiB, 32 threads, memory", Unit::MbPerS, |seen| seen.mb_per_s()),
            grid.panel("Random requests of 64 KiB, 32 threads, NVMe SSD (model)", Unit::MbPerS, |seen| {
                seen.mb_per_s()
            }),
        ],
    })
}

/// Measures like tcrypt: an operation is one sector. Returns the throughput of every round, in
/// GB/s, of small and of large operations.
fn alone(lab: &Lab<'_>, rounds: usize) -> Result<Vec<Vec<f64>>> {
    let spec = XTS.parse()?;
    let mut subjects = Vec::new();
    for sector in [SMALL, LARGE] {
        let cipher = volumes::keyed(&spec, 32, 0, sector)?;
        let bytes = sector as usize;
        let call = move |buffer: &mut [u8]| cipher.decrypt(0, (&mut buffer[..bytes]).into());
        subjects.push(Subject { bytes, call: Box::new(call) });
    }
    let effort = Effort { rounds: lab.rounds(rounds * 3), slice: lab.slice(20) };
    Ok(rates(effort, &mut subjects, &mut vec![0x5a; LARGE as usize]))
}
