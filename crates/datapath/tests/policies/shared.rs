//! Requests whose bytes lie in memory that another process can change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use underseal_cipher::SectorSize;
use underseal_datapath::{ErrorKind, SharedBytes, SharedOwner};
use underseal_device::RamDevice;
use underseal_volume::SegmentKind;

use super::*;

/// Memory that stands for another process's, in two places.
struct Foreign {
    memory: Vec<u8>,
    lost: AtomicBool,
}

impl SharedOwner for Foreign {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

impl Foreign {
    /// With room for `len` bytes in spans of 512 or more.
    fn new(len: usize) -> Arc<Self> {
        Arc::new(Self { memory: vec![0xee; 2 * len + 4096], lost: AtomicBool::new(false) })
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.memory.len());
        self.memory.as_ptr().wrapping_add(offset).cast_mut()
    }

    /// A list of bytes in spans of these lengths by turns, with gaps between them.
    fn list(self: &Arc<Self>, queue: &mut Queue, len: usize, spans: &[usize]) -> SharedBytes {
        let mut bytes = queue.shared_bytes(self.clone());
        self.spans(len, spans).for_each(|(at, count)| {
            // SAFETY: the list keeps the memory; it is read and written through pointers only.
            unsafe { bytes.push(self.at(at), count) }
        });
        assert_eq!(bytes.len(), len);
        bytes
    }

    fn spans<'a>(&self, len: usize, spans: &'a [usize]) -> impl Iterator<Item = (usize, usize)> + 'a {
        let (mut left, mut at) = (len, 64);
        spans.iter().cycle().map_while(move |span| {
            let count = left.min(*span);
            let here = (at, count);
            left -= count;
            at += count + 192;
            (count > 0).then_some(here)
        })
    }

    fn put(&self, bytes: &[u8], spans: &[usize]) {
        let mut rest = bytes;
        for (at, count) in self.spans(bytes.len(), spans) {
            // SAFETY: the place is within the memory, to which no reference points.
            unsafe { self.at(at).copy_from_nonoverlapping(rest.as_ptr(), count) };
            rest = &rest[count..];
        }
    }

    fn get(&self, len: usize, spans: &[usize]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        for (at, count) in self.spans(len, spans) {
            // SAFETY: as in `put`.
            unsafe { self.at(at).copy_to_nonoverlapping(bytes.as_mut_ptr().add(done), count) };
            done += count;
        }
        bytes
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Offsets, lengths and spans: whole sectors, sectors in part, sectors that lie in two spans, many
/// spans.
const CASES: [(u64, usize, &[usize]); 8] = [
    (0, 4096, &[4096]),
    (65536, 65536, &[65536]),
    (8192, 65536, &[4096]),
    (1 << 20, 1 << 20, &[262_144, 4096]),
    (4096, 65536, &[512, 8192, 1536]),
    (512, 1024, &[1024]),
    (12288 + 512, 20480, &[3072, 5120]),
    (2 << 20, 3 << 18, &[1 << 18, 512]),
];

fn everything_is_what_was_written(volume: impl Fn() -> Volume) {
    for text in POLICIES {
        let mapping = Mapping::new(volume(), Arc::new(RamDevice::new(SIZE))).unwrap();
        let mapping = Arc::new(mapping.with_block(512).unwrap());
        mapping.set_policy(policy(text)).unwrap();
        let mut queue = open(&mapping);
        for (nth, (offset, len, spans)) in (1..).zip(CASES) {
            let (foreign, bytes) = (Foreign::new(len), noise(len, nth));
            foreign.put(&bytes, spans);
            let (from, data) = (foreign.list(&mut queue, len, spans), queue.alloc(len).unwrap());
            let durable = nth % 2 == 0;
            queue.submit(nth, Request::WriteShared { offset, from, data, durable }).unwrap();
            succeed(&mut queue);
            assert!(foreign.get(len, spans) == bytes, "{text}: a write changes nothing there");
            let there = read(&mut queue, offset, len);
            assert!(there == bytes, "{text}: {len} bytes at {offset}");
            let foreign = Foreign::new(len);
            let into = foreign.list(&mut queue, len, spans);
            queue.submit(nth, Request::ReadShared { offset, into }).unwrap();
            succeed(&mut queue);
            assert!(foreign.get(len, spans) == bytes, "{text}: {len} bytes from {offset}");
            let outside = foreign.memory.iter().filter(|byte| **byte == 0xee).count();
            assert!(outside >= foreign.memory.len() - len, "{text}: bytes around the spans");
        }
    }
}

#[test]
fn shared_bytes_are_written_and_read_under_every_policy() {
    everything_is_what_was_written(|| volume(xts(SectorSize::S4096)));
}

#[test]
fn shared_bytes_of_several_segments_are_written_and_read() {
    let small = || Segment::stored(0, 16384, 0, 0, xts(SectorSize::S4096));
    let rest = || Segment::stored(16384, SIZE - 16384, 16384, 7, xts(SectorSize::S512));
    everything_is_what_was_written(|| Volume::new(vec![small(), rest()]).unwrap());
}

#[test]
fn zeros_of_a_segment_reach_shared_bytes() {
    let zero = Segment { start: 0, len: SECTOR, kind: SegmentKind::Zero };
    let rest = Segment::stored(SECTOR, SIZE - SECTOR, SECTOR, 0, xts(SectorSize::S4096));
    let volume = Volume::new(vec![zero, rest]).unwrap();
    let mapping = Arc::new(Mapping::new(volume, Arc::new(RamDevice::new(SIZE))).unwrap());
    let mut queue = open(&mapping);
    let foreign = Foreign::new(8192);
    let into = foreign.list(&mut queue, 8192, &[8192]);
    queue.submit(0, Request::ReadShared { offset: 0, into }).unwrap();
    succeed(&mut queue);
    assert_eq!(foreign.get(4096, &[8192]), [0; 4096]);
}

/// Memory that went away reads as zeros, which no guest has written.
#[test]
fn nothing_is_written_of_memory_that_is_gone() {
    for text in POLICIES {
        for (offset, len, spans) in CASES {
            let mapping =
                Mapping::new(volume(xts(SectorSize::S4096)), Arc::new(RamDevice::new(SIZE))).unwrap();
            let mapping = Arc::new(mapping.with_block(512).unwrap());
            mapping.set_policy(policy(text)).unwrap();
            let mut queue = open(&mapping);
            let before = read(&mut queue, offset, len);
            let foreign = Foreign::new(len);
            foreign.lost.store(true, Ordering::Relaxed);
            let (from, data) = (foreign.list(&mut queue, len, spans), queue.alloc(len).unwrap());
            queue.submit(1, Request::WriteShared { offset, from, data, durable: false }).unwrap();
            let kind = finish(&mut queue).remove(0).result.unwrap_err().kind();
            assert_eq!(kind, ErrorKind::Memory, "{text}: {len} bytes at {offset}");
            assert!(read(&mut queue, offset, len) == before, "{text}: {len} bytes at {offset}");
            let whole = queue.alloc(16 << 20).expect("all memory has come back");
            queue.free(whole);
        }
    }
}

/// Another process changes the bytes during the write: each byte has one of the two values, and no
/// other byte changes.
#[test]
fn what_changes_meanwhile_is_one_value_or_the_other() {
    let mapping = Mapping::new(volume(xts(SectorSize::S4096)), Arc::new(RamDevice::new(SIZE))).unwrap();
    let mapping = Arc::new(mapping);
    let mut queue = open(&mapping);
    submit_write(&mut queue, 0, 0, 1 << 20, 0xcc);
    succeed(&mut queue);
    let len = 64 << 10;
    let foreign = Foreign::new(len);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for fill in [0x11, 0x22] {
                    // SAFETY: the place is within the memory, to which no reference points.
                    unsafe { foreign.at(64).write_bytes(fill, len) };
                }
            }
        });
        for _ in 0..200 {
            let (from, data) = (foreign.list(&mut queue, len, &[len]), queue.alloc(len).unwrap());
            queue.submit(1, Request::WriteShared { offset: 65536, from, data, durable: false }).unwrap();
            succeed(&mut queue);
        }
        over.store(true, Ordering::Relaxed);
    });
    let there = read(&mut queue, 0, 256 << 10);
    assert!(there[65536..65536 + len].iter().all(|byte| [0x11, 0x22, 0xee].contains(byte)));
    assert!(there[..65536].iter().chain(&there[65536 + len..]).all(|byte| *byte == 0xcc));
}
