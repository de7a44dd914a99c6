//! `order`: writes that several threads encrypt reach a rotating disk out of order. The experiment
//! measures the cost, and compares sorting in the encryption layer with sorting in the disk's
//! scheduler.

use std::sync::Arc;

use underseal_datapath::{Policy, WriteOrder};
use underseal_device::{Device, RamDevice};
use underseal_device_lab::{ModelDevice, Profile};
use underseal_volume::DispatchFlags;

use super::{Experiment, Measured};
use crate::load::{self, Load, LoadEnd, LoadTarget};
use crate::rounds::{interleaved, size};
use crate::volumes::{self, XTS};
use crate::{AnswerFigure, Cell, Lab, Panel, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "order",
    question: "Must the encryption layer put writes back in order before it submits them?",
    source: "\"dm-crypt performance\", dm-devel, March 2013",
    setup: "rotating disks under deadline, noop and CFQ; crypto on all cores",
    figures: "writes reordered by parallel crypto: 50% slower than single-threaded dm-crypt with deadline or noop, 8 times \
              slower with CFQ; sorting them in dm-crypt removes the loss",
    rounds: 3,
    run,
};

const UNSORTED: &str = "unsorted";
const SORTED: &str = "sorted";
const ARRIVAL: &str = "arrival";
const INLINE: &str = "inline";
const WAYS: [&str; 4] = [UNSORTED, SORTED, ARRIVAL, INLINE];

/// Sequential writes: the size in bytes, and the number of simultaneous writes.
const LOADS: [(usize, usize); 3] = [(4 << 10, 64), (32 << 10, 32), (128 << 10, 32)];

fn policy(way: &str) -> Policy {
    let workers = Policy::WORKERS;
    match way {
        UNSORTED => workers,
        SORTED => Policy::from_flags(DispatchFlags::default()),
        ARRIVAL => Policy { write_order: WriteOrder::Arrival, ..workers },
        _ => Policy::INLINE,
    }
}

/// A disk under a volume.
struct SetUp {
    name: &'static str,
    model: Arc<ModelDevice>,
    volume: LoadTarget,
}

impl SetUp {
    fn new(name: &'static str, profile: &Profile) -> Result<Self> {
        // Memory is allocated on the first write, so the disk may be as large as a realistic seek
        // needs.
        let model = Arc::new(ModelDevice::new(Arc::new(RamDevice::new(8 << 30)), profile));
        let device: Arc<dyn Device> = model.clone();
        let volume = LoadTarget::Volume(volumes::mapping(XTS, 4096, &device)?, Policy::INLINE);
        Ok(Self { name, model, volume })
    }

    fn under(&self, way: &str) -> LoadTarget {
        match &self.volume {
            LoadTarget::Volume(mapping, _) => LoadTarget::Volume(mapping.clone(), policy(way)),
            LoadTarget::Bare(device) => LoadTarget::Bare(device.clone()),
        }
    }
}

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let disk = Profile::rotating_disk();
    let set_ups = [
        SetUp::new("a merging scheduler below", &disk)?,
        SetUp::new("no scheduler below", &disk.without_scheduler())?,
    ];
    let mut rate_panel = Panel::new("Sequential writes to a rotating disk (model)", Unit::MbPerS, WAYS);
    let mut seek_panel =
        Panel::new("Times the head had to move or to wait, a thousand writes", Unit::Count, WAYS)
            .less_is_better();
    let mut findings = Vec::new();
    let mut losses = Vec::new();
    for set_up in &set_ups {
        for (bytes, depth) in LOADS {
            let load = Load::new(bytes, 0, LoadEnd::Time(lab.slice(500))).depth(depth);
            let what = format!("order: {}, {} writes", set_up.name, size(bytes));
            let seen = interleaved(lab, rounds, &what, WAYS.len(), |way| {
                let before = set_up.model.counters();
                let seen = load::run(&set_up.under(WAYS[way]), &load)?;
                let after = set_up.model.counters();
                let requests = (after.requests - before.requests).max(1);
                Ok((seen.mb_per_s(), (after.seeks - before.seeks) as f64 * 1e3 / requests as f64))
            })?;
            let rates: Vec<Vec<f64>> =
                seen.iter().map(|each| each.iter().map(|(rate, _)| *rate).collect()).collect();
            let seeks = seen.iter().map(|each| Range::of(each.iter().map(|(_, seeks)| seeks.round())));
            let label = format!("{}, {}", size(bytes), set_up.name);
            rate_panel =
                rate_panel.row(&label, rates.iter().map(|each| Cell::from(Range::of(each.iter().copied()))));
            seek_panel = seek_panel.row(&label, seeks.collect::<Vec<_>>());
            let [unsorted, sorted, arrival, inline] = &rates[..] else {
                unreachable!("four ways were measured")
            };
            if bytes == 128 << 10 {
                let name = set_up.name;
                let lost = Range::of_ratios(unsorted, arrival);
                let finding =
                    AnswerFigure::new(format!("unsorted over arrival order, {name}"), Unit::Part, lost);
                // Deadline and noop merge and sort; CFQ's slowdown has no model here.
                let merges = name == set_ups[0].name;
                findings.push(if merges { finding.published(0.5) } else { finding });
                let over = Range::of_ratios(sorted, arrival);
                findings.push(AnswerFigure::new(
                    format!("sorted over arrival order, {name}"),
                    Unit::Part,
                    over,
                ));
                let over = Range::of_ratios(inline, sorted);
                findings.push(AnswerFigure::new(format!("inline over sorted, {name}"), Unit::Part, over));
                losses.push(format!("{} with {name}", Unit::Part.show(lost.median)));
            }
        }
    }
    Ok(Measured {
        setup: vec![
            "a disk of 7200 turns a minute and 180 MB/s over memory, its write cache off; AES-256-XTS; sequential writes from \
             one thread, 64 in flight at 4k, 32 at 32k and 128k"
                .into(),
            "unsorted: whoever encrypted a write submits it; sorted: one submitter, by sector, as dm-crypt since 4.0; \
             arrival: workers encrypt, writes go down as they came; inline: no workers"
                .into(),
            "how much is reordered depends on how many processors there are: more of them reorder more".into(),
        ],
        answer: format!(
            "Unsorted parallel writes reach {} of what the same writes reach in order (128k); inline writes are never out of \
             order.",
            losses.join(" and ")
        ),
        findings,
        panels: vec![rate_panel, seek_panel],
    })
}
