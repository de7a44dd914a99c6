//! A server's helper process that is stopped: the server ends without it.

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::control::operator::Operator;
use crate::support::tools::{PATIENCE, children, wait_until};

/// The longest time that the end may take, on a busy machine.
const MOST: Duration = Duration::from_secs(90);

#[test]
fn a_server_whose_helper_is_stopped_ends_all_the_same() {
    let operator = Operator::new();
    let (_volume, mut server) = operator.open(&[]);
    let helpers = children(server.id());
    let [helper] = helpers[..] else { panic!("{helpers:?}") };
    let helper = Pid::from_raw(helper).unwrap();
    kill_process(helper, Signal::STOP).unwrap();
    let begun = Instant::now();
    server.signal(Signal::TERM);
    server.wait();
    assert!(begun.elapsed() < MOST, "{:?}\n{}", begun.elapsed(), server.log());
    assert!(server.log().contains("the sandbox's helper process"), "{}", server.log());
    let _ = kill_process(helper, Signal::CONT);
    let process = format!("/proc/{}/status", helper.as_raw_nonzero());
    let is_gone = || std::fs::read_to_string(&process).map_or(true, |status| status.contains("State:\tZ"));
    wait_until("the helper has ended, too", PATIENCE, is_gone);
}
