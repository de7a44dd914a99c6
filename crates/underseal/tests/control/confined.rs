//! A process that has the mark of sandboxed servers: other processes refuse it keys, and believe
//! little of it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use underseal_export::control::{Asking, Given, Line, Offer, Reply};
use underseal_export::net::Socket;

use crate::control::operator::{Operator, Ran};
use crate::control::upgrade::alone;
use crate::support::mounts::{cannot_fuse, skip};
use crate::support::nbd::Client;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text, underseal};
use crate::support::{run, tool};

/// A program with the mark: servers set that limit in their sandbox, and every process can.
fn marked(program: &str) -> Command {
    let mut command = tool("prlimit");
    command.args(["--msgqueue=0:0", "--", program]);
    command
}

/// Asks for the hand-over and begins it; prints all that the server says.
const ASKS: &str = r#"
import socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(sys.argv[1])
# The server may refuse before it has read anything.
try:
    s.sendall(b'{"version":1,"request":{"hand-over":{"protocol":1}}}\n')
    s.sendall((7).to_bytes(4, "little") + bytes(12) + b'"begin"')
except OSError:
    pass
count = 0
while True:
    try:
        data, descriptors, _, _ = socket.recv_fds(s, 65536, 64)
    except ConnectionResetError:
        break
    count += len(descriptors)
    if not data: break
    sys.stdout.buffer.write(data)
print(count, "descriptors")
"#;

#[test]
fn a_sandboxed_server_gets_no_key_of_another_and_may_not_control_it() {
    let operator = Operator::new();
    let (_, server) = operator.open(&["--hand-over"]);
    let binary = env!("CARGO_BIN_EXE_underseal");
    for words in ["close image", "suspend image", "policy image workers", "status image", "upgrade image"] {
        let mut command = marked(binary);
        command.args(words.split(' ')).env("UNDERSEAL_RUNTIME_DIR", operator.directory());
        let ran = Ran::from(command.output().expect("prlimit(1), of util-linux, is needed for the tests"));
        assert_eq!(ran.code, Some(1), "{words}: {ran:?}");
        assert!(ran.err.contains("is a server in a sandbox"), "{words}: {ran:?}");
    }
    let socket = operator.directory().join("image.sock");
    let asks = |mut command: Command| Ran::from(command.args(["-c", ASKS, text(&socket)]).output().unwrap());
    let ran = asks(marked("/usr/bin/python3"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("refused"), "it got more than a refusal: {ran:?}");
    assert_eq!(lines[1], "0 descriptors", "{ran:?}");
    assert_eq!((operator.pid(), operator.does("policy image").as_str()), (server.id(), "adaptive\n"));
    Client::connect(&server.socket()).unwrap().write(0, &[1; 4096]).unwrap();
    let log = server.stop();
    assert!(log.contains("is a server in a sandbox, and may not control other volumes"), "{log}");
}

/// A control socket of this process. The kernel names to its clients another process, which has the
/// mark, as the server.
struct Confined {
    listener: UnixListener,
    process: Child,
}

impl Confined {
    fn at(path: &Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        // The kernel names to clients the process that called listen(2) last.
        let script =
            "import socket, time; socket.socket(fileno=0).listen(); print(flush=True); time.sleep(600)";
        let mut command = marked("/usr/bin/python3");
        command.args(["-c", script]).stdin(OwnedFd::from(listener.try_clone().unwrap()));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "it listens");
        Self { listener, process }
    }

    /// Answers one request for the hand-over with this offer, and serves nothing. Whether the other
    /// process was ready to take it.
    fn offers(&self, offer: Offer, fds: &[OwnedFd], key: &[u8]) -> bool {
        let until = Instant::now() + PATIENCE;
        let (mut client, _) = self.listener.accept().unwrap();
        let mut asked = String::new();
        BufReader::new(client.try_clone().unwrap()).read_line(&mut asked).unwrap();
        assert!(asked.contains("hand-over"), "{asked}");
        client.write_all(&Reply::Done.line()).unwrap();
        let line = Line::new(Socket::from(OwnedFd::from(client)));
        assert_eq!(line.receive::<Asking>(until).unwrap().message, Asking::Begin);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // The other process may refuse before it has read all.
        let sent = line.send(&Given::Offer(Box::new(offer)), &fds, &[key], until);
        sent.is_ok() && line.receive::<Asking>(until).is_ok_and(|heard| heard.message == Asking::Ready)
    }
}

/// Upgrades `evil`, which makes this offer. Whether the process was ready to take it, and what it
/// said.
fn upgraded(
    operator: &Operator,
    confined: &Confined,
    (offer, fds, key): (Offer, &[OwnedFd], &[u8]),
) -> (bool, Ran) {
    thread::scope(|scope| {
        let offers = scope.spawn(|| confined.offers(offer, fds, key));
        let mut command = underseal();
        command.args(["upgrade", "evil"]).env("UNDERSEAL_RUNTIME_DIR", operator.directory());
        let ran = Ran::from(command.output().unwrap());
        (offers.join().unwrap(), ran)
    })
}

impl Drop for Confined {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The offer of the true server of `image`, made to this process, which is in no sandbox.
fn true_offer(operator: &Operator) -> (Offer, Vec<OwnedFd>, Vec<u8>) {
    let line = alone(operator);
    let until = Instant::now() + PATIENCE;
    line.send(&Asking::Begin, &[], &[], until).unwrap();
    let heard = line.receive::<Given>(until).unwrap();
    let Given::Offer(offer) = heard.message else { panic!("{:?}", heard.message) };
    let mut key = vec![0; usize::try_from(heard.bytes).unwrap()];
    line.read(&mut key, until).unwrap();
    (*offer, heard.fds, key)
}

/// A server that was taken over changes the arguments of its offer. The process that takes over is
/// in no sandbox yet.
#[test]
fn an_upgrade_believes_no_sandboxed_server_that_it_had_none_nor_any_log_file() {
    let operator = Operator::new();
    let log = operator.scratch.path("image.log");
    let (_, server) = operator.open(&["--hand-over", "--log-file", text(&log)]);
    let (mut offer, fds, key) = true_offer(&operator);
    let words = &mut offer.origin.arguments;
    let option = words.iter().position(|word| word == "--log-file").unwrap();
    words.drain(option..option + 2);
    let is_log = |fd: &OwnedFd| {
        let about = File::from(fd.try_clone().unwrap()).metadata().unwrap();
        about.ino() == fs::metadata(&log).unwrap().ino()
    };
    assert!(fds.last().is_some_and(is_log), "the log file comes last");
    let confined = Confined::at(&operator.directory().join("evil.sock"));
    let upgraded = |more: &[&str], fds: &[OwnedFd]| {
        let mut offer = offer.clone();
        offer.origin.arguments.extend(more.iter().map(|word| (*word).to_owned()));
        upgraded(&operator, &confined, (offer, fds, &key))
    };
    let new = operator.scratch.path("new.log");
    let victim = operator.scratch.file("victim", b"root:x:0:0\n");
    let as_victim: Vec<_> = fds[..fds.len() - 1].iter().map(|fd| fd.try_clone().unwrap()).collect();
    let with_victim = |file: File| {
        let mut fds: Vec<_> = as_victim.iter().map(|fd| fd.try_clone().unwrap()).collect();
        fds.push(file.into());
        fds
    };
    let not_for_logs = with_victim(File::options().read(true).write(true).open(&victim).unwrap());
    let name_of = |file: &Path| File::options().read(true).custom_flags(libc::O_PATH).open(file).unwrap();
    let names_victim = with_victim(name_of(&victim));
    let mut names_image: Vec<_> = fds.iter().map(|fd| fd.try_clone().unwrap()).collect();
    names_image[0] = name_of(&operator.scratch.path("image")).into();
    for (more, fds, why) in [
        (&["--no-sandbox"][..], &fds, "that is not believed"),
        (&["--log-file", text(&new)], &fds, "is not the log file that the server has open"),
        (&["--log-file", text(&victim)], &fds, "is not the log file that the server has open"),
        // Neither with a descriptor that does more than append, nor without one.
        (&["--log-file", text(&victim)], &not_for_logs, "is not the log file that the server has open"),
        (&["--log-file", text(&victim)], &as_victim, "is not the log file that the server has open"),
        (&["--pid-file", text(&victim)], &fds, "does not hold the number of the server"),
        (&["--header", text(&victim)], &fds, "is not the header that the server has open"),
        // A descriptor that only names a file.
        (&["--header", text(&victim)], &names_victim, "is not the header that the server has open"),
        (&["--log-file", text(&log), "--no-lock"], &names_image, "does not have the image open"),
        (&["--tls-certificates", "/etc/ssl"], &fds, "does not understand"),
    ] {
        let (ready, ran) = upgraded(more, fds);
        assert!(!ready, "{more:?}: the process would have taken it: {ran:?}");
        assert_eq!(ran.code, Some(1), "{more:?}: {ran:?}");
        assert!(ran.err.contains(why), "{more:?}: {ran:?}");
    }
    assert!(!new.exists());
    let mut kept = String::new();
    File::open(&victim).unwrap().read_to_string(&mut kept).unwrap();
    assert_eq!(kept, "root:x:0:0\n");
    // The true offer is one that a process would take, with a log file or without one.
    for more in [&["--log-file", text(&log)][..], &[]] {
        let (ready, ran) = upgraded(more, &fds);
        assert!(ready, "{more:?}: {ran:?}");
    }
    drop((confined, fds));
    server.stop();
}

/// The process that listened is dead, and a process that is in no sandbox has its number.
#[test]
fn an_upgrade_takes_no_process_for_the_server_because_of_its_number() {
    if let Err(e) = File::options().write(true).open("/proc/sys/kernel/ns_last_pid") {
        return skip("an upgrade from a reused process number", &e.to_string());
    }
    let operator = Operator::new();
    let (_, server) = operator.open(&["--hand-over"]);
    let (mut offer, fds, key) = true_offer(&operator);
    offer.origin.arguments.push("--no-sandbox".into());
    let mut confined = Confined::at(&operator.directory().join("evil.sock"));
    confined.process.kill().unwrap();
    let dead = confined.process.id();
    confined.process.wait().unwrap();
    let script = "import os, sys, time\n\
        while True:\n \
          open('/proc/sys/kernel/ns_last_pid', 'w').write(str(int(sys.argv[1]) - 1))\n \
          child = os.fork()\n \
          if child == 0: time.sleep(600 if os.getpid() == int(sys.argv[1]) else 0); os._exit(0)\n \
          if child == int(sys.argv[1]): print(flush=True); os.wait(); break\n \
          os.wait()";
    let mut again = tool("python3");
    let mut again = again.args(["-c", script, &dead.to_string()]).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(again.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    assert!(Path::new(&format!("/proc/{dead}")).exists());
    let (ready, ran) = upgraded(&operator, &confined, (offer, &fds, &key));
    run(tool("kill").arg(dead.to_string()));
    again.wait().unwrap();
    assert!(!ready && ran.code == Some(1), "the process would have taken it: {ran:?}");
    assert!(ran.err.contains("that is not believed"), "{ran:?}");
    drop((confined, fds));
    server.stop();
}

/// The new server's helper removes the files of sockets at the end: a path of the old server's word
/// could be any file.
#[test]
fn an_upgrade_believes_no_server_which_file_a_socket_has() {
    let operator = Operator::new();
    let (_, server) = operator.open(&["--hand-over"]);
    let (mut offer, fds, key) = true_offer(&operator);
    let victim = operator.scratch.file("victim", b"root:x:0:0\n");
    let about = fs::metadata(&victim).unwrap();
    let mut told = serde_json::to_value(&offer.control).unwrap();
    told[0]["path"] = serde_json::json!([text(&victim), about.dev(), about.ino()]);
    offer.control = serde_json::from_value(told).unwrap();
    let confined = Confined::at(&operator.directory().join("evil.sock"));
    let (ready, ran) = upgraded(&operator, &confined, (offer, &fds, &key));
    assert!(!ready && ran.code == Some(1), "the process would have taken it: {ran:?}");
    assert!(ran.err.contains("is not bound to"), "{ran:?}");
    assert!(victim.exists());
    drop((confined, fds));
    server.stop();
}

/// The new server unmounts its file at the end: a path of the old server's word could be another
/// server's.
#[test]
fn an_upgrade_believes_no_server_where_its_mount_is() {
    if let Some(reason) = cannot_fuse() {
        return skip("an_upgrade_believes_no_server_where_its_mount_is", reason);
    }
    let operator = Operator::new();
    let [own, others] = ["own", "others"].map(|name| operator.scratch.file(name, b""));
    let (_, server) = operator.open(&["--hand-over", "--fuse", text(&own)]);
    let other = Volume::at(&operator.scratch, "other").format("32M", &[]);
    let other = operator.serve(&other, &["--fuse", text(&others)]);
    let (mut offer, fds, key) = true_offer(&operator);
    let info = |fd: &OwnedFd| fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
    if !fds.iter().any(|fd| info(fd).contains("fuse_connection")) {
        let reason = "the kernel does not show of a descriptor which mount it is of";
        return skip("an_upgrade_believes_no_server_where_its_mount_is", reason);
    }
    let confined = Confined::at(&operator.directory().join("evil.sock"));
    offer.mount.as_mut().unwrap().path = others;
    let (ready, ran) = upgraded(&operator, &confined, (offer.clone(), &fds, &key));
    assert!(!ready && ran.code == Some(6), "the process would have taken it: {ran:?}");
    assert!(ran.err.contains("is not the old server's"), "{ran:?}");
    offer.mount.as_mut().unwrap().path = own;
    let (ready, ran) = upgraded(&operator, &confined, (offer, &fds, &key));
    assert!(ready, "{ran:?}");
    drop((confined, fds));
    other.stop();
    server.stop();
}

/// A detached header is believed, since its descriptor comes over.
#[test]
fn a_sandboxed_server_s_header_goes_on_after_an_upgrade() {
    let operator = Operator::new();
    let header = operator.scratch.path("header");
    let volume = Volume::at(&operator.scratch, "image").format("8M", &["--header", text(&header)]);
    let volume = volume.with(["--header", text(&header)]);
    for more in [&["--hand-over"][..], &["--hand-over", "--log-file", text(&operator.scratch.path("l"))]] {
        let mut server = operator.serve(&volume, more);
        Client::connect(&server.socket()).unwrap().write(0, &[3; 4096]).unwrap();
        operator.does("upgrade image -v");
        assert!(server.wait().success(), "{}", server.log());
        assert_eq!(Client::connect(&server.socket()).unwrap().read(0, 4096).unwrap(), [3; 4096]);
        operator.does("close image");
    }
}

#[test]
fn a_server_without_a_sandbox_is_upgraded_to_one_without() {
    let operator = Operator::new();
    let log = operator.scratch.path("image.log");
    let (_, mut server) = operator.open(&["--hand-over", "--no-sandbox", "--log-file", text(&log)]);
    operator.does("upgrade image -v");
    assert!(server.wait().success(), "{}", server.log());
    assert!(operator.status("image")["sandbox"].is_null());
    wait_until("it is logged", PATIENCE, || fs::read_to_string(&log).unwrap().contains("taken over: image"));
    operator.does("close image");
}

/// The new server continues with the open file, and opens it again by its path on SIGHUP.
#[test]
fn a_sandboxed_server_s_log_file_goes_on_after_an_upgrade() {
    let operator = Operator::new();
    let log = operator.scratch.path("image.log");
    let (_, mut server) = operator.open(&["--hand-over", "--log-file", text(&log)]);
    operator.does("upgrade image -v");
    assert!(server.wait().success());
    wait_until("it is logged", PATIENCE, || fs::read_to_string(&log).unwrap().contains("taken over: image"));
    let old = operator.scratch.path("image.log.1");
    fs::rename(&log, &old).unwrap();
    let pid = i32::try_from(operator.pid()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::HUP)
        .unwrap();
    let again = || fs::read_to_string(&log).is_ok_and(|text| text.contains("opened again"));
    wait_until("the log file is opened again", PATIENCE, again);
    operator.does("close image");
    assert!(fs::read_to_string(&log).unwrap().contains("close"));
}

/// The sandbox's helper opens no path by which the kernel shows an open file.
#[test]
fn a_log_file_that_cannot_be_opened_again_is_warned_of() {
    let operator = Operator::new();
    let volume = Volume::luks2(&operator.scratch, "20M");
    let log = operator.scratch.path("log");
    let mut open = tool("timeout");
    let command = volume.command("open");
    open.arg("60").arg(command.get_program()).args(command.get_args());
    open.args(["--daemon", "--log-file", "/dev/stderr", "--nbd"]);
    open.arg(format!("unix:{}", text(&operator.scratch.path("socket"))));
    open.env("UNDERSEAL_RUNTIME_DIR", operator.directory()).stderr(File::create(&log).unwrap());
    assert!(open.status().unwrap().success(), "{}", fs::read_to_string(&log).unwrap());
    assert!(fs::read_to_string(&log).unwrap().contains("/dev/stderr: the sandbox's helper cannot find it"));
    operator.does("close image");
}
