//! `--daemon`.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use rustix::process::Signal;

use crate::command::common::{
    PATIENCE, Place, Server, eventually, exists, is_root, is_running, server_signal,
};
use crate::support::mounts::{cannot_fuse, skip};

fn pid(place: &Place) -> u32 {
    String::from_utf8(place.read("pid")).unwrap().trim().parse().unwrap()
}

#[test]
fn the_parent_returns_when_clients_can_connect_and_the_child_goes_on() {
    let place = Place::with_volume();
    // Relative names, and an output that is read to its end, would both show a child that still
    // holds its parent's directory or output.
    let args = ["--nbd", "unix:nbd", "--daemon", "--pid-file", "pid", "--log-file", "log", "-v"];
    let said = place.unlock("open", "disk", &args).succeeds();
    // The printed address has an absolute path, so it is valid in any directory.
    assert!(said.contains(&format!("nbd+unix:///?socket={}", place.text("nbd"))), "{said}");
    let pid = pid(&place);
    if is_root() {
        lets_go_of_everything(pid);
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string(), "a session of its own");
    assert!(locked_kib(pid) > 0, "keys are on locked pages of the child");

    place.noise("noise", 1 << 20);
    place.tool("nbdcopy", &["noise", "nbd+unix:///?socket=nbd"]);
    server_signal(pid, Signal::TERM);
    eventually("the daemon's end", || !is_running(pid));
    assert!(!exists(&place.path("nbd")) && !exists(&place.path("pid")));
    let log = String::from_utf8(place.read("log")).unwrap();
    assert!(log.contains("serving NBD on unix:/") && log.trim_end().ends_with("stopped"), "{log}");
    assert!(place.unlock("read", "disk", &["--length", "1M"]).bytes == place.read("noise"));
}

/// The server keeps neither the directory nor the terminal that it was started from.
fn lets_go_of_everything(pid: u32) {
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(link("cwd"), std::path::Path::new("/"));
    for fd in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(link(fd), std::path::Path::new("/dev/null"));
    }
}

fn locked_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_process_runs_until_its_last_thread_has_ended() {
    // The first thread ends by itself; the other one reads to the end of its input.
    let script = "import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).syscall(60, 0)";
    let mut python = std::process::Command::new("/usr/bin/python3");
    let mut child = python.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    eventually("the first thread's end", || status().contains("State:\tZ"));
    assert!(is_running(pid), "{}", status());
    drop(child.stdin.take());
    eventually("the last thread's end", || !is_running(pid));
    child.wait().unwrap();
    assert!(!is_running(pid));
}

#[test]
fn what_goes_wrong_is_told_by_the_parent_and_nothing_stays() {
    let place = Place::with_volume();
    std::fs::write(place.path("nbd.txt"), "").unwrap();
    for (args, code, what) in [
        ("--passphrase-file wrong --nbd unix:nbd", 3, "no keyslot opens"),
        ("--passphrase-file pass --nbd unix:nbd.txt", 1, "is no socket"),
        ("--passphrase-file pass --nbd tcp:0.0.0.0:0", 2, "plain text"),
        ("--passphrase-file pass --nbd unix:nbd --pid-file no/such/pid", 1, "No such file"),
        ("--passphrase-file pass --nbd unix:nbd --log-file no/such/log", 1, "No such file"),
        ("--passphrase-file pass --nbd unix:nbd --header pass", 5, "no LUKS header"),
    ] {
        let args = ["open", "disk", "--daemon"].into_iter().chain(args.split(' ')).collect::<Vec<_>>();
        place.run(&args).fails(code, what);
        assert!(!exists(&place.path("nbd")), "{args:?}");
    }
    // The image is locked by no process.
    place.unlock("write", "disk", &[]).succeeds();
}

#[test]
fn a_second_daemon_is_told_that_the_image_is_in_use() {
    let place = Place::with_volume();
    let first = ["--nbd", "unix:nbd", "--daemon", "--pid-file", "pid"];
    place.unlock("open", "disk", &first).succeeds();
    place.unlock("open", "disk", &["--nbd", "unix:other", "--daemon"]).fails(4, "in use");
    let pid = pid(&place);
    server_signal(pid, Signal::TERM);
    eventually("the daemon's end", || !is_running(pid));
}

fn end(place: &Place) {
    let pid = pid(place);
    server_signal(pid, Signal::TERM);
    eventually("the daemon's end", || !is_running(pid));
}

#[test]
fn what_its_caller_had_open_is_not_kept() {
    let place = Place::with_volume();
    // 9 is a pipe that is read to its end, 8 has the passphrase.
    let script = r#"exec "$0" open disk --passphrase-fd 8 --nbd unix:nbd --daemon --pid-file pid 8<pass 9>&1 >/dev/null"#;
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script, env!("CARGO_BIN_EXE_underseal")])
        .current_dir(place.path(""))
        .stdin(Stdio::null());
    shell.env("UNDERSEAL_RUNTIME_DIR", place.path("run"));
    let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdout.take().unwrap();
    assert!(child.wait().unwrap().success());
    let (ended, ends) = mpsc::channel();
    let reader = thread::spawn(move || ended.send(pipe.read_to_end(&mut Vec::new()).is_ok()));
    let at_its_end = ends.recv_timeout(PATIENCE / 4);
    place.tool("nbdinfo", &["nbd+unix:///?socket=nbd"]);
    end(&place);
    reader.join().unwrap().unwrap();
    assert_eq!(at_its_end, Ok(true), "the daemon keeps the pipe open");
}

#[test]
fn log_rotation_ends_nothing() {
    let place = Place::with_volume();
    let args = ["--nbd", "unix:nbd", "--daemon", "--pid-file", "pid", "--log-file", "log", "-v"];
    place.unlock("open", "disk", &args).succeeds();
    let log = |name: &str| String::from_utf8(place.read(name)).unwrap();
    for old in ["log.1", "log.2"] {
        std::fs::rename(place.path("log"), place.path(old)).unwrap();
        server_signal(pid(&place), Signal::HUP);
        eventually("a new log file", || exists(&place.path("log")) && log("log").contains("opened again"));
        place.tool("nbdinfo", &["nbd+unix:///?socket=nbd"]);
    }
    end(&place);
    assert!(log("log").trim_end().ends_with("stopped"), "{}", log("log"));
    assert!(!log("log.1").contains("opened again"), "{}", log("log.1"));
}

#[test]
fn a_lower_server_that_was_named_from_another_folder_is_found_again() {
    let place = Place::new();
    place.format("disk", &["--size", "64M"]);
    let below = Server::start(&place, &[]);
    let lower = "nbd+unix:///?socket=nbd&unflushed=trust";
    place.format(lower, &["--force", "-q"]);
    let args = ["--nbd", "unix:above", "--daemon", "--pid-file", "pid"];
    place.unlock("open", lower, &args).succeeds();
    let read = || place.tool("nbdcopy", &["nbd+unix:///?socket=above", "null:"]);
    read();
    below.stop();
    let below = Server::start(&place, &[]);
    read();
    end(&place);
    below.stop();
}

#[test]
fn a_signal_ends_a_start_that_does_not_come_to_its_end() {
    if let Some(reason) = cannot_fuse() {
        return skip("a_signal_ends_a_start", reason);
    }
    let place = Place::with_volume();
    place.format("other", &["--size", "32M"]);
    std::fs::create_dir(place.path("mount")).unwrap();
    // A folder where nothing is answered. Who waits for an answer through io_uring cannot be
    // killed.
    let asleep = Server::start_image(&place, "other", &["--fuse", "mount", "--fuse-no-io-uring"]);
    asleep.signal(Signal::STOP);
    let args = ["open", "disk", "--passphrase-file", "pass", "--nbd", "unix:mount/s"];
    let mut starting = place.command(&args).stderr(Stdio::piped()).spawn().unwrap();
    let thread = |name: &str| {
        let threads = std::fs::read_dir(format!("/proc/{}/task", starting.id())).unwrap();
        let names = threads.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.into_iter().any(|comm| comm.trim() == name)
    };
    eventually("signals are listened to", || thread("signals"));
    server_signal(starting.id(), Signal::TERM);
    let mut status = None;
    let pid = starting.id();
    eventually("its end", || {
        status = starting.try_wait().unwrap();
        status.is_some() || !is_running(pid)
    });
    let mut said = String::new();
    starting.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    asleep.signal(Signal::CONT);
    asleep.stop();
    assert_eq!(status.unwrap().code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");
}
