//! A volume as a device, over devices in memory that fail, lose writes and have tuples.

mod bitmap;
#[path = "../layout/memory.rs"]
mod memory;
mod ring;
mod strict;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use memory::Memory;
use strict::Strict;
use underseal_device::{
    Blocking, Channel, Device, ErrorKind, Finished, Geometry, Immediate, Io, RamDevice, Ring, RingToken,
    Started, TagCheck,
};
use underseal_device_lab::{Fault, FaultDevice, Rule, TaggedDevice};
use underseal_integrity::{
    Disks, IntegrityDevice, KeyedHash, NewSuperblock, OpenSettings, Recalculate, RunSettings, WriteMode,
    format,
};

const SIZE: usize = 4 << 20;

fn options(mode: WriteMode, hash: &str) -> OpenSettings {
    OpenSettings { hash: Some(KeyedHash::new(hash, None).unwrap()), ..OpenSettings::new(mode) }
}

/// Formats a volume on a device. Its tags are to be recalculated, where they are made here.
fn make(device: &dyn Device, options: &OpenSettings, block_size: u32, tag_size: Option<u16>) {
    let disk = Memory::new(vec![0; SIZE]);
    let disks = Disks::one(&disk);
    let format_as = NewSuperblock {
        tag_size,
        block_size,
        journal_sectors: Some(1200),
        recalculating: options.hash.is_some(),
        ..NewSuperblock::default()
    };
    let superblock = format_as.superblock(options, disks.sizes().unwrap()).unwrap();
    format(&disks, options, &superblock).unwrap();
    Blocking::new(device).unwrap().write(0, &disk.bytes(), true).unwrap();
}

fn open(device: Arc<dyn Device>, options: &OpenSettings) -> IntegrityDevice {
    let settings = RunSettings { tag_cache: 64 << 10, workers: 3, ..RunSettings::default() };
    IntegrityDevice::open(device, None, options, &settings).unwrap()
}

/// A block whose contents give its number and version.
fn block(size: usize, number: u64, version: u64) -> Vec<u8> {
    [number.to_le_bytes(), version.to_le_bytes()].concat().repeat(size / 16)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + underseal_testing::PATIENCE;
    while !is_so() {
        assert!(std::time::Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Threads that write separate blocks through separate channels; returns the versions that a flush
/// has covered.
fn busy(volume: &IntegrityDevice, size: usize, rounds: u64, may_fail: bool) -> Vec<(u64, u64, u64)> {
    let version = AtomicU64::new(1);
    std::thread::scope(|scope| {
        let run = |thread: u64| {
            let version = &version;
            scope.spawn(move || {
                let mut way = Blocking::new(volume).unwrap();
                // For each block: the flushed version and the newest one.
                let mut mine: Vec<(u64, u64, u64)> = (0..40).map(|i| (i * 3 + thread, 0, 0)).collect();
                for round in 0..rounds {
                    let at = usize::try_from(round * 7 % 40).unwrap();
                    let (number, _, newest) = &mut mine[at];
                    let new = version.fetch_add(1, SeqCst);
                    *newest = new;
                    let written =
                        way.write(*number * size as u64, &block(size, *number, new), round % 17 == 3);
                    if written.is_err() {
                        assert!(may_fail, "{written:?}");
                        break;
                    }
                    if round % 17 == 3 {
                        mine[at].1 = new;
                    }
                    if round % 10 == 9 {
                        if let Err(e) = way.flush() {
                            assert!(may_fail, "{e}");
                            break;
                        }
                        mine.iter_mut().for_each(|(_, flushed, newest)| *flushed = *newest);
                    }
                    if round % 5 == 0 && mine[at].2 == new {
                        let mut data = vec![0; size];
                        match way.read(mine[at].0 * size as u64, &mut data) {
                            Ok(()) => assert_eq!(data, block(size, mine[at].0, new)),
                            Err(e) => assert!(may_fail, "{e}"),
                        }
                    }
                }
                mine
            })
        };
        let threads: Vec<_> = (0..3).map(run).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Checks that each block has a version between the flushed one and the newest.
fn check(volume: &IntegrityDevice, size: usize, blocks: &[(u64, u64, u64)]) {
    let mut way = Blocking::new(volume).unwrap();
    for (number, flushed, newest) in blocks {
        let mut data = vec![0; size];
        way.read(number * size as u64, &mut data).unwrap();
        let version = u64::from_le_bytes(data[8..16].try_into().unwrap());
        assert!(
            (*flushed..=*newest).contains(&version),
            "block {number}: {version} of {flushed} to {newest}"
        );
        if version > 0 {
            assert_eq!(data, block(size, *number, version));
        }
    }
}

#[test]
fn threads_use_a_volume_and_find_everything_when_it_is_opened_again() {
    for (mode, size) in [
        (WriteMode::Journal, 4096),
        (WriteMode::Journal, 512),
        (WriteMode::Bitmap, 4096),
        (WriteMode::Direct, 512),
    ] {
        let device: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
        let options = options(mode, "crc32c");
        make(&*device, &options, size, None);
        let size = size as usize;
        let volume = open(device.clone(), &options);
        assert_eq!((volume.geometry().block as usize, volume.geometry().tag_size), (size, 0));
        let blocks = busy(&volume, size, 400, false);
        wait_until("tags are made anew in the background", || volume.status().recalculated.is_none());
        volume.close().unwrap();
        volume.close().unwrap();
        drop(volume);
        let volume = open(device, &options);
        let newest: Vec<_> = blocks.iter().map(|(number, _, newest)| (*number, *newest, *newest)).collect();
        check(&volume, size, &newest);
        assert_eq!(volume.status().mismatches, 0);
    }
}

#[test]
fn what_was_flushed_outlives_a_loss_of_power() {
    for (seed, mode) in [WriteMode::Journal, WriteMode::Journal, WriteMode::Bitmap].into_iter().enumerate() {
        let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
        let options = options(mode, "crc32c");
        make(&*below, &options, 4096, None);
        drop(open(below.clone(), &options));
        let faulty = Arc::new(FaultDevice::with_volatile_cache(below.clone(), seed as u64, 512));
        let control = faulty.control();
        let volume = open(faulty, &options);
        let blocks = std::thread::scope(|scope| {
            let threads = scope.spawn(|| busy(&volume, 4096, 100_000, true));
            wait_until("something is written", || control.unflushed() > 20);
            std::thread::sleep(Duration::from_millis(30 * seed as u64 + 5));
            control.power_cut().unwrap();
            threads.join().unwrap()
        });
        assert!(volume.close().is_err(), "without power nothing is left clean");
        drop(volume);
        control.power_on();
        let volume = open(below, &options);
        wait_until("tags are made anew", || volume.status().recalculated.is_none());
        if mode == WriteMode::Journal {
            check(&volume, 4096, &blocks);
        } else {
            // Blocks that were being written may mix versions; all can be read.
            let settled: Vec<_> =
                blocks.iter().filter(|(_, flushed, newest)| flushed == newest).copied().collect();
            check(&volume, 4096, &settled);
        }
    }
}

#[test]
fn a_disk_that_fails_is_told_to_all_and_nothing_hangs() {
    {
        let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
        let options = options(WriteMode::Journal, "crc32c");
        make(&*below, &options, 4096, None);
        drop(open(below.clone(), &options));
        let faulty = Arc::new(FaultDevice::new(below.clone(), 1));
        let control = faulty.control();
        let volume = open(faulty, &options);
        let mut way = Blocking::new(&volume).unwrap();
        way.write(0, &[1; 4096], true).unwrap();
        control.add(Rule::new(Fault::Error(5)).on(underseal_device::IoKind::Write));
        // The journal takes some writes before it has to write.
        let failed = (0..1000).find_map(|i| way.write(i % 200 * 4096, &[2; 4096], true).err());
        assert_eq!(failed.unwrap().errno(), Some(5));
        control.clear();
        assert!(way.flush().is_err(), "a flush that failed is not made good");
        assert!(volume.status().failed.is_some());
        let mut data = vec![0; 4096];
        way.read(4096 * 300, &mut data).unwrap();
        drop(way);
        let _ = volume.close();
    }
}

#[test]
fn tags_are_handed_in_and_out_where_nothing_makes_them() {
    for mode in [WriteMode::Journal, WriteMode::Direct] {
        let device: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
        let options = OpenSettings::new(mode);
        make(&*device, &options, 4096, Some(28));
        let volume = open(device.clone(), &options);
        assert_eq!(volume.geometry().tag_size, 28);
        let mut way = Blocking::new(&volume).unwrap();
        let (data, tags) = (block(5 * 4096, 1, 2), (0..140).collect::<Vec<u8>>());
        way.write_tagged(8192, &data, &tags, true).unwrap();
        assert!(way.write(8192, &data, false).is_err(), "a block without its tag");
        let (mut found, mut found_tags) = (vec![0; data.len()], vec![0; 140]);
        way.read_tagged(8192, &mut found, &mut found_tags).unwrap();
        assert!(found == data && found_tags == tags);
        drop((way, volume));
        let volume = open(device, &options);
        let mut channel = volume.channel(1).unwrap();
        found.fill(0);
        assert!(matches!(channel.read_tagged_now(8192, &mut found, &mut found_tags), Immediate::Done));
        assert!(found == data && found_tags == tags);
        assert!(matches!(channel.write_now(8192, &data), Immediate::Failed(_)));
    }
}

#[test]
fn inline_tags_are_those_of_the_device() {
    let inner = Arc::new(RamDevice::new(SIZE as u64));
    let device = Arc::new(TaggedDevice::new(inner.clone(), 4096, 40));
    let options = options(WriteMode::Inline, "sha256");
    make(&*device, &options, 4096, None);
    let volume = open(device.clone(), &options);
    wait_until("tags are made anew", || volume.status().recalculated.is_none());
    let mut way = Blocking::new(&volume).unwrap();
    way.write(0, &block(8192, 4, 4), true).unwrap();
    let mut data = vec![0; 16384];
    way.read(0, &mut data).unwrap();
    assert_eq!(data[..8192], block(8192, 4, 4));
    drop((way, volume));
    // A byte of the data changes, and the tuple does not.
    Blocking::new(&*inner).unwrap().write(4096, &[0; 512], true).unwrap();
    let volume = open(device, &options);
    let mut way = Blocking::new(&volume).unwrap();
    assert_eq!(way.read(0, &mut data[..4096]).unwrap_err().kind(), ErrorKind::Read);
    way.read(4096, &mut data[..4096]).unwrap();
}

#[test]
fn a_device_with_too_little_room_for_tags_is_refused_before_anything_is_written() {
    let options = options(WriteMode::Inline, "sha256");
    // The device is larger than the volume was, which an opening would record.
    let inner = Arc::new(RamDevice::new(2 * SIZE as u64));
    make(&*inner, &options, 4096, None);
    let all = || {
        let mut bytes = vec![0; 2 * SIZE];
        Blocking::new(&*inner).unwrap().read(0, &mut bytes).unwrap();
        bytes
    };
    let before = all();
    let short = Arc::new(TaggedDevice::new(inner.clone(), 4096, 31));
    let refused = IntegrityDevice::open(short, None, &options, &RunSettings::default()).err().unwrap();
    assert!(refused.to_string().contains("keeps 32 bytes with each block; this one keeps 31"), "{refused}");
    assert!(all() == before);
    let enough = Arc::new(TaggedDevice::new(inner.clone(), 4096, 32));
    drop(open(enough, &options));
    assert!(all() != before);
}

#[test]
fn zeros_and_discards_leave_blocks_that_can_be_read() {
    for mode in [WriteMode::Journal, WriteMode::Bitmap, WriteMode::Direct] {
        let device: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
        let options = OpenSettings { allow_discards: true, ..options(mode, "xxhash64") };
        make(&*device, &options, 4096, None);
        let volume = open(device.clone(), &options);
        assert!(volume.geometry().discard);
        wait_until("tags are made anew", || volume.status().recalculated.is_none());
        let mut way = Blocking::new(&volume).unwrap();
        way.write(0, &[9; 1 << 20], false).unwrap();
        way.zero(4096, 1 << 19).unwrap();
        way.discard(1 << 20, 1 << 20).unwrap();
        let mut data = vec![1; 2 << 20];
        way.read(0, &mut data).unwrap();
        assert!(data[..4096].iter().all(|b| *b == 9) && data[4096..][..1 << 19].iter().all(|b| *b == 0));
        drop((way, volume));
        let volume = open(device, &options);
        Blocking::new(&volume).unwrap().read(0, &mut data).unwrap();
    }
}

#[test]
fn a_recalculation_that_was_ended_goes_on_with_the_next_opening() {
    let device: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    let options = options(WriteMode::Journal, "sha256");
    make(&*device, &options, 512, None);
    let again = OpenSettings { recalculate: Recalculate::Reset, ..options.clone() };
    open(device.clone(), &again).close().unwrap();
    let volume = open(device.clone(), &options);
    wait_until("tags are made anew", || volume.status().recalculated.is_none());
    let mut data = vec![1; 2 << 20];
    Blocking::new(&volume).unwrap().read(0, &mut data).unwrap();
    assert_eq!(volume.status().mismatches, 0);
}

#[test]
fn what_comes_after_the_end_fails_and_does_not_hang() {
    let device: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    let options = options(WriteMode::Journal, "crc32c");
    make(&*device, &options, 4096, None);
    let volume = open(device, &options);
    let mut way = Blocking::new(&volume).unwrap();
    volume.close().unwrap();
    assert!(way.write(0, &[1; 4096], false).is_err());
    assert!(way.flush().is_err());
}

#[test]
fn a_device_that_cannot_carry_the_volume_is_refused_before_anything_is_written() {
    let options = options(WriteMode::Bitmap, "crc32c");
    let below: Arc<dyn Device> = Arc::new(RamDevice::new(SIZE as u64));
    make(&*below, &options, 512, None);
    let all = || {
        let mut bytes = vec![0; SIZE];
        Blocking::new(&*below).unwrap().read(0, &mut bytes).unwrap();
        bytes
    };
    let before = all();
    let strict = Arc::new(Strict { inner: below.clone(), block: 4096, read_only: false });
    assert!(IntegrityDevice::open(strict, None, &options, &RunSettings::default()).is_err());
    assert!(all() == before);
}

#[test]
fn long_requests_for_zeros_keep_no_worker_from_others() {
    const LEN: u64 = 8 << 20;
    const ZEROS: u32 = 16;
    let device: Arc<dyn Device> = Arc::new(RamDevice::new(u64::from(ZEROS + 2) * LEN));
    let options = options(WriteMode::Direct, "crc32c");
    make(&*device, &options, 4096, None);
    let volume = open(device, &options);
    wait_until("tags are made", || volume.status().recalculated.is_none());
    let mut channel = volume.channel(ZEROS + 1).unwrap();
    let mut ring = Ring::new(ZEROS + 8).unwrap();
    for slot in 0..ZEROS {
        let io = Io::Zero { offset: u64::from(slot) * LEN, len: LEN, punch: false };
        assert!(matches!(channel.start(&mut ring, slot, io), Started::Pending));
    }
    // The requests are more than the workers.
    assert!(matches!(channel.start(&mut ring, ZEROS, Io::Flush), Started::Pending));
    let mut order = Vec::new();
    while order.len() <= ZEROS as usize {
        ring.wait_until(Some(std::time::Instant::now() + underseal_testing::PATIENCE)).unwrap();
        let mut over = Vec::new();
        while let Some(completion) = ring.next_completion() {
            channel.woken(&mut ring, completion.token, completion.result, &mut over);
        }
        order.extend(over.into_iter().map(|done| {
            done.result.unwrap();
            done.slot
        }));
    }
    assert_eq!(order[0], ZEROS, "the flush waits for a piece of each, and for no whole request: {order:?}");
    let mut data = vec![1; 1 << 20];
    Blocking::new(&volume).unwrap().read(u64::from(ZEROS) * LEN - (1 << 20), &mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == 0));
}
