//! A volume that another process takes over, under its clients' hands.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use underseal_export::control::{self as wire, Asking, Given, Line, PROTOCOL, Reply, Request};

use crate::control::operator::Operator;
use crate::support::Server;
use crate::support::nbd::{Client, Command};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::Volume;
use crate::support::{bytes, fio, run, seed, tool};

/// Clients notice less than this, on a busy machine too: far more than it takes.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// A volume's socket, as a process that takes over sees it.
fn asking(operator: &Operator, protocol: u32) -> Result<Line, String> {
    let mut client = wire::Client::connect(&operator.directory().join("image.sock"), PATIENCE).unwrap();
    match client.ask(&Request::HandOver { protocol }, None, PATIENCE).unwrap() {
        Reply::Refused(refusal) => Err(refusal.message),
        _ => Ok(client.into_line().unwrap()),
    }
}

/// The same in this version, after the previous new server is gone: the old server notices that
/// with a short delay.
pub(crate) fn alone(operator: &Operator) -> Line {
    let mut line = None;
    wait_until("nobody else takes over", PATIENCE, || {
        line = match asking(operator, PROTOCOL) {
            Ok(line) => Some(line),
            Err(why) => {
                assert!(why.contains("just now"), "{why}");
                None
            }
        };
        line.is_some()
    });
    line.unwrap()
}

/// The connections of a paused server, each with the bytes that were left of it.
pub(crate) fn at_rest(line: &Line) -> Vec<wire::Heard<Given>> {
    let until = Instant::now() + PATIENCE;
    line.send(&Asking::Ready, &[], &[], until).unwrap();
    let Given::Rests(count) = line.receive(until).unwrap().message else { panic!("it does not rest") };
    let connection = |_| {
        let heard = line.receive::<Given>(until).unwrap();
        assert!(matches!(heard.message, Given::Connection(_)), "{heard:?}");
        line.read(&mut vec![0; usize::try_from(heard.bytes).unwrap()], until).unwrap();
        heard
    };
    (0..count).map(connection).collect()
}

/// Writes and reads one block after the other until `ends` is set; each read finds the last write.
/// Returns the longest wait.
fn busy(socket: &Path, at: u64, seed: u64, ends: &AtomicBool, count: &AtomicU64) -> Duration {
    let mut client = Client::connect(socket).unwrap();
    let mut longest = Duration::ZERO;
    let mut round = 0;
    while !ends.load(Ordering::Relaxed) {
        round += 1;
        let data = bytes(seed ^ round, 16384);
        let offset = at + round % 64 * 16384;
        let begun = Instant::now();
        client.write(offset, &data).unwrap();
        assert_same(&client.read(offset, data.len()).unwrap(), &data, "what was written a moment ago");
        longest = longest.max(begun.elapsed());
        count.fetch_add(1, Ordering::Relaxed);
    }
    client.flush().unwrap();
    longest
}

#[test]
fn clients_stay_while_new_processes_take_over() {
    let operator = Operator::new();
    let pid_file = operator.scratch.path("pid");
    let (volume, mut server) = operator.open(&["--hand-over", "--pid-file", pid_file.to_str().unwrap()]);
    let seed = seed("clients_stay_while_new_processes_take_over");
    let mut quiet = Client::connect(&server.socket()).unwrap();
    let kept = bytes(seed, 65536);
    quiet.write(16 << 20, &kept).unwrap();
    let (ends, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut pids = vec![server.id()];
    let longest = thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|i| {
                scope.spawn({
                    let (ends, count, socket) = (&ends, &count, server.socket());
                    move || busy(&socket, i << 20, seed ^ i << 32, ends, count)
                })
            })
            .collect();
        for _ in 0..5 {
            let before = count.load(Ordering::Relaxed);
            wait_until("clients are busy", PATIENCE, || count.load(Ordering::Relaxed) > before + 20);
            operator.does("upgrade image");
            pids.push(operator.pid());
            assert_eq!(fs::read_to_string(&pid_file).unwrap().trim(), pids[pids.len() - 1].to_string());
        }
        let before = count.load(Ordering::Relaxed);
        wait_until("clients are busy", PATIENCE, || count.load(Ordering::Relaxed) > before + 20);
        ends.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).max().unwrap()
    });
    eprintln!("a write and the read of it took {longest:?} at most, through 5 processes");
    assert!(longest < PAUSE, "{longest:?}");
    let mut different = pids.clone();
    different.dedup();
    assert_eq!(different.len(), 6, "{pids:?}");
    assert!(server.wait().success(), "{}", server.log());
    // A client that was idle during the upgrade, and a client that connects afterwards.
    assert_same(&quiet.read(16 << 20, kept.len()).unwrap(), &kept, "what the first process wrote");
    let mut late = Client::connect(&server.socket()).unwrap();
    assert_same(&late.read(16 << 20, kept.len()).unwrap(), &kept, "what the first process wrote");
    drop((quiet, late));
    operator.does("close image");
    assert!(!server.socket().exists() && !pid_file.exists());
    assert_same(&volume.read(16 << 20, kept.len()), &kept, "the image");
}

#[test]
fn fio_finds_all_that_it_wrote_through_an_upgrade() {
    let operator = Operator::new();
    let (_volume, server) = operator.open(&["--hand-over", "--policy", "workers"]);
    operator.does("policy image adaptive");
    let mut fio = fio::verifying(&server, 2, 12 << 20);
    fio.args(["--rw=randwrite", "--bs=4k", "--loops=2", "--fsync=64"]);
    let mut fio = match fio.stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
        Ok(fio) => fio,
        Err(e) => return underseal_testing::skip("fio through an upgrade", &format!("no fio: {e}")),
    };
    let mut upgrades = 0;
    while fio.try_wait().unwrap().is_none() {
        if upgrades < 8 {
            operator.does("upgrade image");
            upgrades += 1;
        }
        thread::sleep(Duration::from_millis(100));
    }
    let ended = fio.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(upgrades > 0, "fio was faster than the first one");
    assert_eq!(operator.status("image")["policy"], "adaptive", "what was set at run time");
    operator.does("close image");
}

#[test]
fn half_a_request_is_taken_over_whole() {
    let operator = Operator::new();
    let (_volume, server) = operator.open(&["--hand-over"]);
    let seed = seed("half_a_request_is_taken_over_whole");
    let mut clients = Vec::new();
    // Cut in a header, in a small payload, in a long one; and one that is not there to be seen: in
    // the socket.
    for (i, (len, cut)) in
        [(4096, 11), (16384, 28 + 100), (1 << 20, 28 + 300_000), (1 << 20, 28)].into_iter().enumerate()
    {
        let mut client = Client::connect(&server.socket()).unwrap();
        let data = bytes(seed ^ i as u64, len);
        let offset = (i as u64) << 21;
        let whole =
            [Client::header(Command::Write, 7, offset, u32::try_from(len).unwrap()), data.clone()].concat();
        std::io::Write::write_all(&mut client.stream, &whole[..cut]).unwrap();
        clients.push((client, whole, cut, offset, data));
    }
    // A client that does not read its reply.
    let mut slow = Client::connect(&server.socket()).unwrap();
    let long = bytes(seed ^ 99, 8 << 20);
    slow.write(16 << 20, &long).unwrap();
    std::io::Write::write_all(
        &mut slow.stream,
        &Client::header(Command::Read, 9, 16 << 20, u32::try_from(long.len()).unwrap()),
    )
    .unwrap();
    thread::sleep(Duration::from_millis(300));
    operator.does("upgrade image");
    for (client, whole, cut, ..) in &mut clients {
        // A little more, and another process again.
        std::io::Write::write_all(&mut client.stream, &whole[*cut..*cut + 5]).unwrap();
    }
    operator.does("upgrade image");
    for (client, whole, cut, offset, data) in &mut clients {
        std::io::Write::write_all(&mut client.stream, &whole[*cut + 5..]).unwrap();
        assert_eq!(client.reply().unwrap(), (7, 0));
        assert_same(&client.read(*offset, data.len()).unwrap(), data, "a write in pieces");
    }
    assert_eq!(slow.reply().unwrap(), (9, 0));
    let mut found = vec![0; long.len()];
    std::io::Read::read_exact(&mut slow.stream, &mut found).unwrap();
    assert_same(&found, &long, "an answer that nobody took for two processes");
    operator.does("close image");
}

#[test]
fn who_cannot_take_over_leaves_the_old_one_serving() {
    let operator = Operator::new();
    let (_volume, server) = operator.open(&["--hand-over"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    let soon = || Instant::now() + PATIENCE;
    let serves = |client: &mut Client, what: &str| {
        assert_eq!(client.read(0, 4096).unwrap(), [1; 4096], "{what}");
        assert_eq!(operator.pid(), server.id(), "{what}");
        assert_eq!(operator.status("image")["suspended"], false, "{what}");
        Client::connect(&server.socket()).unwrap().flush().unwrap();
    };
    // A new server with another version of the protocol.
    let refused = asking(&operator, PROTOCOL + 1).unwrap_err();
    assert!(refused.contains("version"), "{refused}");
    serves(&mut client, "another version");
    // New servers that end at each step.
    drop(alone(&operator));
    serves(&mut client, "it never began");
    let line = alone(&operator);
    line.send(&Asking::Begin, &[], &[], soon()).unwrap();
    let heard = line.receive::<Given>(soon()).unwrap();
    assert!(matches!(heard.message, Given::Offer(_)) && heard.fds.len() == 3, "{heard:?}");
    // A second new server at the same time.
    let refused = asking(&operator, PROTOCOL).unwrap_err();
    assert!(refused.contains("just now"), "{refused}");
    operator.is_refused("suspend image --wipe", 1, "handed over just now");
    let mut key = vec![0; usize::try_from(heard.bytes).unwrap()];
    line.read(&mut key, soon()).unwrap();
    drop((line, heard));
    serves(&mut client, "it ended with the offer");
    for takes_long in [false, true] {
        let line = alone(&operator);
        line.send(&Asking::Begin, &[], &[], soon()).unwrap();
        let heard = line.receive::<Given>(soon()).unwrap();
        line.read(&mut key, soon()).unwrap();
        let connections = at_rest(&line);
        assert!(!connections.is_empty());
        if takes_long {
            // Clients wait meanwhile; after that, the volume can no longer be taken.
            let begun = Instant::now();
            client.write(4096, &[2; 4096]).unwrap();
            eprintln!("a process that hung kept a write waiting for {:?}", begun.elapsed());
            line.take().unwrap_err();
        }
        drop((line, heard, connections));
        serves(&mut client, "it ended, or hung, with all that it needs");
    }
    // A server that is signalled meanwhile ends.
    let line = alone(&operator);
    line.send(&Asking::Begin, &[], &[], soon()).unwrap();
    line.receive::<Given>(soon()).unwrap();
    line.read(&mut key, soon()).unwrap();
    drop(at_rest(&line));
    let begun = Instant::now();
    drop(client);
    server.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "it waited for who hangs");
    line.take().unwrap_err();
}

#[test]
fn killed_at_any_moment_one_process_serves_or_clients_are_told() {
    let operator = Operator::new();
    let (volume, mut server) = operator.open(&["--hand-over"]);
    let mut random = seed("killed_at_any_moment_one_process_serves_or_clients_are_told");
    let (mut taken, mut lost) = (0, 0);
    for round in 0..25_u64 {
        let mut client = Client::connect(&server.socket()).unwrap();
        let block = bytes(random ^ round, 4096);
        client.write(round * 4096, &block).unwrap();
        client.flush().unwrap();
        let old = operator.pid();
        let mut upgrade = operator.command("upgrade image");
        let mut upgrade = upgrade.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_millis((random >> 33) % 60));
        // The one that takes over is the child of the command.
        let of = upgrade.id();
        let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
        let child = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        if let Some(child) = child {
            let _ = kill_process(child, Signal::KILL);
        }
        let status = upgrade.wait().unwrap();
        assert!(status.signal().is_none());
        let Some(serving) = operator.still_served() else {
            // The new server had the volume and was killed: the client sees the connection end.
            let told = std::io::Write::write_all(&mut client.stream, &[0]).and_then(|()| client.reply());
            assert!(
                told.is_err_and(|e| e.kind() != ErrorKind::WouldBlock && e.kind() != ErrorKind::TimedOut)
            );
            server = operator.serve(&volume, &["--hand-over"]);
            let mut again = Client::connect(&server.socket()).unwrap();
            assert_same(&again.read(round * 4096, 4096).unwrap(), &block, "what was flushed before");
            lost += 1;
            continue;
        };
        taken += u32::from(serving != old);
        assert_same(&client.read(round * 4096, 4096).unwrap(), &block, "what was flushed before");
        client.write(round * 4096, &block).unwrap();
    }
    eprintln!(
        "of 25, {taken} had taken over before the kill, and {lost} were killed when they had just done so"
    );
    operator.does("close image");
}

#[test]
fn what_cannot_be_taken_over_is_refused_before_anything_stops() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&[]);
    operator.is_refused("upgrade image", 6, "without --hand-over");
    server.stop();
    let server = operator.serve(&volume, &["--hand-over"]);
    operator.does("suspend image");
    operator.is_refused("upgrade image", 1, "suspended");
    operator.does("resume image");
    operator.does("upgrade image");
    operator.does("close image");
    drop(server);
    let table = operator.open_table(&"07".repeat(32), &[]);
    operator.is_refused("upgrade table", 6, "underseal open");
    table.stop();
    operator.is_refused("upgrade nothing", 2, "no volume nothing is open");
}

#[test]
fn a_supervisor_is_told_whose_word_counts_now() {
    let operator = Operator::new();
    let volume = Volume::luks2(&operator.scratch, "48M");
    let path = operator.scratch.path("notify");
    let supervisor = UnixDatagram::bind(&path).unwrap();
    supervisor.set_read_timeout(Some(PATIENCE)).unwrap();
    let hears = |what: &str| {
        let mut word = [0; 4096];
        loop {
            let n = supervisor.recv(&mut word).unwrap();
            let text = String::from_utf8_lossy(&word[..n]).into_owned();
            if text.contains(what) {
                return text;
            }
        }
    };
    let mut command = volume.command("open");
    command.env("UNDERSEAL_RUNTIME_DIR", operator.directory());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "4000000");
    let mut server = Server::start_command(command, &["--hand-over"]);
    assert!(hears("READY=1").contains(&format!("MAINPID={}", server.id())));
    operator.does("upgrade image");
    let new = operator.pid();
    // From both, in either order: the old one's word counts.
    let told = [hears("MAINPID="), hears("MAINPID=")];
    assert!(told.contains(&format!("MAINPID={new}")), "{told:?}");
    assert!(told.iter().all(|text| text.contains(&format!("MAINPID={new}"))), "{told:?}");
    assert!(server.wait().success());
    hears("WATCHDOG=1");
    operator.does("close image");
    hears("STOPPING=1");
}

#[test]
fn a_new_server_has_the_limits_of_the_old_one_and_not_those_of_a_shell() {
    let operator = Operator::new();
    let (_volume, server) = operator.open(&["--hand-over"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 65536]).unwrap();
    let limits = |pid: u32| {
        let all = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let is_asked = |line: &&str| ["file size", "cpu time", "open files"].iter().any(|l| line.contains(l));
        all.lines().filter(is_asked).map(str::to_owned).collect::<Vec<_>>()
    };
    let old = limits(operator.pid());
    let upgrade = operator.command("upgrade image");
    let mut limited = tool("prlimit");
    // Without privileges a hard limit stays.
    limited.args(["--fsize=4096:", "--cpu=2:", "--nofile=200:"]).arg(upgrade.get_program());
    limited.args(upgrade.get_args());
    limited.envs(upgrade.get_envs().filter_map(|(name, value)| Some((name, value?))));
    run(&mut limited);
    assert_ne!(operator.pid(), server.id());
    assert_eq!(limits(operator.pid()), old);
    client.write(1 << 20, &[2; 65536]).unwrap();
    client.flush().unwrap();
    operator.does("close image");
}

#[test]
fn an_operator_finds_everything_afterwards() {
    let operator = Operator::new();
    let (volume, server) =
        operator.open(&["--hand-over", "--nbd", "tcp:127.0.0.1:0", "--metrics", "localhost:0"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[5; 4096]).unwrap();
    let before = operator.status("image");
    operator.does("upgrade image");
    let after = operator.status("image");
    for same in ["addresses", "image", "size", "policy", "opened", "sandbox", "can_reencrypt"] {
        assert_eq!(before[same], after[same], "{same}");
    }
    assert_eq!(after["requests"]["write"]["requests"], 0, "counters begin anew");
    // The key is there to be wiped, the header's digest to tell the right one, and the volume goes
    // over again.
    operator.does("suspend image --wipe");
    operator.is_refused("upgrade image", 1, "suspended");
    let wrong = operator.scratch.file("wrong", b"wrong");
    operator.is_refused(&format!("resume image --passphrase-file {}", wrong.display()), 3, "passphrase");
    operator.does(&format!("resume image --passphrase-file {}", volume.passphrase.display()));
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
    operator.does("resize image --size 16M");
    operator.does("upgrade image");
    assert_eq!(operator.status("image")["size"], 16 << 20);
    assert_eq!(client.read(0, 4096).unwrap(), [5; 4096]);
    assert_eq!(Client::connect(&server.socket()).unwrap().size, 16 << 20);
    operator.does("close image");
    // A volume without a header, which only reads.
    let plain = Volume::at(&operator.scratch, "plain").with(["--type", "plain", "--read-only"]);
    operator.scratch.sparse("plain", 1 << 20);
    let server = operator.serve(&plain, &["--hand-over"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    let noise = client.read(0, 4096).unwrap();
    operator.does("upgrade plain");
    assert_eq!(client.read(0, 4096).unwrap(), noise);
    assert_eq!(client.write(0, &[0; 4096]).unwrap_err(), 1);
    operator.does("close plain");
}
