//! A server that is stopped, so that it answers nothing: commands with a time limit keep to it.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;

use crate::control::operator::Operator;

/// The longest time that a command with a limit of 2 seconds may take, on a busy machine.
const MOST: Duration = Duration::from_secs(15);

/// Connects until the server's queue of connections is full.
fn fill(socket: &Path) -> Vec<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let to = SocketAddrUnix::new(socket).unwrap();
    let mut held = Vec::new();
    loop {
        let client = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&client, &to) {
            Ok(()) => held.push(client),
            Err(Errno::AGAIN) => return held,
            Err(e) => panic!("{} connections, then {e}", held.len()),
        }
    }
}

#[test]
fn close_waits_for_a_hung_server_up_to_its_limit() {
    let operator = Operator::new();
    let (_volume, server) = operator.open(&[]);
    let sockets = fs::read_dir(operator.directory()).unwrap().map(|entry| entry.unwrap().path());
    let socket = sockets.into_iter().find(|path| path.ends_with("image.sock")).unwrap();
    let pid = operator.pid();
    server.pause();
    let mut queued = Vec::new();
    for full in [false, true] {
        if full {
            queued = fill(&socket);
        }
        let begun = Instant::now();
        let ran = operator.run("close image --timeout 2");
        let took = begun.elapsed();
        assert!(took < MOST, "the queue is full: {full}: it took {took:?}: {ran:?}");
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains("image: not closed within 2 s: its server does not answer"), "{ran:?}");
        assert!(full || ran.err.contains(&format!("kill -CONT {pid}")), "{ran:?}");
    }
    drop(queued);
    server.signal(Signal::CONT);
    server.stop();
}

#[test]
fn a_server_that_is_killed_while_it_is_asked_is_not_open() {
    let operator = Operator::new();
    let (_volume, server) = operator.open(&[]);
    server.pause();
    let mut question = operator.command("status image");
    let question = question.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    server.kill();
    let answer = question.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    let later = operator.run("status image");
    assert_eq!((answer.status.code(), said), (later.code, later.err));
}
