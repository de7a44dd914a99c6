//! The disks' time, without a clock.

use std::collections::VecDeque;
use std::time::Duration;

use super::disk::{DiskCookie, DiskModel, DiskProgress, DiskRequest};
use super::{Medium, Profile, Scheduler};
use underseal_device::IoKind;

const SIZE: u64 = 64 << 30;
const SECOND: u64 = 1_000_000_000;

fn request(kind: IoKind, offset: u64, len: u64) -> DiskRequest {
    DiskRequest { kind, offset, len, durable: false }
}

/// Keeps `depth` of the requests in flight, as a queue whose thread takes no time; returns the
/// total time.
fn run(disk: &mut DiskModel, depth: usize, requests: impl IntoIterator<Item = DiskRequest>) -> u64 {
    let (mut now, mut flight) = (0, VecDeque::<DiskCookie>::new());
    let mut requests = requests.into_iter().peekable();
    loop {
        while flight.len() < depth
            && let Some(request) = requests.next()
        {
            flight.push_back(disk.submit(now, request));
        }
        if flight.is_empty() {
            return now;
        }
        let mut next = u64::MAX;
        let before = flight.len();
        flight.retain(|&cookie| match disk.poll(now, cookie) {
            DiskProgress::Done => false,
            DiskProgress::Until(at) => {
                assert!(at > now, "time goes on");
                next = next.min(at);
                true
            }
        });
        if flight.len() == before {
            now = next;
        }
    }
}

fn disk(profile: &Profile) -> DiskModel {
    DiskModel::new(profile, SIZE).unwrap()
}

fn megabytes(bytes: u64, nanos: u64) -> f64 {
    bytes as f64 * 1e3 / nanos as f64
}

fn sequential(kind: IoKind, count: u64, len: u64) -> Vec<DiskRequest> {
    (0..count).map(|i| request(kind, i * len, len)).collect()
}

/// Returns offsets all over the device, in blocks of 4 KiB.
fn scattered(kind: IoKind, count: u64) -> Vec<DiskRequest> {
    let offset = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE / 4096) * 4096;
    (1..=count).map(|i| request(kind, offset(i), 4096)).collect()
}

/// Returns offsets where the last of each group of four comes first, as when several threads
/// encrypt.
fn reordered(count: u64, len: u64) -> Vec<DiskRequest> {
    let mut requests = sequential(IoKind::Write, count, len);
    requests.chunks_mut(4).for_each(|group| group.rotate_right(1));
    requests
}

#[test]
fn a_rotating_disk_reads_in_sequence_at_its_media_rate_at_any_depth() {
    for profile in [Profile::rotating_disk(), Profile::rotating_disk().without_scheduler()] {
        for depth in [1, 2, 32] {
            let took = run(&mut disk(&profile), depth, sequential(IoKind::Read, 1000, 128 << 10));
            let rate = megabytes(1000 * (128 << 10), took);
            assert!((170.0..181.0).contains(&rate), "depth {depth}: {rate} MB/s");
        }
    }
}

#[test]
fn a_rotating_disk_writes_in_sequence_at_its_media_rate_if_it_is_given_enough() {
    for profile in [Profile::rotating_disk(), Profile::rotating_disk().without_scheduler()] {
        let small = run(&mut disk(&profile), 32, sequential(IoKind::Write, 8000, 4096));
        assert!(
            (150.0..181.0).contains(&megabytes(8000 * 4096, small)),
            "{} MB/s",
            megabytes(8000 * 4096, small)
        );
        let rate = |depth| {
            let took = run(&mut disk(&profile), depth, sequential(IoKind::Write, 1000, 128 << 10));
            megabytes(1000 * (128 << 10), took)
        };
        assert!((165.0..181.0).contains(&rate(8)), "{} MB/s", rate(8));
        // Each write arrives too late for the turn: 128 KiB in 8.33 + 0.73 ms.
        assert!((14.0..15.0).contains(&rate(1)), "{} MB/s", rate(1));
    }
}

#[test]
fn a_write_cache_makes_up_for_a_single_writer() {
    let mut profile = Profile::rotating_disk().without_scheduler();
    if let Medium::Rotating(rotating) = &mut profile.medium {
        rotating.write_cache = 32 << 20;
    }
    let mut disk = disk(&profile);
    let flushed =
        sequential(IoKind::Write, 2000, 128 << 10).into_iter().chain([request(IoKind::Flush, 0, 0)]);
    let rate = megabytes(2000 * (128 << 10), run(&mut disk, 1, flushed));
    assert!((165.0..181.0).contains(&rate), "{rate} MB/s");
}

#[test]
fn a_rotating_disk_reads_scattered_blocks_at_a_seek_and_half_a_turn_each() {
    let mut disk = disk(&Profile::rotating_disk());
    let took = run(&mut disk, 1, scattered(IoKind::Read, 2000));
    let each = Duration::from_nanos(took / 2000).as_secs_f64() * 1e3;
    assert!((11.0..14.5).contains(&each), "{each} ms");
    assert!(disk.counters.seeks >= 1990);
    assert!(disk.counters.busy <= Duration::from_nanos(took));
}

#[test]
fn an_elevator_makes_scattered_reads_quicker() {
    let time = |depth| run(&mut disk(&Profile::rotating_disk()), depth, scattered(IoKind::Read, 2000));
    assert!(time(32) * 3 < time(1) * 2, "{} {}", time(32), time(1));
}

#[test]
fn reordered_writes_are_slow_without_a_scheduler_and_hardly_with_it() {
    let rate = |profile, requests: Vec<DiskRequest>| {
        let bytes: u64 = requests.iter().map(|r| r.len).sum();
        megabytes(bytes, run(&mut disk(&profile), 32, requests))
    };
    for len in [4096, 64 << 10, 128 << 10] {
        let (plain, sorted) = (Profile::rotating_disk().without_scheduler(), Profile::rotating_disk());
        let lost = rate(plain, reordered(1024, len)) / rate(plain, sequential(IoKind::Write, 1024, len));
        assert!(lost < 0.5, "{len}: {lost}");
        let kept = rate(sorted, reordered(1024, len)) / rate(sorted, sequential(IoKind::Write, 1024, len));
        assert!(kept > 0.8, "{len}: {kept}");
    }
}

#[test]
fn a_scheduler_merges_what_adjoins_up_to_its_limit() {
    let mut profile = Profile::rotating_disk();
    if let Medium::Rotating(rotating) = &mut profile.medium {
        rotating.scheduler = Some(Scheduler { max_merge: 16 << 10, window: Duration::from_millis(1) });
    }
    let mut disk = disk(&profile);
    // Within the window all 16 arrive: four merged requests of four.
    run(&mut disk, 16, reordered(16, 4096));
    assert_eq!((disk.counters.requests, disk.counters.merges), (16, 12));
}

#[test]
fn what_waits_is_served_in_the_order_of_its_offsets() {
    let order = |profile: Profile| {
        let mut disk = disk(&profile);
        let mut waiting: Vec<_> = [0u64, 40, 20, 30, 10]
            .map(|block| (block, disk.submit(0, request(IoKind::Write, block << 20, 4096))))
            .into();
        let (mut now, mut order) = (0, Vec::new());
        while !waiting.is_empty() {
            let mut next = u64::MAX;
            waiting.retain(|&(block, cookie)| match disk.poll(now, cookie) {
                DiskProgress::Done => {
                    order.push(block);
                    false
                }
                DiskProgress::Until(at) => {
                    next = next.min(at);
                    true
                }
            });
            now = next;
        }
        order
    };
    assert_eq!(order(Profile::rotating_disk().without_scheduler()), [0, 40, 20, 30, 10]);
    assert_eq!(order(Profile::rotating_disk()), [0, 10, 20, 30, 40]);
}

#[test]
fn a_flush_ends_after_every_write_before_it() {
    let rotating = Profile::rotating_disk();
    for profile in [rotating, rotating.without_scheduler(), Profile::sata_ssd(), Profile::nvme()] {
        let mut disk = disk(&profile);
        let writes: Vec<_> = scattered(IoKind::Write, 20).into_iter().map(|r| disk.submit(0, r)).collect();
        let flush = disk.submit(0, request(IoKind::Flush, 0, 0));
        let later = disk.submit(0, request(IoKind::Write, SIZE - 4096, 4096));
        let mut now = 0;
        while let DiskProgress::Until(at) = disk.poll(now, flush) {
            now = at;
        }
        for write in writes {
            assert_eq!(disk.poll(now, write), DiskProgress::Done);
        }
        while let DiskProgress::Until(at) = disk.poll(now, later) {
            now = at;
        }
    }
}

#[test]
fn flash_has_its_latency_alone_and_its_rate_together() {
    let per_second = |profile: Profile, depth, kind, len: u64| {
        let requests: Vec<_> =
            scattered(kind, 20_000).into_iter().map(|r| DiskRequest { len, ..r }).collect();
        20_000.0 * SECOND as f64 / run(&mut disk(&profile), depth, requests) as f64
    };
    let between = |what: &str, value: f64, low: f64, high: f64| {
        assert!((low..high).contains(&value), "{what}: {value}");
    };
    let (sata, nvme) = (Profile::sata_ssd(), Profile::nvme());
    between("SATA 4k reads, depth 1", per_second(sata, 1, IoKind::Read, 4096), 10e3, 14e3);
    between("SATA 4k reads, depth 32", per_second(sata, 32, IoKind::Read, 4096), 85e3, 100e3);
    between("SATA 4k writes, depth 1", per_second(sata, 1, IoKind::Write, 4096), 20e3, 35e3);
    between("SATA 1M reads", per_second(sata, 4, IoKind::Read, 1 << 20) * 1.048_576, 500.0, 550.0);
    between("NVMe 4k reads, depth 1", per_second(nvme, 1, IoKind::Read, 4096), 10e3, 15e3);
    between("NVMe 4k writes, depth 1", per_second(nvme, 1, IoKind::Write, 4096), 50e3, 65e3);
    between("NVMe 4k reads, depth 128", per_second(nvme, 128, IoKind::Read, 4096), 450e3, 650e3);
    between("NVMe 1M reads", per_second(nvme, 8, IoKind::Read, 1 << 20) * 1.048_576, 3_300.0, 3_500.0);
}

#[test]
fn abandoned_requests_give_their_tickets_back() {
    let mut disk = disk(&Profile::rotating_disk());
    for i in 0..100 {
        let cookies: Vec<_> = scattered(IoKind::Write, 10).into_iter().map(|r| disk.submit(i, r)).collect();
        cookies.into_iter().for_each(|t| disk.abandon(t));
    }
    let last = disk.submit(100, request(IoKind::Flush, 0, 0));
    let mut now = 100;
    while let DiskProgress::Until(at) = disk.poll(now, last) {
        now = at;
    }
    // The abandoned requests were served all the same; their numbers are free now.
    let after: Vec<_> = scattered(IoKind::Read, 500).into_iter().map(|r| disk.submit(now, r)).collect();
    assert!(after.iter().all(|&cookie| cookie <= 1001), "{after:?}");
}
