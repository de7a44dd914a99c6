//! `ecryptfs`: a whole request in one call of the cipher and one lower write, compared with a page
//! at a time as in the kernel.
//!
//! ```text
//!   tiobench's phases, a file for each thread
//!     |
//!   File          batched: a request is one crypto call, one lower I/O, and at most one size write
//!     |           one at a time: each page of it, and the size after every page written
//!     v
//!   lower::Lower  a file in memory | a page cache over a modelled disk | a modelled disk, uncached
//! ```

mod file;
mod lower;

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use underseal_device::{Device, RamDevice};
use underseal_device_lab::{ModelDevice, Profile};

use super::{Experiment, Measured};
use crate::rounds::{interleaved, size};
use crate::{AnswerFigure, Cell, Error, ErrorKind, Goal, Lab, Panel, PanelShape, Range, Result, Unit};
use file::{File, FileVariant};
use lower::LowerMedium;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ecryptfs",
    question: "What does eCryptfs gain when a whole request is one crypto call and one lower write?",
    source: "RFC \"eCryptfs: Use the ablkcipher crypto API\", linux-crypto and ecryptfs, 2013",
    setup: "i5-2520M with AES-NI, tiobench with 1, 2, 4 and 8 threads; asynchronous crypto, still a page at a time, \
            against the kernel without it; a slow disk, an SSD, tmpfs",
    figures: "slow disk: sequential, 1 and 2 threads 8 to 20% slower, 4 and 8 threads faster, 8 threads +30 to 35%; SSD: 1 \
              and 2 threads +15 to 55%, random writes of one thread +139%, sequential reads about the same; tmpfs: over \
              +100% throughout",
    rounds: 5,
    run,
};

/// A phase of the load on a thread's file.
#[derive(Debug, Clone, Copy)]
struct Phase {
    name: &'static str,
    /// The size of a request in bytes.
    bytes: usize,
    write: bool,
    random: bool,
}

const fn phase(name: &'static str, bytes: usize, write: bool, random: bool) -> Phase {
    Phase { name, bytes, write, random }
}

const SEQUENTIAL_WRITE: usize = 0;
const RANDOM_WRITE: usize = 2;
const SEQUENTIAL: [usize; 3] = [0, 1, 3];
const PHASES: [Phase; 5] = [
    phase("sequential write, 128k", 128 << 10, true, false),
    phase("sequential write, 4k", 4 << 10, true, false),
    phase("random write, 4k", 4 << 10, true, true),
    phase("sequential read, 128k", 128 << 10, false, false),
    phase("random read, 4k", 4 << 10, false, true),
];

const THREADS: [usize; 4] = [1, 2, 4, 8];
const MOST_THREADS: u64 = 8;

/// A set-up: the medium below the files.
struct SetUp {
    name: &'static str,
    below: LowerMedium,
    /// The time of each phase.
    millis: u64,
}

const TMPFS: usize = 0;
const SLOW_CACHED: usize = 1;
const SSD_CACHED: usize = 2;
const SSD_WAITED: usize = 4;

fn set_ups(file: u64) -> Result<[SetUp; 5]> {
    // Memory is allocated on the first write, so a disk may be as large as a realistic seek needs.
    let disk = |profile: &Profile| -> Arc<dyn Device> {
        Arc::new(ModelDevice::new(Arc::new(RamDevice::new(8 << 30)), profile))
    };
    let (slow, ssd) = (disk(&Profile::rotating_disk()), disk(&Profile::sata_ssd()));
    let set_up = |name, below, millis| SetUp { name, below, millis };
    Ok([
        set_up("tmpfs", LowerMedium::memory(file * MOST_THREADS)?, 60),
        set_up("slow disk (model) under a page cache", LowerMedium::Cached(slow.clone()), 400),
        set_up("SSD (model) under a page cache", LowerMedium::Cached(ssd.clone()), 100),
        set_up("slow disk (model), each lower I/O waited for", LowerMedium::Waited(slow), 250),
        set_up("SSD (model), each lower I/O waited for", LowerMedium::Waited(ssd), 100),
    ])
}

/// The rates of one set-up: by phase, then by threads, then by variant, then by round.
type Rates = Vec<Vec<[Vec<f64>; 2]>>;

fn run(lab: &Lab<'_>, rounds: usize) -> Result<Measured> {
    let file = lab.bytes(16 << 20);
    let set_ups = set_ups(file)?;
    let mut all = Vec::new();
    for set_up in &set_ups {
        all.push(measure(lab, rounds, set_up, file)?);
    }
    let ratio = |set_up: usize, phase: usize, threads: usize| {
        let [batched, each] = &all[set_up][phase][threads];
        Range::of_ratios(batched, each)
    };
    // All rounds with one and with two threads: the figure is about a few percent.
    let few_threads = |set_up: usize, phase: usize| {
        let all_rounds = |way: usize| -> Vec<f64> {
            all[set_up][phase][..2].iter().flat_map(|ways: &[Vec<f64>; 2]| ways[way].clone()).collect()
        };
        Range::of_ratios(&all_rounds(0), &all_rounds(1))
    };
    let slowest = SEQUENTIAL.map(|phase| (few_threads(SLOW_CACHED, phase), PHASES[phase].name));
    let slowest = slowest.into_iter().min_by(|a, b| a.0.median.total_cmp(&b.0.median));
    let (least_on_disk, where_on_disk) = slowest.unwrap_or((Range::of([]), ""));
    let times = |what: String, range: Range| AnswerFigure::new(what, Unit::Times, range);
    let findings = vec![
        times("tmpfs, sequential write, 128k, 1 thread".into(), ratio(TMPFS, SEQUENTIAL_WRITE, 0))
            .published(2.0)
            .goal(Goal::AtLeast(2.0)),
        times("tmpfs, random write, 1 thread".into(), ratio(TMPFS, RANDOM_WRITE, 0)).published(2.0),
        times("SSD under a page cache, random write, 1 thread".into(), ratio(SSD_CACHED, RANDOM_WRITE, 0))
            .published(2.39),
        times("SSD, waited for, random write, 1 thread".into(), ratio(SSD_WAITED, RANDOM_WRITE, 0))
            .published(2.39)
            .goal(Goal::AtLeast(1.5)),
        // Where the disk decides, equal is the best possible result; a ratio slightly below 1 is
        // noise.
        times(format!("slow disk, 1 and 2 threads, the worst: {where_on_disk}"), least_on_disk)
            .published(0.8)
            .goal(Goal::AtLeast(0.97)),
        times("slow disk, sequential write, 128k, 8 threads".into(), ratio(SLOW_CACHED, SEQUENTIAL_WRITE, 3))
            .published(1.3),
    ];
    let answer = format!(
        "In memory large writes become {} as fast and small ones {}; where a disk decides nothing is lost: {} at worst, \
         sequential, with one or two threads on the slow one.",
        Unit::Times.show(ratio(TMPFS, SEQUENTIAL_WRITE, 0).median),
        Unit::Times.show(ratio(TMPFS, RANDOM_WRITE, 0).median),
        Unit::Times.show(least_on_disk.median),
    );
    let mut panels: Vec<Panel> =
        set_ups.iter().zip(&all).map(|(set_up, rates)| ratios(set_up.name, rates)).collect();
    panels.extend(set_ups.iter().zip(&all).map(|(set_up, rates)| absolute(set_up.name, rates)));
    Ok(Measured { setup: told(file), answer, findings, panels })
}

fn told(file: u64) -> Vec<String> {
    vec![
        format!(
            "a file of {} MiB for each thread, AES-128-CBC with the extents of eCryptfs; batched: a request is one crypto \
             call and one lower I/O, its size is written once and only where the file grows; one at a time: each page of \
             the request is one crypto call and one lower I/O, and the size is written after every page",
            file >> 20
        ),
        "requests: random ones of 4k, tiobench's block. Sequential writes come as the program makes them (there is no \
         write-back cache above): 4k from tiobench, 128k from who copies; sequential reads in 128k, the kernel's read-ahead"
            .into(),
        "tmpfs: a file in memory, a system call for each lower I/O, as in our filesystem".into(),
        "under a page cache: lower writes are copied to it; it hands the disk runs of up to 1 MiB, all at once, when 4 MiB \
         or 32 separate runs are dirty and at the end, which counts; it reads 128k ahead. So both ways ask the disk for \
         nearly the same: what differs is the processor's work, and the page with the size. This is how files lie on a disk"
            .into(),
        "waited for: no cache below; each lower I/O goes to the disk, and the size is a page in another place. On the slow \
         disk that is a turn of the platter or two for each: those figures are the model's, and say nothing of crypto"
            .into(),
        "a read of 4k is the same in both ways: how far its ratios are from 1 is how far to trust the others".into(),
        "both ways call the same code, in one process: what the kernel spends on each page besides (locks, a bounce page, \
         a scatter list) is not among this, nor is FUSE. What was published compares two kinds of crypto calls, not \
         batches: it stands beside as what a change of that layer gained then"
            .into(),
    ]
}

fn measure(lab: &Lab<'_>, rounds: usize, set_up: &SetUp, file: u64) -> Result<Rates> {
    let mut rates = Rates::new();
    for phase in PHASES {
        let what = format!("ecryptfs: {}, {}", set_up.name, phase.name);
        let seen = interleaved(lab, rounds, &what, THREADS.len() * 2, |nth| {
            let way = if nth % 2 == 0 { FileVariant::Batched } else { FileVariant::OneAtATime };
            rate(&set_up.below, phase, way, THREADS[nth / 2], file, lab.slice(set_up.millis))
        })?;
        rates.push(seen.chunks(2).map(|pair| [pair[0].clone(), pair[1].clone()]).collect());
    }
    Ok(rates)
}

/// Returns the rate of all threads together, in 10^6 bytes a second.
fn rate(
    below: &LowerMedium,
    phase: Phase,
    way: FileVariant,
    threads: usize,
    file: u64,
    time: Duration,
) -> Result<f64> {
    let barrier = Barrier::new(threads);
    let seen: Vec<Result<(u64, Duration)>> = thread::scope(|scope| {
        let start = |nth: u64| {
            let barrier = &barrier;
            scope.spawn(move || {
                let opened = below.open(nth, file).and_then(|lower| File::new(lower, way, file, nth));
                // Every thread reaches the barrier, even without a file.
                barrier.wait();
                let mut opened = opened?;
                let begun = Instant::now();
                let bytes = opened.run(phase, || begun.elapsed() >= time)?;
                Ok((bytes, begun.elapsed()))
            })
        };
        let threads: Vec<_> = (0..threads as u64).map(start).collect();
        let died = || Err(Error::new(ErrorKind::Wrong, "a thread of the load panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| died())).collect()
    });
    let (mut bytes, mut elapsed) = (0, Duration::ZERO);
    for each in seen {
        let (moved, took) = each?;
        bytes += moved;
        elapsed = elapsed.max(took);
    }
    Ok(bytes as f64 / 1e6 / elapsed.as_secs_f64())
}

fn threads(n: usize) -> String {
    format!("{n} thread{}", if n == 1 { "" } else { "s" })
}

fn ratios(name: &str, rates: &Rates) -> Panel {
    let panel =
        Panel::new(format!("Batched over a page at a time: {name}"), Unit::Times, THREADS.map(threads));
    PHASES.iter().zip(rates).fold(panel.shape(PanelShape::Dots), |panel, (phase, rates)| {
        panel.row(phase.name, rates.iter().map(|[batched, each]| Cell::from(Range::of_ratios(batched, each))))
    })
}

fn absolute(name: &str, rates: &Rates) -> Panel {
    let mut panel = Panel::new(format!("Rates: {name}"), Unit::MbPerS, ["batched", "a page at a time"])
        .note(format!("behind each phase: the number of threads; requests of {}", requests()));
    for (phase, rates) in PHASES.iter().zip(rates) {
        for (n, ways) in THREADS.iter().zip(rates).step_by(THREADS.len() - 1) {
            let cells = ways.each_ref().map(|rounds| Range::of(rounds.iter().copied()));
            panel = panel.row(format!("{}, {n}", phase.name), cells);
        }
    }
    panel
}

fn requests() -> String {
    let mut sizes: Vec<usize> = PHASES.iter().map(|phase| phase.bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(size).collect::<Vec<_>>().join(" and ")
}
