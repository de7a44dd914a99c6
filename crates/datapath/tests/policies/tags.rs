//! Volumes with a tag for each sector.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use underseal_cipher::{SectorCipher, SectorSize};
use underseal_datapath::{ErrorKind, Mapping, Queue, QueueOptions, RangeMover, Request};
use underseal_device::{Blocking, Device, IoKind, RamDevice};
use underseal_device_lab::{Fault, FaultDevice, RecorderDevice, Rule, TaggedDevice};
use underseal_volume::{Segment, Volume};

use super::toy::Toy;
use super::*;

const TAG: u32 = 20;
const LONG: Duration = Duration::from_secs(120);

fn toy(key: u64, tag_size: u32) -> Arc<dyn SectorCipher> {
    Arc::new(Toy { inner: xts(SectorSize::S4096), tag_size: tag_size as usize, key })
}

fn tagged(inner: Arc<dyn Device>) -> Arc<TaggedDevice> {
    Arc::new(TaggedDevice::new(inner, 4096, TAG))
}

/// A volume over a device with tags, with blocks of 512 bytes.
fn mapping(device: Arc<dyn Device>) -> Arc<Mapping> {
    let mapping = Mapping::new(volume(toy(1, TAG)), device).unwrap();
    Arc::new(mapping.with_block(512).unwrap())
}

fn zeroes(offset: u64, len: u64) -> Request {
    Request::WriteZeroes { offset, len, durable: false, punch: true, fast: false }
}

/// Gives every sector of the first 3 MiB a valid tag.
fn wipe(queue: &mut Queue) {
    queue.submit(0, zeroes(0, 3 << 20)).unwrap();
    succeed(queue);
}

/// A wiped volume over tags, and a queue of it under a policy.
fn wiped(inner: Arc<dyn Device>, text: &str) -> (Arc<TaggedDevice>, Arc<Mapping>, Queue) {
    let device = tagged(inner);
    let mapping = mapping(device.clone());
    mapping.set_policy(policy(text)).unwrap();
    let mut queue = open(&mapping);
    wipe(&mut queue);
    (device, mapping, queue)
}

fn all_memory_is_back(queue: &mut Queue) {
    // With room for tags the arena is twice as large.
    let whole = queue.alloc(32 << 20).expect("all memory has come back");
    queue.free(whole);
}

/// Writes of all kinds, compared with a model.
fn scribble(queue: &mut Queue, device: &Arc<TaggedDevice>) {
    let mut model = vec![0; 2 << 20];
    let write = |queue: &mut Queue, model: &mut [u8], tag: u64, (offset, len): (usize, usize), fill: u8| {
        match tag % 4 {
            0 => queue.write_in_place(tag, offset as u64, &mut vec![fill; len], false).unwrap(),
            1 => {
                let mut data = queue.alloc(len).unwrap();
                data.fill(fill);
                queue.submit(tag, Request::Write { offset: offset as u64, data, durable: true }).unwrap();
            }
            _ => submit_write(queue, tag, offset as u64, len, fill),
        }
        model[offset..offset + len].fill(fill);
    };
    for round in 0..3_usize {
        // Whole sectors; parts of one; several with both ends in part; long ones.
        for (tag, (offset, len)) in (0..).zip([
            (0, 4096),
            (65536, 65536),
            (8192, 8192),
            (20480, 4096),
            (4096 + 512, 1024),
            (300 * 512, 40 * 512),
            (512, 512),
            (37 * 4096, 3584),
            (1 << 20, 1 << 20),
            ((1 << 20) - 1536, 8192),
        ]) {
            let offset = offset + round * 4096 * usize::from(len < 1 << 20);
            write(queue, &mut model, tag, (offset, len), u8::try_from(tag + 1 + round as u64).unwrap());
        }
        queue.submit(90, Request::Flush).unwrap();
        queue.submit(91, zeroes(700 * 512, 100 * 512)).unwrap();
        model[700 * 512..800 * 512].fill(0);
        queue.submit(92, zeroes(900 * 512 + 4096 * round as u64, 512)).unwrap();
        model[900 * 512 + 4096 * round..901 * 512 + 4096 * round].fill(0);
        succeed(queue);
    }
    assert!(read(queue, 0, model.len()) == model, "as it was written");
    // A second mapping finds the same.
    let again = mapping(device.clone());
    assert!(read(&mut open(&again), 0, model.len()) == model, "as it is stored");
}

#[test]
fn tags_go_with_their_sectors_under_every_policy() {
    for text in POLICIES {
        let (device, _, mut queue) = wiped(Arc::new(RamDevice::new(SIZE)), text);
        scribble(&mut queue, &device);
        all_memory_is_back(&mut queue);
    }
}

#[test]
fn tags_go_with_sectors_that_come_later() {
    for text in POLICIES {
        let slow = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
        let control = slow.control();
        let (device, _, mut queue) = wiped(Arc::new(slow), text);
        // Some transfers would block; some are cut short, whose rest is done with its tags.
        control.add(Rule::new(Fault::Delay(Duration::from_micros(200))).chance(0.5));
        scribble(&mut queue, &device);
        all_memory_is_back(&mut queue);
    }
}

#[test]
fn a_sector_whose_tag_is_wrong_fails_its_request_and_is_counted() {
    for text in POLICIES {
        let (device, mapping, mut queue) = wiped(Arc::new(RamDevice::new(SIZE)), text);
        let (tuples, bad) = (device.tuples(), 3 * 16 + 2_u64);
        let mut way = Blocking::new(&*tuples).unwrap();
        let mut tag = [0; TAG as usize];
        let at = bad * u64::from(TAG);
        way.read(at, &mut tag).unwrap();
        tag[3] ^= 1;
        way.write(at, &tag, false).unwrap();
        for tag in 0..8 {
            queue.submit(tag, Request::Read { offset: tag * 65536, len: 65536 }).unwrap();
        }
        for completion in finish(&mut queue) {
            let failed = completion.result.err();
            let kind = failed.as_ref().map(|e| e.kind());
            assert_eq!(kind, (completion.tag == 3).then_some(ErrorKind::Integrity), "{text}");
            let name = format!("byte {}", bad * SECTOR);
            assert!(failed.is_none_or(|e| e.to_string().contains(&name)), "{text}");
        }
        // A part of the sector cannot be written, nor is it read in place.
        submit_write(&mut queue, 0, bad * SECTOR + 512, 512, 1);
        let failed = finish(&mut queue).remove(0).result.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Integrity, "{text}");
        let stats = mapping.stats();
        assert_eq!((stats.mismatches, stats.mismatched), (2, vec![bad * SECTOR]), "{text}");
        // A write of the whole sector makes it valid.
        submit_write(&mut queue, 2, bad * SECTOR, 4096, 7);
        succeed(&mut queue);
        assert_eq!(read(&mut queue, bad * SECTOR, 4096), [7; 4096]);
        assert_eq!(mapping.stats().mismatches, 2);
        all_memory_is_back(&mut queue);
    }
}

#[test]
fn what_was_never_written_is_not_readable_and_zeros_are_sectors_like_others() {
    let recorder = Arc::new(RecorderDevice::new(Arc::new(RamDevice::new(SIZE)), 1 << 16));
    let device = tagged(recorder.clone());
    let whole = Volume::new(vec![Segment::stored(0, SIZE, 0, 0, toy(1, TAG))]).unwrap().with_discards(true);
    let mapping = Arc::new(Mapping::new(whole, device.clone()).unwrap());
    assert!(!mapping.discards() && !mapping.is_null() && mapping.has_tags());
    let mut queue = open(&mapping);
    queue.submit(0, Request::Read { offset: 8192, len: 4096 }).unwrap();
    assert_eq!(finish(&mut queue).remove(0).result.unwrap_err().kind(), ErrorKind::Integrity);
    queue.submit(1, zeroes(8192, 3 << 20)).unwrap();
    queue.submit(2, Request::Discard { offset: 0, len: SIZE, durable: false }).unwrap();
    succeed(&mut queue);
    assert!(read(&mut queue, 8192, 3 << 20).iter().all(|byte| *byte == 0));
    let asked: Vec<_> = recorder.take().into_iter().map(|record| record.kind).collect();
    assert!(!asked.contains(&IoKind::Zero) && !asked.contains(&IoKind::Discard), "{asked:?}");
    let fast = Request::WriteZeroes { offset: 0, len: 4096, durable: false, punch: true, fast: true };
    queue.submit(3, fast).unwrap();
    assert_eq!(finish(&mut queue).remove(0).result.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_request_that_fails_below_gives_its_tags_back() {
    for text in POLICIES {
        let faulty = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
        let control = faulty.control();
        let (_, _, mut queue) = wiped(Arc::new(faulty), text);
        control.add(Rule::new(Fault::EIO).within(100_000..100_001));
        for tag in 0..8 {
            submit_write(&mut queue, tag, tag * 65536, 65536, 8);
        }
        queue.submit(8, Request::Read { offset: 98304, len: 4096 }).unwrap();
        queue.submit(9, zeroes(98304 + 512, 65536)).unwrap();
        for completion in finish(&mut queue) {
            let failed = completion.result.err().map(|e| e.kind());
            let expected = [1, 8, 9].contains(&completion.tag).then_some(ErrorKind::Lower);
            assert_eq!(failed, expected, "{text}: {}", completion.tag);
        }
        all_memory_is_back(&mut queue);
    }
}

#[test]
fn the_longest_requests_have_room_for_their_tags() {
    let tag = 480;
    let device = Arc::new(TaggedDevice::in_memory(SIZE, 512, tag));
    let cipher = Arc::new(Toy { inner: xts(SectorSize::S512), tag_size: tag as usize, key: 1 });
    let mapping = Arc::new(Mapping::new(volume(cipher), device).unwrap());
    let mut queue = Queue::open(mapping, QueueOptions { depth: 4, max_request: 1 << 20 }).unwrap();
    for _ in 0..2 {
        (0..2).for_each(|tag| submit_write(&mut queue, tag, tag << 20, 1 << 20, 5));
        succeed(&mut queue);
        for tag in 0..2 {
            queue.submit(tag, Request::Read { offset: tag << 20, len: 1 << 20 }).unwrap();
        }
        succeed(&mut queue);
    }
}

#[test]
fn queues_share_sectors_and_tags() {
    let slow = FaultDevice::new(Arc::new(RamDevice::new(SIZE)), 1);
    slow.control().add(Rule::new(Fault::Delay(Duration::from_micros(100))).chance(0.3));
    let device = tagged(Arc::new(slow));
    let mapping = mapping(device);
    wipe(&mut open(&mapping));
    thread::scope(|scope| {
        for fill in 0..3 {
            let mapping = mapping.clone();
            scope.spawn(move || {
                let mut queue = open(&mapping);
                for round in 0..60_u64 {
                    let at = (round % 7) * 2048;
                    submit_write(&mut queue, 0, at, 16384, fill);
                    queue.submit(1, Request::Read { offset: 0, len: 65536 }).unwrap();
                    // A sector that mixes two writes would not match its tag.
                    succeed(&mut queue);
                }
            });
        }
        for text in POLICIES.iter().cycle().take(40) {
            mapping.set_policy(policy(text)).unwrap();
            thread::sleep(Duration::from_millis(2));
        }
    });
    assert_eq!(mapping.stats().mismatches, 0);
}

#[test]
fn a_key_is_changed_for_one_of_the_same_tags() {
    let mapping = mapping(tagged(Arc::new(RamDevice::new(SIZE))));
    let mut queue = open(&mapping);
    wipe(&mut queue);
    drop(queue);
    mapping.suspend(LONG).unwrap();
    mapping.wipe_key().unwrap();
    assert_eq!(mapping.replace_volume(volume(toy(1, 24))).unwrap_err().kind(), ErrorKind::Layout);
    assert_eq!(mapping.replace_volume(volume(xts(SectorSize::S4096))).unwrap_err().kind(), ErrorKind::Layout);
    mapping.replace_volume(volume(toy(2, TAG))).unwrap();
    mapping.resume().unwrap();
    let mut queue = open(&mapping);
    queue.submit(0, Request::Read { offset: 0, len: 4096 }).unwrap();
    assert_eq!(finish(&mut queue).remove(0).result.unwrap_err().kind(), ErrorKind::Integrity);
    submit_write(&mut queue, 0, 0, 4096, 1);
    succeed(&mut queue);
    assert_eq!(read(&mut queue, 0, 4096), [1; 4096]);
}

#[test]
fn nobody_rewrites_such_a_volume_beneath_its_users() {
    let refused = RangeMover::new(mapping(tagged(Arc::new(RamDevice::new(SIZE)))), LONG).err();
    assert_eq!(refused.map(|e| e.kind()), Some(ErrorKind::Unsupported));
}

#[test]
fn tags_without_a_place_that_fits_are_refused() {
    let refused =
        |device: Arc<dyn Device>| Mapping::new(volume(toy(1, TAG)), device).err().map(|e| e.to_string());
    let over = |block, tag| refused(Arc::new(TaggedDevice::in_memory(SIZE, block, tag)));
    let none = refused(Arc::new(RamDevice::new(SIZE))).unwrap();
    assert!(none.contains("20 bytes beside each sector of 4096") && none.contains("no place"), "{none}");
    assert!(over(4096, 16).unwrap().contains("16 bytes beside each block of 4096"));
    assert!(over(512, TAG).unwrap().contains("20 bytes beside each block of 512"));
    assert!(over(4096, TAG).is_none());
}
