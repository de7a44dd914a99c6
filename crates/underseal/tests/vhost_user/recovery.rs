//! A server that is killed, and its requests in flight.

use std::thread;
use std::time::Duration;

use crate::control::operator::Operator;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, seed};
use crate::vhost_user::disk::serve;
use crate::vhost_user::front::{FLUSH, Front, OUT, SLOTS, data};
use crate::vhost_user::writes::Writes;

const OK: u8 = 0;
const IO_ERROR: u8 = 1;

/// The byte that fills a slot's place on the disk.
fn byte(slot: usize) -> u8 {
    slot.try_into().unwrap()
}

#[test]
fn what_was_held_back_when_the_server_was_killed_is_done_by_the_next() {
    let operator = Operator::new();
    let socket = operator.scratch.path("vm");
    let options = ["--vhost-user", text(&socket)];
    let (volume, server) = operator.open(&options);
    let mut front = Front::connect(&socket);
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    operator.does("suspend image");
    for slot in 0..SLOTS {
        front.put(data(slot), &[byte(slot); 4096]);
        front.ask(slot, OUT, 8 * slot as u64, 4096);
    }
    let taken = || operator.status("image")["in_flight"].as_u64().unwrap() == SLOTS as u64;
    wait_until("all are taken", PATIENCE, taken);
    server.kill();
    assert_eq!(front.take(), None);

    let server = operator.serve(&volume, &options);
    front.reconnect(&socket);
    for slot in 0..SLOTS {
        // In the order in which they were taken, since none has to wait for anything.
        assert_eq!(usize::from(front.next().0), 3 * slot);
        assert_eq!(front.status(slot), OK);
    }
    assert!(server.log().contains("16 requests of the server before are done again"), "{}", server.log());
    assert_eq!(front.does(FLUSH, 0, 0), OK);
    drop(front);
    server.stop();
    for slot in 0..SLOTS {
        assert_eq!(volume.read(slot as u64 * 4096, 4096), [byte(slot); 4096]);
    }
}

#[test]
fn no_write_is_lost_when_the_server_is_killed_again_and_again() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let mut random = fastrand::Rng::with_seed(seed("killed_again_and_again"));
    let (mut server, socket) = serve(&volume, &[]);
    let mut front = Front::connect(&socket);
    let mut writes = Writes::new(128 << 10, random.u64(..));
    for _ in 0..12 {
        let until = std::time::Instant::now() + Duration::from_millis(random.u64(20..150));
        while std::time::Instant::now() < until {
            writes.more(&mut front);
            thread::sleep(Duration::from_micros(random.u64(..200)));
        }
        server.kill();
        (server, _) = serve(&volume, &[]);
        front.reconnect(&socket);
    }
    writes.finish(&mut front);
    drop(front);
    server.stop();
}

/// A volume with tags holds acknowledged writes in its memory until a flush, or until it is closed.
#[test]
fn the_flushes_of_a_machine_fail_when_writes_ended_with_its_killed_server() {
    let scratch = Scratch::new();
    let volume = Volume::at(&scratch, "image").format("48M", &["--integrity", "hmac-sha256"]);
    for modes in [&[][..], &["--integrity-no-journal"]] {
        let (server, socket) = serve(&volume, modes);
        let mut front = Front::connect(&socket);
        let write = |front: &mut Front, fill: u8| {
            front.put(data(0), &[fill; 4096]);
            assert_eq!(front.does(OUT, 0, 4096), OK, "{modes:?}");
        };
        write(&mut front, 1);
        assert_eq!(front.does(FLUSH, 0, 0), OK);
        // A server that is stopped loses nothing.
        write(&mut front, 2);
        server.stop();
        let (server, _) = serve(&volume, modes);
        front.reconnect(&socket);
        assert_eq!(front.does(FLUSH, 0, 0), OK, "{modes:?}");
        write(&mut front, 4);
        server.kill();
        let (server, _) = serve(&volume, modes);
        front.reconnect(&socket);
        for _ in 0..2 {
            assert_eq!(front.does(FLUSH, 0, 0), IO_ERROR, "{modes:?}");
        }
        assert!(server.log().contains("was killed: writes that it had acknowledged"), "{}", server.log());
        // As long as that driver goes on, also with a further server.
        server.stop();
        let (server, _) = serve(&volume, modes);
        front.reconnect(&socket);
        assert_eq!(front.does(FLUSH, 0, 0), IO_ERROR, "{modes:?}");
        // A driver that starts anew finds what is there.
        drop(front);
        let mut front = Front::connect(&socket);
        write(&mut front, 5);
        assert_eq!(front.does(FLUSH, 0, 0), OK, "{modes:?}");
        drop(front);
        server.stop();
        assert_eq!(volume.read(0, 4096), [5; 4096], "{modes:?}");
    }
}
