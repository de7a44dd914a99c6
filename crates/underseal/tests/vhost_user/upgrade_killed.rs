//! A disk whose next server is killed while it takes over, or afterwards.

use std::fs;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::control::operator::Operator;
use crate::support::seed;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::text;
use crate::vhost_user::front::{FLUSH, Front, IN, OUT, SLOTS, data};
use crate::vhost_user::writes::Writes;

const OK: u8 = 0;

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn what_was_held_back_when_the_next_process_was_killed_is_done_by_the_one_after() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let options = ["--hand-over", "--vhost-user", text(&socket)];
    let (volume, server) = operator.open(&options);
    let mut front = Front::connect(&socket);
    for slot in 0..SLOTS {
        front.ask(slot, IN, 0, 4096);
    }
    operator.does("upgrade image");
    (0..SLOTS).for_each(|_| {
        front.next();
    });
    operator.does("suspend image");
    for slot in 0..SLOTS {
        front.put(data(slot), &[u8::try_from(slot).unwrap(); 4096]);
        front.ask(slot, OUT, 8 * slot as u64, 4096);
    }
    let taken = || operator.status("image")["in_flight"].as_u64().unwrap() == SLOTS as u64;
    wait_until("all are taken", PATIENCE, taken);
    kill(operator.pid());
    drop(server);
    let mut server = None;
    wait_until("the image is free", PATIENCE, || {
        server = operator.still_served().is_none().then(|| operator.serve(&volume, &options));
        server.is_some()
    });
    front.reconnect(&socket);
    for slot in 0..SLOTS {
        assert_eq!(usize::from(front.next().0), 3 * slot);
        assert_eq!(front.status(slot), OK);
    }
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    drop(front);
    server.unwrap().stop();
    for slot in 0..SLOTS {
        assert_eq!(volume.read(slot as u64 * 4096, 4096), [u8::try_from(slot).unwrap(); 4096]);
    }
}

#[test]
fn no_write_is_lost_when_who_takes_over_is_killed_at_any_moment() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let options = ["--hand-over", "--vhost-user", text(&socket)];
    let (volume, mut server) = operator.open(&options);
    let mut random = fastrand::Rng::with_seed(seed("killed_at_any_moment"));
    let mut front = Front::connect(&socket);
    let mut writes = Writes::new(64 << 10, random.u64(..));
    let (mut taken, mut lost) = (0, 0);
    for _ in 0..25 {
        let old = operator.pid();
        let mut upgrade = operator.command("upgrade image");
        let mut upgrade = upgrade.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let until = Instant::now() + Duration::from_millis(random.u64(..90));
        while Instant::now() < until {
            writes.more(&mut front);
            thread::sleep(Duration::from_micros(100));
        }
        // The one that takes over is the child of the command.
        if let Some(child) = child_of(upgrade.id()) {
            kill(child);
        }
        upgrade.wait().unwrap();
        match operator.still_served() {
            Some(serving) => taken += u32::from(serving != old),
            None => {
                // The new server had the volume, and was killed.
                server = operator.serve(&volume, &options);
                front.reconnect(&socket);
                lost += 1;
            }
        }
        writes.more(&mut front);
    }
    eprintln!(
        "of 25, {taken} had taken over before the kill, and {lost} were killed when they had just done so"
    );
    writes.finish(&mut front);
    drop(front);
    operator.does("close image");
    drop(server);
}

fn child_of(process: u32) -> Option<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().next()?.parse().ok()
}
