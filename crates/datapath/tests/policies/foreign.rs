//! A queue in another event loop: its thread waits in poll(2) only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use underseal_cipher::SectorSize;
use underseal_datapath::{Completion, Mapping, Queue, RangeMover, Request, SleepDecision};
use underseal_device::{FileDevice, IoKind, OpenOptions, RamDevice};

use super::halves::Halves;

use super::*;

const LONG: Duration = Duration::from_secs(120);

/// Waits as any event loop would, and returns completions.
fn turn(queue: &mut Queue) -> Vec<Completion> {
    let rest = queue.rest().unwrap();
    let limit = match rest {
        SleepDecision::None => Some(Duration::ZERO),
        SleepDecision::Ready => None,
        SleepDecision::Until(time) => Some(time.saturating_duration_since(Instant::now())),
    };
    let limit = limit.map(|limit| Timespec::try_from(limit).unwrap());
    // An interrupted call counts as a timeout.
    let _ = poll(&mut [PollFd::new(&*queue, PollFlags::IN)], limit.as_ref());
    queue.poll().unwrap();
    std::iter::from_fn(|| queue.next_completion()).collect()
}

fn all(queue: &mut Queue) {
    while queue.in_flight() > 0 {
        for completion in turn(queue) {
            completion.result.unwrap();
            completion.buffer.into_iter().for_each(|buffer| queue.free(buffer));
        }
    }
    for completion in turn_over(queue) {
        completion.result.unwrap();
        completion.buffer.into_iter().for_each(|buffer| queue.free(buffer));
    }
}

fn turn_over(queue: &mut Queue) -> Vec<Completion> {
    std::iter::from_fn(|| queue.next_completion()).collect()
}

#[test]
fn whatever_a_request_waits_for_comes_through_the_descriptor_or_in_time() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    // Completions of the ring, and of workers.
    let device = FileDevice::open(&path, OpenOptions { direct: true, ..Default::default() }).unwrap();
    let mapping = Arc::new(mapping(Arc::new(device)));
    let mut queue = open(&mapping);
    for (n, text) in (0u8..).zip(POLICIES) {
        mapping.set_policy(policy(text)).unwrap();
        (0..32).for_each(|tag| submit_write(&mut queue, tag, tag * 16384, 16384, n + 1));
        all(&mut queue);
        queue.submit(0, Request::Flush).unwrap();
        queue.submit(1, Request::Read { offset: 0, len: 32 * 16384 }).unwrap();
        let mut found = Vec::new();
        while queue.in_flight() > 0 || found.is_empty() {
            for completion in turn(&mut queue) {
                completion.result.unwrap();
                if let Some(buffer) = completion.buffer {
                    found = buffer.to_vec();
                    queue.free(buffer);
                }
            }
        }
        assert!(found == [n + 1; 32 * 16384], "{text}");
    }
}

#[test]
fn a_devices_clock_runs_while_the_thread_waits_elsewhere() {
    let (device, gate) = Halves::new(SIZE);
    let mapping = Arc::new(Mapping::new(volume(xts(SectorSize::S4096)), device).unwrap());
    let mut queue = open(&mapping);
    gate.hold(IoKind::Write);
    submit_write(&mut queue, 0, 0, 4096, 1);
    assert!(matches!(queue.rest().unwrap(), SleepDecision::Until(_)), "the kernel knows of nothing");
    assert!(turn(&mut queue).is_empty());
    gate.open();
    all(&mut queue);
    assert_eq!(queue.rest().unwrap(), SleepDecision::Ready);
}

#[test]
fn others_reach_a_thread_that_waits_elsewhere() {
    let mapping = Mapping::new(volume(xts(SectorSize::S4096)), Arc::new(RamDevice::new(SIZE))).unwrap();
    let mapping = Arc::new(mapping);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = open(&mapping);
            while !stop.load(SeqCst) {
                turn(&mut queue);
            }
        });
        while mapping.stats().queues == 0 {
            thread::yield_now();
        }
        for _ in 0..20 {
            mapping.suspend(LONG).unwrap();
            mapping.resume().unwrap();
            drop(RangeMover::new(mapping.clone(), LONG).unwrap());
        }
        stop.store(true, SeqCst);
        // A new policy wakes the thread.
        mapping.set_policy(policy("inline")).unwrap();
    });
}

#[test]
fn memory_that_is_anothers_is_not_taken() {
    let mapping = Mapping::new(volume(xts(SectorSize::S4096)), Arc::new(RamDevice::new(SIZE))).unwrap();
    let mapping = Arc::new(mapping);
    let (mut first, mut second) = (open(&mapping), open(&mapping));
    let strange = second.alloc(4096).unwrap();
    first.free(strange);
    let mut half = first.alloc(8192).unwrap();
    let rest = half.split_off(4096);
    first.free(half);
    first.free(rest);
    submit_write(&mut first, 0, 0, 4096, 1);
    all(&mut first);
}
