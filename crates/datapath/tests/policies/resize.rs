//! A volume that gets another size while it runs.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_datapath::engine::SoftwarePool;
use underseal_datapath::{Completion, ErrorKind, Mapping, Queue, Request};
use underseal_device::{Channel, Device, FileDevice, Geometry, Kind, OpenOptions, RamDevice};
use underseal_volume::{Segment, SegmentKind, Volume};

use super::halves::Halves;
use super::*;

/// More than any request takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(120);
const HALF: u64 = SIZE / 2;

fn sized(size: u64) -> Volume {
    Volume::new(vec![Segment::stored(0, size, 0, 0, xts(SectorSize::S4096))]).unwrap()
}

fn submit_read(queue: &mut Queue, tag: u64, offset: u64) {
    queue.submit(tag, Request::Read { offset, len: 4096 }).expect("there is room");
}

fn kinds(over: Vec<Completion>) -> Vec<Option<ErrorKind>> {
    over.into_iter().map(|completion| completion.result.err().map(|e| e.kind())).collect()
}

/// A file that is as long as it is.
struct Grows(FileDevice, PathBuf);

impl Device for Grows {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.1.metadata().unwrap().len(), ..self.0.geometry() }
    }

    fn channel(&self, depth: u32) -> underseal_device::Result<Box<dyn Channel>> {
        self.0.channel(depth)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

/// Writes to any sector that there is, reads it back, and looks beyond the end.
fn load(mapping: &Arc<Mapping>, number: u64, stop: &AtomicBool, furthest: &AtomicU64) {
    let mut queue = open(mapping);
    let mut turn = number;
    while !stop.load(SeqCst) {
        turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Each thread has every third sector.
        let sectors = mapping.size() / SECTOR / 3;
        let offset = ((turn >> 33) % sectors * 3 + number) * SECTOR;
        let fill = turn.to_le_bytes()[7];
        submit_write(&mut queue, 0, offset, 4096, fill);
        submit_read(&mut queue, 1, SIZE);
        assert_eq!(kinds(finish(&mut queue)), [None, Some(ErrorKind::OutOfRange)], "{offset}");
        assert_eq!(read(&mut queue, offset, 4096), [fill; 4096]);
        furthest.fetch_max(offset, SeqCst);
    }
}

#[test]
fn a_volume_grows_under_load_on_a_file_that_grew() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let device = Grows(FileDevice::open(&path, OpenOptions::default()).unwrap(), path);
    let mapping = Mapping::new(sized(1 << 20), Arc::new(device)).unwrap();
    let mapping = Arc::new(mapping.with_accelerator(Arc::new(SoftwarePool::new(1, 2).unwrap())));
    let (stop, furthest) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..3 {
            let (mapping, stop, furthest) = (&mapping, &stop, &furthest);
            scope.spawn(move || load(mapping, number, stop, furthest));
        }
        for (n, size) in [2 << 20, 3 << 20, 8 << 20, SIZE].into_iter().enumerate() {
            let before = mapping.size();
            let short = mapping.resize(sized(size), LONG).unwrap_err();
            assert_eq!((short.kind(), mapping.size()), (ErrorKind::Layout, before), "the file has not grown");
            file.set_len(size).unwrap();
            mapping.resize(sized(size), LONG).unwrap();
            assert_eq!(mapping.size(), size);
            mapping.set_policy(policy(POLICIES[n * 3])).unwrap();
            // Somebody has used what is new.
            while furthest.load(SeqCst) < before {
                thread::sleep(Duration::from_millis(1));
            }
        }
        stop.store(true, SeqCst);
    });
}

#[test]
fn a_queue_that_has_seen_nothing_of_it_takes_requests_for_what_is_new_and_refuses_the_rest() {
    let mapping = Arc::new(Mapping::new(sized(HALF), Arc::new(RamDevice::new(SIZE))).unwrap());
    let mut queue = open(&mapping);
    submit_read(&mut queue, 0, HALF);
    assert_eq!(kinds(finish(&mut queue)), [Some(ErrorKind::OutOfRange)]);
    mapping.resize(sized(SIZE - SECTOR), LONG).unwrap();
    queue.write_in_place(0, HALF, &mut [7; 4096], false).unwrap();
    submit_read(&mut queue, 1, SIZE - SECTOR);
    assert_eq!(kinds(finish(&mut queue)), [None, Some(ErrorKind::OutOfRange)]);
    assert_eq!(read(&mut queue, HALF, 4096), [7; 4096]);
}

#[test]
fn a_volume_that_shrinks_waits_for_what_lies_beyond_its_end() {
    for text in POLICIES {
        let (device, gate) = Halves::new(SIZE);
        let mapping = Mapping::new(sized(SIZE), device).unwrap();
        let mapping = Arc::new(mapping.with_accelerator(Arc::new(SoftwarePool::new(1, 2).unwrap())));
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        gate.hold(Kind::Write);
        submit_write(&mut queue, 0, HALF, 4096, 1);
        // It waits for the first: by then the volume ends before it.
        submit_write(&mut queue, 1, HALF, 8192, 2);
        while gate.halfway() < 1 {
            queue.poll().unwrap();
            assert!(queue.next_completion().is_none());
        }
        let over = thread::scope(|scope| {
            let busy = scope.spawn(|| mapping.resize(sized(HALF), Duration::from_millis(1)));
            while !busy.is_finished() {
                queue.poll().unwrap();
            }
            assert_eq!(busy.join().unwrap().unwrap_err().kind(), ErrorKind::Busy, "{text}");
            assert_eq!(mapping.size(), SIZE);
            submit_read(&mut queue, 2, SIZE - SECTOR);

            let shrinking = scope.spawn(|| mapping.resize(sized(HALF), LONG));
            while mapping.size() != HALF {
                thread::yield_now();
            }
            submit_read(&mut queue, 3, HALF);
            submit_read(&mut queue, 4, HALF - SECTOR);
            let mut over = Vec::new();
            while over.len() < 3 {
                over.extend(queue.next_completion());
                queue.poll().unwrap();
            }
            assert!(!shrinking.is_finished(), "{text}: a write is there");
            gate.open();
            while !shrinking.is_finished() {
                over.extend(queue.next_completion());
                queue.poll().unwrap();
            }
            shrinking.join().unwrap().unwrap();
            over
        });
        let mut over: Vec<_> = over.into_iter().chain(finish(&mut queue)).collect();
        over.sort_by_key(|completion| completion.tag);
        let outside = Some(ErrorKind::OutOfRange);
        assert_eq!(kinds(over), [None, outside, None, outside, None], "{text}");
    }
}

#[test]
fn only_the_same_volume_of_another_size_takes_its_place() {
    let mapping = Mapping::new(sized(HALF), Arc::new(RamDevice::new(SIZE))).unwrap();
    let xts = || xts(SectorSize::S4096);
    let grown = |last: Segment| Volume::new(vec![Segment::stored(0, HALF, 0, 0, xts()), last]).unwrap();
    let elsewhere = Volume::new(vec![Segment::stored(0, SIZE - SECTOR, SECTOR, 0, xts())]).unwrap();
    let sectors = Volume::new(vec![Segment::stored(0, SIZE, 0, 0, super::xts(SectorSize::S512))]).unwrap();
    let beyond = grown(Segment::stored(HALF, SIZE, HALF, 0, xts()));
    let begins = Segment { kind: SegmentKind::Zero, ..Segment::stored(0, SECTOR, 0, 0, xts()) };
    let rest = Segment::stored(SECTOR, SIZE - SECTOR, SECTOR, 8, xts());
    let begins_otherwise = Volume::new(vec![begins, rest]).unwrap();
    for volume in [elsewhere, sectors, beyond, begins_otherwise] {
        assert_eq!(mapping.resize(volume, LONG).unwrap_err().kind(), ErrorKind::Layout);
        assert_eq!(mapping.size(), HALF);
    }
    // What comes may lie anywhere.
    mapping.resize(grown(Segment::stored(HALF, SECTOR, SIZE - SECTOR, 0, xts())), LONG).unwrap();
    assert_eq!(mapping.size(), HALF + SECTOR);
    mapping.suspend(LONG).unwrap();
    mapping.resize(sized(HALF), LONG).unwrap();
    mapping.wipe_key().unwrap();
    assert_eq!(mapping.resize(sized(SIZE), LONG).unwrap_err().kind(), ErrorKind::NoKey);
    assert_eq!(mapping.replace_volume(sized(SIZE)).unwrap_err().kind(), ErrorKind::Layout);
    mapping.replace_volume(sized(HALF)).unwrap();
    assert_eq!(mapping.size(), HALF);
}
