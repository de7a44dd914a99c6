//! Threads of a mount that sleep in reads of its descriptor, and orders that must reach them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::control::operator::Operator;
use crate::fuse::mounted::{Mounted, client};
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server, run};

/// Long enough for an order on a busy machine, and shorter than any wait for threads.
const SOON: Duration = Duration::from_secs(3);

/// The number of the server's threads that sleep in reads.
fn sleepers(pid: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let is_asleep = |task: fs::DirEntry| {
        let wait = fs::read_to_string(task.path().join("wchan")).unwrap_or_default();
        wait.contains("fuse_dev_do_read")
    };
    tasks.filter_map(Result::ok).map(is_asleep).filter(|asleep| *asleep).count()
}

/// Two clients read, until both threads of the server sleep in reads when the clients stop.
fn read_by_two(file: &File, pid: u32) {
    wait_until("both threads sleep in reads", PATIENCE, || {
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            for client in 0..2 {
                let ends = &ends;
                scope.spawn(move || {
                    let places = (0..64).cycle().map(|round| (client << 20) + round * 4096);
                    for place in places.take_while(|_| !ends.load(Ordering::Relaxed)) {
                        file.read_exact_at(&mut [0; 4096], place).unwrap();
                    }
                });
            }
            thread::sleep(Duration::from_millis(50));
            ends.store(true, Ordering::Relaxed);
        });
        thread::sleep(Duration::from_millis(5));
        sleepers(pid) == 2
    });
}

/// Reads and writes by three clients, which check what they read, while `act` runs.
fn serve_three(path: &Path, act: impl FnOnce()) {
    let (ends, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let clients = (0..3).map(|client: u8| {
            let (ends, done) = (&ends, &done);
            scope.spawn(move || {
                let file = File::options().read(true).write(true).open(path).unwrap();
                for round in 0_u64.. {
                    let at = (u64::from(client) << 20) + round % 64 * 4096;
                    let (written, mut read) = ([client ^ round.to_le_bytes()[0]; 4096], [0; 4096]);
                    file.write_all_at(&written, at).unwrap();
                    file.read_exact_at(&mut read, at).unwrap();
                    assert_same(&read, &written, "what was written");
                    done.fetch_add(1, Ordering::Relaxed);
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        wait_until("they are busy", PATIENCE, || done.load(Ordering::Relaxed) > 1000);
        act();
        let before = done.load(Ordering::Relaxed);
        wait_until("they go on", PATIENCE, || done.load(Ordering::Relaxed) > before + 1000);
        ends.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}

/// A volume of the operator's, as a file that two threads serve.
fn served(operator: &Operator) -> (PathBuf, Volume, Server) {
    let path = operator.scratch.file("plain", b"");
    let options = ["--hand-over", "--fuse-no-cache", "--fuse-threads", "2", "--fuse", text(&path)];
    let (volume, server) = operator.open(&options);
    (path, volume, server)
}

#[test]
fn orders_reach_threads_that_sleep_in_reads() {
    if let Some(reason) = cannot_fuse() {
        return skip("orders_reach_threads_that_sleep_in_reads", reason);
    }
    let operator = Operator::new();
    let (path, _volume, _server) = served(&operator);
    let file = File::open(&path).unwrap();
    let obeys = |order: &str| {
        let begun = Instant::now();
        operator.does(order);
        assert!(begun.elapsed() < SOON, "{order}: {:?}", begun.elapsed());
    };
    for _ in 0..3 {
        read_by_two(&file, operator.pid());
        obeys("suspend image");
        obeys("resume image");
        read_by_two(&file, operator.pid());
        obeys("upgrade image");
    }
    read_by_two(&file, operator.pid());
    drop(file);
    obeys("close image");
}

#[test]
fn orders_reach_threads_of_busy_clients() {
    if let Some(reason) = cannot_fuse() {
        return skip("orders_reach_threads_of_busy_clients", reason);
    }
    let operator = Operator::new();
    let (path, volume, _server) = served(&operator);
    serve_three(&path, || {
        for _ in 0..3 {
            operator.does("suspend image");
            operator.does("resume image");
            operator.does("upgrade image");
        }
        operator.does(&format!("reencrypt image --passphrase-file {}", text(&volume.passphrase)));
    });
    operator.does("close image");
}

#[test]
fn threads_that_sleep_in_reads_end_with_the_mount() {
    if let Some(reason) = cannot_fuse() {
        return skip("threads_that_sleep_in_reads_end_with_the_mount", reason);
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "32M");
    let options = ["--fuse-no-io-uring", "--fuse-no-cache", "--fuse-threads", "2"];
    let mounted = || {
        let mounted = Mounted::start(&scratch, &volume, &options);
        let file = File::open(mounted.path()).unwrap();
        read_by_two(&file, mounted.pid());
        (mounted, file)
    };
    let (signalled, _) = mounted();
    signalled.stop();
    let (mut unmounted, _) = mounted();
    run(client("fusermount3").arg("-u").arg(unmounted.path()));
    unmounted.end_well();
    // The mount of an open file ends by a signal that waits for the file, or by two.
    let (mut finished, file) = mounted();
    finished.signal(Signal::TERM);
    wait_until("the mount is out of sight", PATIENCE, || !finished.is_mounted());
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
    drop(file);
    finished.end_well();
    let (mut cut_off, file) = mounted();
    cut_off.signal(Signal::TERM);
    wait_until("the mount is out of sight", PATIENCE, || !cut_off.is_mounted());
    cut_off.signal(Signal::TERM);
    assert_eq!(cut_off.wait().code(), Some(1), "{}", cut_off.log());
    file.read_at(&mut [0; 4096], 0).unwrap_err();
}
