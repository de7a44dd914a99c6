//! Requests that come through io_uring, and when they do not.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::control::operator::Operator;
use crate::fuse::mounted::{Mounted, client, is_mounted};
use crate::support::mounts::{cannot_fuse, cannot_fuse_over_io_uring, skip, without_io_uring};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::Volume;
use crate::support::{Scratch, bytes, output, run, seed};

/// A mount in the operator's sight, and what `status` says of its requests.
fn mount(operator: &Operator, options: &[&str]) -> (Volume, Mounted, String) {
    let volume = Volume::luks2(&operator.scratch, "32M");
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    let path = operator.scratch.file("disk", b"");
    let mounted = Mounted::start_at(&operator.scratch, command, &path, options);
    let status = operator.does("status image");
    let told = status.lines().find(|line| line.contains("requests come")).map(str::to_owned);
    let told = told.unwrap_or_else(|| panic!("{status}"));
    (volume, mounted, told)
}

#[test]
fn status_says_how_requests_come_and_why() {
    if let Some(reason) = cannot_fuse() {
        return skip("status", reason);
    }
    for (options, expected) in [
        (&[][..], None),
        (&["--fuse-no-io-uring"], Some("through /dev/fuse: io_uring is off for this mount")),
        (&["--hand-over"], Some("through /dev/fuse: io_uring is off for this mount")),
    ] {
        let operator = Operator::new();
        let (_volume, mounted, told) = mount(&operator, options);
        let expected = expected.unwrap_or(match cannot_fuse_over_io_uring() {
            None => "through io_uring",
            Some(_) => "through /dev/fuse: ",
        });
        assert!(told.contains(expected), "{options:?}: {told}");
        assert_eq!(mounted.log().contains("through io_uring"), expected == "through io_uring");
        mounted.stop();
    }
}

/// Runs on each processor that this thread may run on.
fn on_each_processor(mut run: impl FnMut(usize)) {
    let all = sched_getaffinity(None).unwrap();
    for processor in (0..CpuSet::MAX_CPU).filter(|&processor| all.is_set(processor)) {
        let mut one = CpuSet::new();
        one.set(processor);
        sched_setaffinity(None, &one).unwrap();
        run(processor);
    }
    sched_setaffinity(None, &all).unwrap();
}

#[test]
fn requests_of_every_processor_are_served_by_any_number_of_threads() {
    if without_io_uring("processors") {
        return;
    }
    let seed = seed("requests_of_every_processor_are_served_by_any_number_of_threads");
    for threads in ["1", "2", "5"] {
        let scratch = Scratch::new();
        let volume = Volume::luks2(&scratch, "32M");
        let options = ["--fuse-threads", threads, "--fuse-no-cache"];
        let mounted = Mounted::start(&scratch, &volume, &options);
        assert!(mounted.log().contains("through io_uring"), "{}", mounted.log());
        let file = File::options().read(true).write(true).open(mounted.path()).unwrap();
        on_each_processor(|processor| {
            // Requests of several lengths, sectors in part among them; and one longer than the
            // kernel sends in one.
            for (len, skip) in [(1, 5), (512, 512), (4096, 0), (65536, 512), (1 << 20, 0), (3 << 20, 100)] {
                let (data, mut back) = (bytes(seed ^ processor as u64 ^ len as u64, len), vec![0; len]);
                file.write_all_at(&data, skip).unwrap();
                file.read_exact_at(&mut back, skip).unwrap();
                assert_same(&back, &data, "through one processor's queue");
            }
            file.sync_all().unwrap();
        });
        drop(file);
        mounted.stop();
    }
}

#[test]
fn clients_that_are_killed_leave_their_requests_answered() {
    if without_io_uring("killed clients") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "32M");
    let mounted = Mounted::start(&scratch, &volume, &["--fuse-no-cache"]);
    let input = format!("if={}", mounted.path().display());
    for round in 0..40 {
        let dd = |size: &str| {
            let mut dd = Command::new("dd");
            dd.args([input.as_str(), "of=/dev/null", "iflag=direct", size]).stderr(Stdio::null());
            dd.spawn().unwrap()
        };
        let mut clients = [dd("bs=1M"), dd("bs=4k"), dd("bs=128k")];
        std::thread::sleep(Duration::from_millis(3 + round % 7));
        for client in &mut clients {
            // Interrupts come through the descriptor, requests do not.
            client.kill().unwrap();
            client.wait().unwrap();
        }
    }
    let file = File::open(mounted.path()).unwrap();
    on_each_processor(|_| file.read_exact_at(&mut [0; 1 << 16], 0).unwrap());
    drop(file);
    mounted.stop();
}

#[test]
fn every_end_is_as_through_the_descriptor() {
    if without_io_uring("ends") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "32M");
    for options in [&["--fuse-threads=1"][..], &["--fuse-threads=3"], &["--fuse-no-io-uring"]] {
        // Pages in the kernel's cache need no server.
        let options = &[options, &["--fuse-no-cache"]].concat();
        // Unmounted by its user, with requests just before.
        let mut mounted = Mounted::start(&scratch, &volume, options);
        std::fs::write(mounted.path(), b"not lost").unwrap();
        run(client("fusermount3").arg("-u").arg(mounted.path()));
        mounted.end_well();
        assert_eq!(volume.read(0, 8), b"not lost");
        // Killed under load: waiting callers get an error, and the next server clears the mount.
        let mounted = Mounted::start(&scratch, &volume, options);
        let path = mounted.path().to_owned();
        let under_load = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let users: Vec<_> = (0..4)
                .map(|_| {
                    let file = File::open(&path).unwrap();
                    let under_load = &under_load;
                    scope.spawn(move || {
                        while file.read_at(&mut vec![0; 1 << 20], 0).is_ok() {
                            under_load.store(true, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            wait_until("it is read", PATIENCE, || under_load.load(Ordering::Relaxed));
            mounted.kill();
            users.into_iter().for_each(|user| user.join().unwrap());
        });
        assert!(is_mounted(&path));
        // A mount that is in use is stopped by a second signal.
        let mut mounted = Mounted::start_at(&scratch, volume.command("open"), &path, options);
        let file = File::open(mounted.path()).unwrap();
        mounted.signal(Signal::TERM);
        wait_until("it is out of sight", PATIENCE, || !mounted.is_mounted());
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
        mounted.signal(Signal::TERM);
        assert_eq!(mounted.wait().code(), Some(1), "{}", mounted.log());
        assert!(file.read_at(&mut [0; 4096], 0).is_err());
    }
}

#[test]
fn many_requests_at_a_time_are_all_answered() {
    if without_io_uring("many") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let mounted = Mounted::start(&scratch, &volume, &["--fuse-no-cache"]);
    // More requests than a queue has entries, of all lengths, written and verified.
    let fio = output(
        client("fio")
            .args(["--name=many", "--ioengine=libaio", "--direct=1", "--iodepth=128", "--rw=randwrite"])
            .args(["--bsrange=4k-256k", "--size=24m", "--verify=crc32c", "--do_verify=1", "--numjobs=1"])
            .args(["--fallocate=none", "--verify_fatal=1", "--verify_state_save=0"])
            .arg(format!("--filename={}", mounted.path().display())),
    );
    assert!(fio.status.success(), "{fio:?}");
    mounted.stop();
}
