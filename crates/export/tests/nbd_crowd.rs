//! Thousands of clients that connect and stay silent, in a process of their own: its descriptors
//! are counted.
#![expect(clippy::print_stdout, reason = "how long clients waited is worth seeing beside the verdict")]

#[path = "nbd/client.rs"]
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
mod client;
#[path = "nbd/fixture.rs"]
#[allow(dead_code, reason = "shared with the other tests, which use all of it")]
mod fixture;

use std::{
    io::Read,
    os::unix::net::UnixStream,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use fixture::{MemoryDisk, PATIENCE, Served, config};
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};

/// The number of clients, if the limit of descriptors permits it.
const CROWD: usize = 2000;
/// Descriptors for everything else.
const OTHERS: usize = 1000;

#[test]
fn silent_crowd_costs_good_clients_a_short_wait_and_leaves_nothing_behind() {
    let crowd_size = crowd_that_descriptors_allow();
    let before = descriptors();
    let served = Served::unix(config(), MemoryDisk::default());
    let mut old = served.served_client();

    // All of them connect at once, and stay.
    let socket = served.socket();
    let connect = |path: std::path::PathBuf| {
        thread::spawn(move || {
            (0..crowd_size).map(|_| UnixStream::connect(&path).unwrap()).collect::<Vec<_>>()
        })
    };
    let crowd = connect(socket.clone());
    thread::sleep(Duration::from_millis(50));

    // A later client waits for its turn, and gets it: all clients here give up when that takes too
    // long, before the silent ones reach their time limit.
    let started = Instant::now();
    let mut new = served.served_client();
    assert_eq!(new.read(512, 512).unwrap()[..8], 1_u64.to_be_bytes());
    let waited = started.elapsed();

    // A client that was connected before is not affected.
    let slowest = (0..200).map(|_| {
        let started = Instant::now();
        assert_eq!(old.read(0, 512).unwrap().len(), 512);
        started.elapsed()
    });
    let slowest = slowest.max().unwrap();
    println!(
        "{crowd_size} silent clients; new client served after {waited:?}; slowest of 200 reads {slowest:?}"
    );

    let crowd = crowd.join().unwrap();
    eventually("threads are bounded by the limits, not by the crowd", || threads() < 64 + 128 + 20);
    drop((crowd, old, new));
    served.stop().unwrap();
    // A client's thread reports its end before it drops its share of the server.
    eventually("every descriptor is closed", || descriptors() == before);

    reconnecting_crowd_does_not_shut_out_good_clients();
    running_out_of_descriptors_hurts_only_those_who_come();
}

/// Clients that come back as soon as they are closed, while good ones come and go.
fn reconnecting_crowd_does_not_shut_out_good_clients() {
    let served = Served::unix(config(), MemoryDisk::default());
    let (over, connects) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut kept = std::collections::VecDeque::new();
                while !over.load(Ordering::Relaxed) {
                    kept.push_back(UnixStream::connect(served.socket()).unwrap());
                    connects.fetch_add(1, Ordering::Relaxed);
                    if kept.len() > 200 {
                        kept.pop_front();
                    }
                }
            });
        }
        let _over = SetAtEnd(&over);
        thread::sleep(Duration::from_millis(300));
        for _ in 0..5 {
            let started = Instant::now();
            let mut client = served.served_client();
            assert_eq!(client.read(0, 512).unwrap().len(), 512);
            println!(
                "served after {:?} and {} connects of the crowd",
                started.elapsed(),
                connects.load(Ordering::Relaxed)
            );
        }
    });
}

/// Sets the flag that ends the threads, even when the test panics.
struct SetAtEnd<'f>(&'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client that cannot be accepted waits, at no cost, until it can be.
fn running_out_of_descriptors_hurts_only_those_who_come() {
    let served = Served::unix(config(), MemoryDisk::default());
    let mut old = served.served_client();
    let highest = descriptors() as u64 + 50;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(highest), ..limit }).unwrap();
    let mut fillers: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    assert!(!fillers.is_empty());
    // A descriptor for the client is freed, and none for the server's side of the connection.
    fillers.pop();
    let mut new = served.connect();

    let busy_before = clock_gettime(ClockId::ProcessCPUTime);
    thread::sleep(Duration::from_millis(500));
    let busy = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime) - busy_before).unwrap();
    assert!(busy < Duration::from_millis(100), "the server spun for {busy:?} of 500 ms");
    assert_eq!(old.read(0, 512).unwrap().len(), 512);

    drop(fillers);
    setrlimit(Resource::Nofile, limit).unwrap();
    new.read_exact(&mut [0; 18]).unwrap();
}

fn eventually(what: &str, holds: impl FnMut() -> bool) {
    underseal_testing::wait_until(what, PATIENCE, holds);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Raises the limit of descriptors as far as needed and possible.
fn crowd_that_descriptors_allow() -> usize {
    let wanted = (CROWD + OTHERS) as u64;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |maximum| maximum.min(wanted)));
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    let allowed = limit.current.map_or(CROWD, |current| usize::try_from(current).unwrap_or(usize::MAX));
    CROWD.min(allowed.saturating_sub(OTHERS))
}
