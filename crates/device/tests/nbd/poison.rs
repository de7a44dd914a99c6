//! A request for which the server always closes the connection.

use std::thread;
use std::time::{Duration, Instant};

use super::queue::Queue;
use super::{Behaviour, Server, open, plain, said};
use underseal_device::{Blocking, Io};
use underseal_nbd_protocol::TransmissionFlags as Flags;
use underseal_testing::PATIENCE;

const POISON: u64 = 64 << 10;

fn poisoned(gathers: bool) -> Server {
    Server::start(Behaviour { hangs_up_at: Some(POISON), gathers, ..plain().without(Flags::CAN_MULTI_CONN) })
}

/// Runs `act` in another thread, and fails if it does not end.
fn ends<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    thread::spawn(move || drop(tell.send(act())));
    told.recv_timeout(PATIENCE).expect("it ends")
}

#[test]
fn each_of_them_fails_also_after_the_first_has_waited_for_long() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN] {
        let server = Server::start(Behaviour { hangs_up_at: Some(POISON), ..plain().without(flags) });
        let device = open(&server, "&reconnect-delay=1&unflushed=trust");
        ends(move || {
            let mut io = Blocking::new(&device).unwrap();
            for pause in [0, 1100, 0] {
                thread::sleep(Duration::from_millis(pause));
                let error = io.read(POISON, &mut [0; 4096]).unwrap_err();
                assert_eq!(error.errno(), Some(5), "{}", said(&error));
            }
            // Another request is answered, however soon it comes.
            io.read(0, &mut [0; 4096]).unwrap();
            assert_eq!(io.read(POISON, &mut [0; 4096]).unwrap_err().errno(), Some(5));
            io.write(0, &[1; 4096], false).unwrap();
            io.flush().unwrap();
            drop((io, device));
        });
    }
}

#[test]
fn those_beside_it_on_the_same_connection_are_answered() {
    for gathers in [false, true] {
        let server = poisoned(gathers);
        // With this delay, waiting for its end would take five minutes.
        let device = open(&server, "&reconnect-delay=300");
        let started = Instant::now();
        let (mut queue, mut other) = (Queue::new(&device, 16), Queue::new(&device, 1));
        for slot in 0..16 {
            let buffer = queue.arena.alloc(4096).unwrap();
            let offset = if slot == 5 { POISON } else { u64::from(slot) * 4096 };
            queue.start(slot, Io::Read { offset, buffer, range: 0..4096 });
        }
        let mut over = 0;
        while over < 16 {
            for done in queue.turn(Duration::from_millis(100)) {
                assert_eq!(done.result.is_err(), done.slot == 5, "{}: {:?}", done.slot, done.result);
                over += 1;
            }
            assert!(started.elapsed() < PATIENCE.min(Duration::from_secs(299)), "{over} are over");
            // The server is seen to work: another request is answered meanwhile.
            if over == 15 && other.in_flight == 0 {
                let buffer = other.arena.alloc(4096).unwrap();
                other.start(0, Io::Read { offset: 0, buffer, range: 0..4096 });
            }
            for done in other.turn(Duration::from_millis(1)) {
                done.result.unwrap();
                other.arena.free(done.buffer.unwrap());
            }
        }
    }
}

#[test]
fn those_beside_it_are_answered_also_while_requests_fail() {
    for gathers in [false, true] {
        let server = poisoned(gathers);
        let device = open(&server, "&reconnect-delay=1");
        let mut io = Blocking::new(&device).unwrap();
        // The server answers no request for as long as reconnect-delay.
        assert_eq!(io.read(POISON, &mut [0; 4096]).unwrap_err().errno(), Some(5));
        drop(io);
        let mut queue = Queue::new(&device, 16);
        for slot in 0..16 {
            let buffer = queue.arena.alloc(4096).unwrap();
            let offset = if slot == 5 { POISON } else { u64::from(slot) * 4096 };
            queue.start(slot, Io::Read { offset, buffer, range: 0..4096 });
        }
        let (mut over, started) = (0, Instant::now());
        while over < 16 {
            for done in queue.turn(Duration::from_millis(100)) {
                assert_eq!(done.result.is_err(), done.slot == 5, "{}: {:?}", done.slot, done.result);
                over += 1;
            }
            assert!(started.elapsed() < PATIENCE, "{over} are over");
        }
    }
}

#[test]
fn clients_that_go_on_beside_it_see_no_error() {
    let server = poisoned(false);
    let device = open(&server, "&reconnect-delay=300");
    thread::scope(|scope| {
        let poison = scope.spawn(|| Blocking::new(&device).unwrap().read(POISON, &mut [0; 4096]));
        let mut io = Blocking::new(&device).unwrap();
        let started = Instant::now();
        while !poison.is_finished() && started.elapsed() < PATIENCE {
            io.read(0, &mut [0; 4096]).unwrap();
            io.write(4096, &[1; 4096], true).unwrap();
        }
        assert_eq!(poison.join().unwrap().unwrap_err().errno(), Some(5));
        assert!(
            started.elapsed() < Duration::from_secs(299),
            "it is not waited for until reconnect-delay is over"
        );
    });
}
