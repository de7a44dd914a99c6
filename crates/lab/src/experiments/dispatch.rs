//! `dispatch`: the threads that run the crypto when one submitter has more of it than a processor
//! can do.

use std::sync::Arc;

use underseal_cipher::SectorCipher;
use underseal_datapath::{Mapping, Policy};
use underseal_device::{Device, StripeDevice};
use underseal_device_lab::{ModelDevice, Profile};
use underseal_volume::{DispatchFlags, Segment, Volume};

use super::{Experiment, Measured};
use crate::load::{Load, LoadEnd, LoadResult, LoadTarget};
use crate::rounds::{Contenders, Grid};
use crate::volumes::{self, NULL, XTS};
use crate::{AnswerFigure, Goal, Lab, Panel, Range, Result, Unit};

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "dispatch",
    question: "Who should run the crypto of one submitter's requests: its own thread, any core, or a thread a core?",
    source: "\"dm-crypt performance\", dm-devel, March 2013",
    setup: "RAID-0 of two disks (260 MB/s) and a RAM disk, dm-crypt over RAID and RAID over dm-crypt, direct sequential I/O \
            from one submitter; Linux 3.8",
    figures: "RAID-0: unbound work queue = hand-built dispatch = the disks; RAM disk: hand-built 400 MB/s, unbound 620, with \
              a scheduler patch 700; RAID over several dm-crypt devices: all requests on one core",
    rounds: 5,
    run,
};

const UNBOUND: &str = "unbound workers";
const PER_CPU: &str = "per-CPU workers";
const BUILT: &str = "workers, one submitter";
const INLINE: &str = "inline";
const ADAPTIVE: &str = "adaptive";
const OTHERS: [&str; 4] = [UNBOUND, PER_CPU, BUILT, INLINE];

/// The loads that are measured on each set-up; the first is the published one.
fn loads(lab: &Lab<'_>) -> [(String, Load); 6] {
    let slice = LoadEnd::Time(lab.slice(100));
    [
        ("1M sequential reads, depth 4", Load::new(1 << 20, 100, slice).depth(4)),
        ("1M sequential writes, depth 4", Load::new(1 << 20, 0, slice).depth(4)),
        ("64k sequential reads, depth 8", Load::new(64 << 10, 100, slice).depth(8)),
        ("4k random reads, depth 32", Load::new(4 << 10, 100, slice).depth(32).random()),
        ("4k random writes, depth 32", Load::new(4 << 10, 0, slice).depth(32).random()),
        ("4k random reads, depth 1", Load::new(4 << 10, 100, slice).random()),
    ]
    .map(|(name, load)| (name.to_owned(), load))
}

fn ways(mapping: &Arc<Mapping>) -> Contenders {
    let volume = |policy| LoadTarget::Volume(mapping.clone(), policy);
    Contenders(vec![
        (UNBOUND, volume(Policy::WORKERS)),
        (PER_CPU, volume(Policy::SAME_CPU)),
        (BUILT, volume(Policy::from_flags(DispatchFlags::default()))),
        (INLINE, volume(Policy::INLINE)),
        (ADAPTIVE, volume(Policy::ADAPTIVE)),
    ])
}

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let bytes = lab.bytes(64 << 20);
    let ram = volumes::ram(bytes)?;
    let ssd = || -> Result<Arc<dyn Device>> {
        Ok(Arc::new(ModelDevice::new(volumes::ram(bytes)?, &Profile::sata_ssd())))
    };
    let stripe: Arc<dyn Device> = Arc::new(StripeDevice::new(vec![ssd()?, ssd()?], 64 << 10)?);
    let set_ups = [
        ("memory, null cipher", volumes::mapping(NULL, 512, &ram)?),
        ("memory, AES-XTS", volumes::mapping(XTS, 4096, &ram)?),
        ("one volume over a stripe of two SSDs (model)", volumes::mapping(XTS, 4096, &stripe)?),
        ("a stripe over two volumes in memory", stripe_of_volumes(bytes)?),
    ];
    let loads = loads(lab);
    let mut grids = Vec::new();
    for (name, mapping) in &set_ups {
        grids.push((*name, ways(mapping).measure(lab, rounds, &format!("dispatch: {name}"), &loads)?));
    }
    let rate = |seen: &LoadResult| seen.mb_per_s();
    let worst = grids.iter().map(|(name, grid)| {
        let (load, range) = grid.worst(ADAPTIVE, |load| grid.best(&OTHERS, load, rate), rate);
        (format!("{name}, {load}"), range)
    });
    let worst = worst.min_by(|a, b| a.1.median.total_cmp(&b.1.median));
    let (where_, worst) = worst.unwrap_or((String::new(), Range::of([])));
    let (null, real) = (&grids[0].1, &grids[1].1);
    let gain = real.ratio(ADAPTIVE, INLINE, 0, rate);
    let over_built = |grid: &Grid, way| grid.ratio(way, BUILT, 0, rate);
    let mut findings = vec![
        AnswerFigure::new("1M sequential reads under AES: adaptive over inline", Unit::Times, gain)
            .goal(Goal::AtLeast(1.6)),
        AnswerFigure::new(
            format!("adaptive over the best of the others, at its worst ({where_})"),
            Unit::Part,
            worst,
        )
        .goal(Goal::AtLeast(0.95)),
        AnswerFigure::new("null cipher: unbound over one submitter", Unit::Times, over_built(null, UNBOUND))
            .published(620.0 / 400.0),
        AnswerFigure::new("AES: unbound over one submitter", Unit::Times, over_built(real, UNBOUND)),
        AnswerFigure::new("AES: inline over one submitter", Unit::Times, over_built(real, INLINE)),
        AnswerFigure::new(
            "stripe of two SSDs: unbound over one submitter",
            Unit::Times,
            over_built(&grids[2].1, UNBOUND),
        )
        .published(1.0),
    ];
    let mut panels = Vec::new();
    for (name, grid) in &grids {
        panels.push(grid.panel(&format!("Throughput: {name}"), Unit::MbPerS, rate));
    }
    let mut cores = Panel::new(
        "Processors in use, 1M sequential reads from one submitter",
        Unit::Count,
        [UNBOUND, PER_CPU, BUILT, INLINE, ADAPTIVE],
    )
    .note("crypto on one core is the regression that users of RAID over dm-crypt complained of");
    let used = |seen: &LoadResult| seen.cpu.as_secs_f64() / seen.elapsed.as_secs_f64();
    for (name, grid) in &grids {
        let each = [UNBOUND, PER_CPU, BUILT, INLINE, ADAPTIVE].map(|way| grid.range(way, 0, used));
        cores = cores.row(*name, each);
    }
    let on_volumes = &grids[3].1;
    findings.push(AnswerFigure::new(
        "a stripe over two volumes: processors in use, per-CPU workers",
        Unit::Count,
        on_volumes.range(PER_CPU, 0, used),
    ));
    findings.push(AnswerFigure::new(
        "a stripe over two volumes: processors in use, adaptive",
        Unit::Count,
        on_volumes.range(ADAPTIVE, 0, used),
    ));
    panels.push(cores);
    Ok(Measured {
        setup: vec![
            "one thread submits; AES-256-XTS in sectors of 4 KiB".into(),
            "unbound: any worker, requests split at 128 KiB; per-CPU: the worker of the submitter's processor \
             (same_cpu_crypt); one submitter: workers encrypt, one thread sorts and submits, as dm-crypt does without flags; \
             adaptive: the submitter's thread, and idle workers for what it cannot keep up with"
                .into(),
            "a stripe over volumes: two devices, each under a key of its own, a chunk of 1 MiB on each in turn".into(),
            "processors in use: the process's processor time over the time that passed".into(),
        ],
        answer: format!(
            "Adaptive dispatch reads {} as fast as inline in 1M requests from one submitter, and is never below {} of the \
             best of the others.",
            Unit::Times.show(gain.median),
            Unit::Part.show(worst.median)
        ),
        findings,
        panels,
    })
}

/// RAID-0 over two encrypted devices: chunks on each in turn, each under its own key.
fn stripe_of_volumes(bytes: u64) -> Result<Arc<Mapping>> {
    const CHUNK: u64 = 1 << 20;
    let spec = XTS.parse()?;
    let ciphers: [Arc<dyn SectorCipher>; 2] =
        [volumes::keyed(&spec, 64, 0, 4096)?, volumes::keyed(&spec, 64, 100, 4096)?];
    let segments = (0..bytes / CHUNK).map(|nth| {
        let member = usize::from(nth % 2 == 1);
        let lower = nth / 2 * CHUNK;
        Segment::stored(nth * CHUNK, CHUNK, lower, lower >> 9, ciphers[member].clone()).on_device(member)
    });
    let volume = Volume::new(segments.collect())?;
    let devices = vec![volumes::ram(bytes / 2)?, volumes::ram(bytes / 2)?];
    Ok(Arc::new(Mapping::over(volume, devices)?))
}
