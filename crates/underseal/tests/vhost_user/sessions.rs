//! Front ends that come, go, die and come again; the server stopped, closed, suspended.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use vhost::VhostBackend;
use vhost::vhost_user::{Frontend, VhostUserFrontend};

use crate::control::operator::Operator;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server, bytes, output};
use crate::vhost_user::disk::{Ask, Disk, serve};
use crate::vhost_user::front::{FLUSH, Front, GET_ID, IN, OUT, SLOTS, data};

const OK: u8 = 0;

/// Long enough for a request that is not held back to be answered, on a busy machine too.
const A_WHILE: Duration = Duration::from_millis(700);

#[test]
fn the_disk_has_the_images_name() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut front = Front::connect(&socket);
    assert_eq!(front.does(GET_ID, 0, 20), OK);
    assert_eq!(front.get(data(0), 20), b"image\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    drop(front);
    server.stop();
}

#[test]
fn front_ends_come_one_after_the_other_and_leave_nothing_behind() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &["--policy", "inline"]);
    // Resources that the first front end brings into the process may stay.
    drop(Disk::connect(&socket, 2));
    wait_until("the first front end has left", PATIENCE, || server.log().contains("has left"));
    wait_until("its threads are gone", PATIENCE, || guest_mappings(&server) == 0);
    let before = server.holds();
    for round in 0..20 {
        let mut front = Front::connect(&socket);
        front.put(data(0), &[round; 4096]);
        assert_eq!(front.does(OUT, 8 * u64::from(round), 4096), OK);
        drop(front);
        // Front ends that do not even start a ring.
        let link = Frontend::connect(&socket, 1).unwrap();
        link.get_features().unwrap();
        drop(link);
    }
    wait_until("the last front end's memory is given back", PATIENCE, || guest_mappings(&server) == 0);
    let log = server.log();
    assert_eq!(log.matches("a front end has come").count(), 41, "{log}");
    assert!(!log.contains("turned away"), "{log}");
    wait_until("threads and descriptors of all of them are gone", PATIENCE, || server.holds() == before);
    server.stop();
    for round in 0..20_u8 {
        assert_eq!(volume.read(u64::from(round) * 4096, 4096), [round; 4096]);
    }
}

/// Mappings of guest memory that the server has.
fn guest_mappings(server: &Server) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.id())).unwrap_or_default();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

#[test]
fn a_second_front_end_is_turned_away_while_the_first_is_served() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut front = Front::connect(&socket);
    assert!(Frontend::connect(&socket, 1).unwrap().get_features().is_err());
    wait_until("it is told", PATIENCE, || server.log().contains("turned away"));
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    drop(front);
    assert_eq!(Front::connect(&socket).does(FLUSH, 0, 0), OK);
    server.stop();
}

#[test]
fn a_front_end_that_goes_amid_requests_does_no_harm() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    for round in 0..10 {
        let mut front = Front::connect(&socket);
        for slot in 0..SLOTS {
            front.ask(slot, if slot % 2 == 0 { OUT } else { IN }, 2048 * slot as u64, 1 << 20);
        }
        thread::sleep(Duration::from_millis(round));
        drop(front);
    }
    assert_eq!(Front::connect(&socket).does(FLUSH, 0, 0), OK);
    server.stop();
}

#[test]
fn what_was_offered_before_the_ring_was_enabled_is_served() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut front = Front::connect(&socket);
    front.link.set_vring_enable(0, false).unwrap();
    front.ask(0, FLUSH, 0, 0);
    // The kick is lost, as one is that came before the server.
    let _ = front.kick.read();
    thread::sleep(A_WHILE);
    assert_eq!(front.take(), None, "a ring that is not enabled is not served");
    front.link.set_vring_enable(0, true).unwrap();
    assert_eq!(front.next().0, 0);
    drop(front);
    server.stop();
}

#[test]
fn a_ring_that_is_stopped_has_answered_all_and_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut front = Front::connect(&socket);
    for slot in 0..SLOTS {
        front.ask(slot, IN, 2048 * slot as u64, 1 << 20);
    }
    let base = front.link.get_vring_base(0).unwrap();
    let answered = std::iter::from_fn(|| front.take()).count();
    assert_eq!(u32::try_from(answered).unwrap(), base, "what was taken was answered");
    front.start_ring(base.try_into().unwrap()).unwrap();
    (answered..SLOTS).for_each(|_| {
        front.next();
    });
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    drop(front);
    server.stop();
}

#[test]
fn memory_and_calls_change_while_requests_run() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut front = Front::connect(&socket);
    let data_of = |slot: usize| bytes(slot as u64, 1 << 20);
    for round in 0..20 {
        for slot in 0..SLOTS {
            front.put(data(slot), &data_of(slot));
            front.ask(slot, OUT, 2048 * slot as u64, 1 << 20);
        }
        if round % 2 == 0 {
            front.share_memory().unwrap();
        } else {
            front.link.set_vring_call(0, &front.call).unwrap();
        }
        (0..SLOTS).for_each(|_| {
            front.next();
        });
        assert!((0..SLOTS).all(|slot| front.status(slot) == OK));
    }
    drop(front);
    server.stop();
    for slot in 0..SLOTS {
        assert!(volume.read((slot << 20) as u64, 1 << 20) == data_of(slot));
    }
}

#[test]
fn the_server_answers_what_is_in_flight_before_it_ends() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (server, socket) = serve(&volume, &[]);
    let mut front = Front::connect(&socket);
    for slot in 0..SLOTS {
        front.put(data(slot), &[7; 1 << 20]);
        front.ask(slot, OUT, 2048 * slot as u64, 1 << 20);
    }
    server.stop();
    assert!(!socket.exists(), "the socket was left behind");
    let mut answered = 0;
    while let Some((head, _)) = front.take() {
        let slot = usize::from(head) / 3;
        assert_eq!(front.status(slot), OK);
        assert!(volume.read((slot << 20) as u64, 1 << 20) == [7; 1 << 20], "it was acknowledged");
        answered += 1;
    }
    assert!(answered <= SLOTS);
}

#[test]
fn an_operator_sees_suspends_and_closes_it() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let (_, server) = operator.open(&["--vhost-user", text(&socket)]);
    let mut front = Front::connect(&socket);
    front.put(data(0), &[5; 4096]);
    assert_eq!(front.does(OUT, 0, 4096), OK);
    let status = operator.status("image");
    assert_eq!(status["requests"]["write"]["requests"], 1, "{status}");
    assert!(operator.does("status image").contains(&format!("vhost-user:{}", text(&socket))));
    operator.does("policy image workers");
    assert_eq!(front.does(OUT, 8, 4096), OK);

    operator.does("suspend image");
    front.ask(0, OUT, 16, 4096);
    thread::sleep(A_WHILE);
    assert_eq!(front.take(), None, "it waits");
    // The call descriptor may change meanwhile.
    front.link.set_vring_call(0, &front.call).unwrap();
    operator.does("resume image");
    assert_eq!(front.next().0, 0);

    operator.does("suspend image");
    front.ask(0, OUT, 24, 4096);
    drop(front);
    wait_until("the front end has left", PATIENCE, || server.log().contains("has left"));
    // The next front end does not wait for the request of the previous one.
    let mut front = Front::connect(&socket);
    operator.does("resume image");
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    front.ask(1, IN, 0, 4096);
    operator.does("close image");
    assert_eq!(front.get(data(1), 4096), [5; 4096]);
    assert!(!socket.exists());
}

#[test]
fn a_path_that_is_taken_is_refused_and_one_that_is_left_over_is_not() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let other = Volume::at(&scratch, "other").format("48M", &[]);
    let (server, socket) = serve(&volume, &[]);
    let mut command = other.command("open");
    let refused = output(command.args(["--vhost-user", text(&socket)]));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("another server listens there"), "{said}");
    server.kill();
    assert!(socket.exists());
    let (server, socket) = serve(&volume, &[]);
    let mut disk = Disk::connect(&socket, 1);
    assert_eq!(disk.ask(Ask::Flush), 0);
    drop(disk);
    server.stop();
    let file: PathBuf = scratch.file("file", b"precious");
    let mut command = volume.command("open");
    let refused = output(command.args(["--vhost-user", text(&file)]));
    assert!(!refused.status.success());
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
}
