//! Bad clients beside good ones.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::mounts::skip;
use crate::support::nbd::{Client, Command};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

const MIB: u64 = 1 << 20;
/// Workers would come and stay: the server's threads could not be counted.
const INLINE: &[&str] = &["--policy", "inline"];
/// The good client's part of the volume.
const GOOD: u64 = 40 * MIB;

/// Writes and reads, and checks, until told to stop, and not before it has done so a few times.
/// Says how often, and how long the slowest pair of them took: the client gives up on an answer
/// after a minute.
fn work_well(socket: &Path, over: &AtomicBool, seed: u64) -> (u64, Duration) {
    let mut client = Client::connect(socket).unwrap();
    let (mut times, mut slowest) = (0, Duration::ZERO);
    while !over.load(Ordering::Relaxed) || times < 20 {
        let data = bytes(seed ^ times, 65_536);
        let at = GOOD + times % 64 * 65_536;
        let started = Instant::now();
        client.write(at, &data).unwrap();
        assert_same(&client.read(at, data.len()).unwrap(), &data, "the good client");
        slowest = slowest.max(started.elapsed());
        times += 1;
    }
    (times, slowest)
}

/// Does `bad` while a good client works; the server holds nothing more afterwards than before.
fn beside_a_good_client(server: &Server, bad: impl FnOnce()) {
    let seed = seed("bad clients");
    let own =
        "the server's own threads run: they accept, wait for signals, for commands, for what is refused";
    wait_until(own, PATIENCE, || server.holds().1 == 4);
    let before = server.holds();
    let over = AtomicBool::new(false);
    let socket = server.socket();
    thread::scope(|scope| {
        let good = scope.spawn(|| work_well(&socket, &over, seed));
        let ending = SetAtEnd(&over);
        thread::sleep(Duration::from_millis(50));
        bad();
        drop(ending);
        let (times, slowest) = good.join().unwrap();
        eprintln!("the good client: {times} writes and reads, the slowest pair in {slowest:?}");
    });
    let what = format!("the server holds (descriptors, threads) {before:?} again");
    wait_until(&what, PATIENCE, || server.holds() == before);
}

/// Tells a thread to end, even when its test panics.
struct SetAtEnd<'f>(&'f AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn fifty_clients_killed_in_the_middle_of_their_requests_harm_nobody() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "64M");
    let server = Server::start(&volume, INLINE);
    let source = scratch.file("source", &bytes(1, 32 << 20));
    let mut rng = fastrand::Rng::with_seed(seed("killed"));
    beside_a_good_client(&server, || {
        for number in 0..50 {
            let mut nbdcopy = tool("nbdcopy");
            match number % 2 {
                0 => nbdcopy.args([text(&source), &server.uri()]),
                _ => nbdcopy.args([&server.uri(), "null:"]),
            };
            let started = |log: &str| log.matches(": serving export").count();
            let before = started(&server.log());
            let mut victim = nbdcopy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            wait_until("the victim is served", PATIENCE, || started(&server.log()) > before);
            thread::sleep(Duration::from_micros(rng.u64(..15_000)));
            victim.kill().unwrap();
            victim.wait().unwrap();
        }
    });
    let log = server.stop();
    let cut = log.matches("WARN").count() + log.matches("in the middle of a request").count();
    eprintln!("{cut} lines tell of clients that were cut off");
    assert!(cut > 0, "no client was killed in the middle of anything:\n{log}");
}

#[test]
fn a_server_has_the_descriptors_of_all_its_clients() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "32M");
    let open = volume.command("open");
    let limited = |limits: &str, clients: &str| {
        let mut command = tool("sh");
        command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(open.get_program());
        command.args(open.get_args());
        Server::start_command(command, &["--max-connections", clients])
    };
    // The soft limit alone would serve a quarter of these clients.
    let server = limited("ulimit -Sn 256; ulimit -Hn 2000", "200");
    let clients: Vec<_> = (0..200).map(|_| Client::connect(&server.socket()).unwrap()).collect();
    drop(clients);
    assert!(!server.stop().contains("descriptors"));
    let server = limited("ulimit -n 256", "200");
    let log = server.stop();
    assert!(log.contains("200 clients want 900 descriptors, and this process may have 256"), "{log}");
}

#[test]
fn a_crowd_of_slow_connections_keeps_nobody_from_working() {
    const CROWD: usize = 1200;
    // The server inherits the limit. No higher than needed: some programs close every descriptor
    // there may be.
    let (limit, wanted) = (getrlimit(Resource::Nofile), CROWD as u64 + 1000);
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        return skip("a crowd", "the limit of descriptors is too low");
    }
    if limit.current.is_some_and(|current| current < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).unwrap();
    }

    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "64M");
    let server = Server::start(&volume, &["--max-connections", "100", "--policy", "inline"]);
    let socket = server.socket();
    beside_a_good_client(&server, || {
        // Served, and then a request at a byte a turn, or replies that are never read.
        let mut lazy: Vec<_> = (0..40).map(|_| Client::connect(&socket).unwrap()).collect();
        let request = Client::header(Command::Read, 1, 0, 1 << 20);
        for client in &mut lazy[20..] {
            client.stream.write_all(&request.repeat(8)).unwrap();
        }
        // A handshake at a byte a turn.
        let (all_there, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let newcomers = thread::scope(|scope| {
            let _over = SetAtEnd(&over);
            scope.spawn(|| {
                let hello = Client::hello();
                let mut crowd: Vec<_> =
                    (0..CROWD).map(|_| (UnixStream::connect(&socket).unwrap(), 0)).collect();
                all_there.store(true, Ordering::Relaxed);
                while !over.load(Ordering::Relaxed) {
                    for (stream, said) in &mut crowd {
                        let next = &hello[*said..(*said + 1).min(hello.len() - 1)];
                        *said += stream.write(next).unwrap_or(0);
                    }
                    thread::sleep(Duration::from_millis(20));
                }
            });
            for turn in 0..24 {
                for client in &mut lazy[..20] {
                    client.stream.write_all(&request[turn..=turn]).unwrap();
                }
                thread::sleep(Duration::from_millis(10));
            }
            wait_until("the crowd is there", PATIENCE, || all_there.load(Ordering::Relaxed));
            // Clients that connect now are served.
            let newcomers: Vec<_> = (0..3)
                .map(|_| {
                    let started = Instant::now();
                    run(tool("nbdinfo").args(["--size", &server.uri()]));
                    started.elapsed()
                })
                .collect();
            newcomers
        });
        assert!(newcomers.iter().all(|&wait| wait < PATIENCE), "newcomers waited {newcomers:?}");
        eprintln!("newcomers waited {newcomers:?}");
    });
    server.stop();
}

/// Bytes of the server that are in memory.
fn resident(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn idle_clients_give_the_memory_of_large_requests_back() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "64M");
    let server = Server::start(&volume, INLINE);
    let before = resident(&server);
    let mut clients: Vec<_> = (0..4).map(|_| Client::connect(&server.socket()).unwrap()).collect();
    let len = usize::try_from(32 * MIB).unwrap();
    for client in &mut clients {
        client.read(0, len).unwrap();
    }
    wait_until("their memory is given back", PATIENCE, || resident(&server) < before + 24 * MIB);
    // The clients work as before.
    for client in &mut clients {
        client.write(MIB, &[3; 4096]).unwrap();
        let data = client.read(0, len).unwrap();
        assert_eq!(data[1 << 20..][..4096], [3; 4096]);
    }
    drop(clients);
    server.stop();
}
