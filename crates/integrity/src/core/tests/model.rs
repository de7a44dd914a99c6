//! Several threads on one volume: each reads its own writes, and blocks that all threads write are
//! never mixed.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::super::{Core, Stop};
use super::machine::Machine;
use super::world::{Dice, blocks, contents, handed_tag, read};
use super::{Case, bitmaps, directs, hash, inline, journals};
use crate::WriteMode;

const THREADS: u64 = 3;
/// Blocks at the front that all threads write.
const SHARED: u64 = 4;
const ROUNDS: u64 = 300;

/// Contents of a shared block: the version, the same in each sector for all writers.
fn shared(size: usize, version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(size / 8)
}

/// A thread's work; returns the versions of its blocks.
fn work(core: &Core, machine: &Machine, thread: u64) -> Vec<(u64, u64)> {
    let mut dice = Dice::new(thread + 77);
    let size = core.geometry().block_size();
    let own: Vec<u64> = (SHARED..blocks(core)).filter(|block| block / 3 % THREADS == thread).collect();
    let mut versions = vec![0; own.len()];
    let (way, at_once) = (&mut machine.way(), &mut machine.way_at_once());
    for round in 1..=ROUNDS {
        let pick = dice.below(own.len() as u64) as usize;
        match dice.below(10) {
            0 => core.flush(way).unwrap(),
            1..=3 => {
                let expected = match versions[pick] {
                    0 => vec![0; size],
                    version => contents(size, own[pick], version),
                };
                assert_eq!(read(core, way, own[pick]).unwrap(), expected, "block {}", own[pick]);
            }
            4 | 5 => {
                let data: Vec<u8> = shared(size, (thread << 32) | round).repeat(SHARED as usize);
                core.write(way, 0, &data, &handed_tag(core, &data)).unwrap();
            }
            6 => {
                let mut data = vec![0; size * SHARED as usize];
                let mut tags = vec![0; core.handed_tags() * SHARED as usize];
                core.read(way, 0, &mut data, &mut tags).unwrap();
                assert_eq!(tags, handed_tag(core, &data), "a block's tag is its own");
                // All shared blocks are written together, and not during a read.
                assert!(data.chunks(8).all(|version| version == &data[..8]), "a mixture");
            }
            _ => {
                let data = contents(size, own[pick], round);
                let (offset, tags) = (own[pick] * size as u64, handed_tag(core, &data));
                match core.write(at_once, offset, &data, &tags) {
                    Err(Stop::Blocked(_)) => core.write(way, offset, &data, &tags).unwrap(),
                    done => done.unwrap(),
                }
                versions[pick] = round;
            }
        }
    }
    own.into_iter().zip(versions).collect()
}

#[test]
fn threads_see_what_they_wrote_and_no_block_is_mixed() {
    let cases = journals().into_iter().chain(bitmaps()).chain(directs()).chain([inline()]);
    for case in cases {
        let machine = case.machine();
        machine.do_not_record();
        let core = case.open(&machine);
        let ended = AtomicBool::new(false);
        let versions: Vec<_> = std::thread::scope(|scope| {
            let (core, machine, ended) = (&core, &machine, &ended);
            let keeper = scope.spawn(move || {
                while !ended.load(SeqCst) {
                    core.tend(&mut machine.way()).unwrap();
                    std::thread::yield_now();
                }
            });
            let threads: Vec<_> = (0..THREADS).map(|t| scope.spawn(move || work(core, machine, t))).collect();
            // The keeper ends even if another thread fails.
            let results: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            ended.store(true, SeqCst);
            keeper.join().unwrap();
            results
                .into_iter()
                .flat_map(|result| result.unwrap_or_else(|_| panic!("{}", case.name)))
                .collect()
        });
        assert_eq!(core.status().mismatches, 0);
        core.flush(&mut machine.way()).unwrap();
        let crashed = machine.after(&machine.images());
        core.close(&mut machine.way()).unwrap();
        for machine in [&machine, &crashed] {
            let core = case.open(machine);
            while core.recalculate(&mut machine.way()).unwrap() {}
            let size = core.geometry().block_size();
            for (block, version) in &versions {
                let expected = if *version == 0 { vec![0; size] } else { contents(size, *block, *version) };
                assert_eq!(
                    read(&core, &mut machine.way(), *block).unwrap(),
                    expected,
                    "{}: {block}",
                    case.name
                );
            }
        }
    }
}

#[test]
fn after_a_clean_close_nothing_is_replayed() {
    for case in journals() {
        let machine = case.machine();
        let core = case.open(&machine);
        let size = core.geometry().block_size();
        for round in 0..30 {
            let data = contents(size, round % 5, round);
            core.write(&mut machine.way(), round % 5 * size as u64, &data, &handed_tag(&core, &data))
                .unwrap();
        }
        core.close(&mut machine.way()).unwrap();
        let before = machine.images();
        let core = case.open(&machine);
        assert!(machine.images() == before, "{}: opening changes nothing", case.name);
        machine.forget();
        core.close(&mut machine.way()).unwrap();
        assert_eq!(
            machine.events().iter().filter(|e| matches!(e, super::machine::Event::Write { .. })).count(),
            0
        );
    }
}

#[test]
fn one_commit_does_for_all_writes_before_it() {
    use super::machine::Event;
    let case = Case::new("batching", WriteMode::Journal, hash("crc32c"), 4096, None).sections(2).meta();
    let machine = case.machine();
    let core = case.open(&machine);
    machine.forget();
    for block in 0..20 {
        core.write(&mut machine.way(), block * 4096, &[block as u8; 4096], &[]).unwrap();
    }
    assert_eq!(machine.count(), 0, "nothing is written before it has to be");
    core.flush(&mut machine.way()).unwrap();
    core.flush(&mut machine.way()).unwrap();
    let events = machine.events();
    let [Event::Write { bytes, .. }, Event::Sync { .. }] = &events[..] else { panic!("one write, one sync") };
    assert_eq!(bytes.len(), core.geometry().section().bytes());
}

#[test]
fn who_may_not_wait_begins_nothing_that_could_stop_between_a_block_and_its_tag() {
    for case in bitmaps().into_iter().chain(directs()).chain([inline()]) {
        let machine = case.machine();
        let core = case.open(&machine);
        let before = machine.images();
        let data = contents(core.geometry().block_size(), 0, 1);
        let at_once = core.write(&mut machine.way_at_once(), 0, &data, &handed_tag(&core, &data));
        assert!(matches!(at_once, Err(Stop::Blocked(0))), "{}", case.name);
        assert!(machine.images() == before, "{}", case.name);
    }
}

#[test]
fn a_section_that_is_full_is_durable_after_the_commit_time() {
    let case = Case::new("commit time", WriteMode::Journal, hash("crc32c"), 4096, Some(200)).sections(5);
    let machine = case.machine();
    let mut core = case.open(&machine);
    core.settings.commit_time = std::time::Duration::ZERO;
    let data = vec![5; core.geometry().section().entries() * 4096];
    core.write(&mut machine.way(), 0, &data, &[]).unwrap();
    machine.forget();
    core.tend(&mut machine.way()).unwrap();
    assert!(matches!(machine.events().last(), Some(super::machine::Event::Sync { .. })));
}

#[test]
fn a_volume_that_is_closed_takes_nothing_more() {
    let case = Case::new("closed", WriteMode::Journal, hash("crc32c"), 512, None).sections(1);
    let machine = case.machine();
    let core = case.open(&machine);
    core.close(&mut machine.way()).unwrap();
    assert!(matches!(core.write(&mut machine.way_at_once(), 0, &[1; 512], &[]), Err(Stop::Failed(_))));
}
