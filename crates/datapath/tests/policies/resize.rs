//! A volume that is resized while it runs.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use underseal_cipher::SectorSize;
use underseal_datapath::{Completion, ErrorKind, Mapping, Queue, Request};
use underseal_device::{FileDevice, IoKind, OpenOptions, RamDevice};
use underseal_volume::{Segment, SegmentKind, Volume};

use super::halves::Halves;
use super::*;

/// Longer than any request takes, also on a busy machine.
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

/// Writes to random sectors, reads them back, and tries beyond the end.
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
    let device = FileDevice::open(&path, OpenOptions::default()).unwrap();
    let mapping = Mapping::new(sized(1 << 20), Arc::new(device)).unwrap();
    let mapping = Arc::new(mapping);
    let (stop, furthest) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for number in 0..3 {
            let (mapping, stop, furthest) = (&mapping, &stop, &furthest);
            scope.spawn(move || load(mapping, number, stop, furthest));
        }
        for (n, size) in [2 << 20, 3 << 20, 8 << 20, SIZE].into_iter().enumerate() {
            let before = mapping.size();
            let short = mapping.resize(Some(size), LONG).unwrap_err();
            assert_eq!((short.kind(), mapping.size()), (ErrorKind::Layout, before), "the file has not grown");
            file.set_len(size).unwrap();
            // A given size, or all of the device.
            let wanted = (n % 2 == 0).then_some(size);
            assert_eq!(mapping.resize(wanted, LONG).unwrap(), size);
            assert_eq!(mapping.size(), size);
            mapping.set_policy(policy(POLICIES[n * 3])).unwrap();
            // A client has used the new part.
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
    mapping.resize(Some(SIZE - SECTOR), LONG).unwrap();
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
        let mapping = Arc::new(mapping);
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        gate.hold(IoKind::Write);
        submit_write(&mut queue, 0, HALF, 4096, 1);
        // The write waits for the first one: by then the volume ends before it.
        submit_write(&mut queue, 1, HALF, 8192, 2);
        while gate.halfway() < 1 {
            queue.poll().unwrap();
            assert!(queue.next_completion().is_none());
        }
        let over = thread::scope(|scope| {
            let busy = scope.spawn(|| mapping.resize(Some(HALF), Duration::from_millis(1)));
            while !busy.is_finished() {
                queue.poll().unwrap();
            }
            assert_eq!(busy.join().unwrap().unwrap_err().kind(), ErrorKind::Busy, "{text}");
            assert_eq!(mapping.size(), SIZE);
            submit_read(&mut queue, 2, SIZE - SECTOR);

            let shrinking = scope.spawn(|| mapping.resize(Some(HALF), LONG));
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
fn a_volume_takes_all_that_its_device_has_now_and_only_whole_sectors() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    let device = Arc::new(FileDevice::open(&path, OpenOptions::default()).unwrap());
    // The volume's second half comes from the device's second half.
    let volume = Volume::new(vec![
        Segment::stored(0, HALF / 2, 0, 0, xts(SectorSize::S4096)),
        Segment::stored(HALF / 2, HALF / 4, HALF, 0, xts(SectorSize::S4096)),
    ]);
    let mapping = Mapping::new(volume.unwrap(), device).unwrap();
    assert_eq!(mapping.resize(None, LONG).unwrap(), HALF / 2 + HALF);
    file.set_len(SIZE + 3 * SECTOR + 511).unwrap();
    assert_eq!(mapping.resize(None, LONG).unwrap(), HALF / 2 + HALF + 3 * SECTOR);
    for (len, why) in [(SIZE + 2560, "4096-byte sectors"), (HALF, "last segment"), (SECTOR, "last segment")] {
        file.set_len(len).unwrap();
        let refused = mapping.resize(None, LONG).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Layout);
        assert!(refused.to_string().contains(why), "{len}: {refused}");
        assert_eq!(mapping.size(), HALF / 2 + HALF + 3 * SECTOR);
    }
    // A device that lost its end can still be followed by a smaller volume.
    file.set_len(HALF + SECTOR).unwrap();
    assert_eq!(mapping.resize(None, LONG).unwrap(), HALF / 2 + SECTOR);
}

#[test]
fn a_file_is_cut_behind_a_volume_that_shrank_and_not_before() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("image");
    let file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    let device = Arc::new(FileDevice::open(&path, OpenOptions::default()).unwrap());
    let mapping = Arc::new(Mapping::new(sized(SIZE), device).unwrap());
    let flush = || {
        let mut queue = open(&mapping);
        queue.submit(0, Request::Flush).expect("there is room");
        kinds(finish(&mut queue))
    };
    assert_eq!(mapping.resize(Some(HALF), LONG).unwrap(), HALF);
    file.set_len(HALF).unwrap();
    assert_eq!(flush(), [None], "the volume has no bytes there");
    file.set_len(HALF - SECTOR).unwrap();
    assert_eq!(flush(), [Some(ErrorKind::Lower)]);
    file.set_len(HALF).unwrap();
    assert_eq!(flush(), [Some(ErrorKind::Lower)], "what was there is gone");
    file.set_len(HALF - SECTOR).unwrap();
    assert_eq!(mapping.resize(None, LONG).unwrap(), HALF - SECTOR);
    assert_eq!(flush(), [None], "the volume is as short as its file");
}

#[test]
fn what_is_left_when_a_volume_shrinks_or_grows_is_where_it_was() {
    let mapping = Arc::new(Mapping::new(sized(SIZE), Arc::new(RamDevice::new(SIZE))).unwrap());
    let mut queue = open(&mapping);
    for offset in [0, HALF - SECTOR, HALF] {
        queue.write_in_place(0, offset, &mut [offset.to_le_bytes()[2] + 1; 4096], false).unwrap();
    }
    succeed(&mut queue);
    let shrink = thread::scope(|scope| {
        let shrinking = scope.spawn(|| mapping.resize(Some(HALF), LONG));
        while !shrinking.is_finished() {
            queue.poll().unwrap();
        }
        shrinking.join().unwrap()
    });
    assert_eq!(shrink.unwrap(), HALF);
    assert_eq!(read(&mut queue, HALF - SECTOR, 4096), [(HALF - SECTOR).to_le_bytes()[2] + 1; 4096]);
    assert_eq!(mapping.resize(None, LONG).unwrap(), SIZE);
    assert_eq!(read(&mut queue, HALF, 4096), [HALF.to_le_bytes()[2] + 1; 4096]);
    for (size, kind) in
        [(SIZE + SECTOR, ErrorKind::Layout), (HALF + 512, ErrorKind::Layout), (0, ErrorKind::Layout)]
    {
        assert_eq!(mapping.resize(Some(size), LONG).unwrap_err().kind(), kind, "{size}");
        assert_eq!(mapping.size(), SIZE);
    }
    drop(queue);
    mapping.suspend(LONG).unwrap();
    mapping.resize(Some(HALF), LONG).unwrap();
    mapping.wipe_key().unwrap();
    assert_eq!(mapping.resize(None, LONG).unwrap_err().kind(), ErrorKind::NoKey);
    assert_eq!(mapping.replace_volume(sized(SIZE)).unwrap_err().kind(), ErrorKind::Layout);
    mapping.replace_volume(sized(HALF)).unwrap();
    assert_eq!(mapping.size(), HALF);
}

#[test]
fn a_volume_that_ends_in_no_device_grows_only_as_it_is_told() {
    let segments = [SegmentKind::Zero, SegmentKind::Error];
    for kind in segments {
        let stored = Segment::stored(0, HALF, 0, 0, xts(SectorSize::S4096));
        let volume = Volume::new(vec![stored, Segment { start: HALF, len: SECTOR, kind }]).unwrap();
        let mapping = Mapping::new(volume, Arc::new(RamDevice::new(HALF))).unwrap();
        assert_eq!(mapping.resize(None, LONG).unwrap_err().kind(), ErrorKind::Layout);
        assert_eq!(mapping.resize(Some(4 * SIZE), LONG).unwrap(), 4 * SIZE);
    }
}
