//! An export that grows while it is in use.

use underseal_device::{Blocking, Device, ErrorKind, Io};
use underseal_nbd_protocol::{RequestType, TransmissionFlags as Flags};

use super::queue::Queue;
use super::{Behaviour, SIZE, Server, open, plain, wait_until};

const GROWN: u64 = 2 * SIZE as u64;

#[test]
fn what_an_export_has_grown_by_is_there_when_it_is_asked() {
    let server = Server::start(plain());
    let device = open(&server, "");
    let mut queues: Vec<_> = (0..2).map(|_| Queue::new(&device, 4)).collect();
    let mut ask = |number: usize, offset: u64| {
        let buffer = queues[number].arena.alloc(4096).unwrap();
        queues[number].start(0, Io::Read { offset, buffer, range: 0..4096 });
        queues[number].drain().pop().unwrap().result
    };
    (0..2).for_each(|number| ask(number, 0).unwrap());
    Blocking::new(&device).unwrap().write(0, &[1; 4096], false).unwrap();
    server.grow(GROWN.try_into().unwrap());
    assert_eq!(device.geometry().size, SIZE as u64, "nobody has asked");
    assert_eq!((device.refresh().unwrap(), device.geometry().size), (GROWN, GROWN));
    (0..2).for_each(|number| ask(number, 4096).unwrap());
    (0..2).for_each(|number| ask(number, GROWN - 4096).unwrap());
    let mut io = Blocking::new(&device).unwrap();
    io.write(GROWN - 4096, &[7; 4096], false).unwrap();
    assert_eq!(server.memory()[SIZE * 2 - 1], 7);
    io.flush().expect("a connection that was made again in order has lost nothing");
}

#[test]
fn what_is_in_flight_is_answered_before_the_connection_is_made_again() {
    let server = Server::start(Behaviour { answers: Some(0), ..plain() });
    let device = open(&server, "");
    let mut queue = Queue::new(&device, 8);
    let write = |queue: &mut Queue, slot: u32, offset: u64| {
        let mut buffer = queue.arena.alloc(4096).unwrap();
        buffer.fill(slot.to_le_bytes()[0] + 1);
        queue.start(slot, Io::Write { offset, buffer, range: 0..4096, durable: false });
    };
    (0..3).for_each(|slot| write(&mut queue, slot, u64::from(slot) * 4096));
    server.grow(GROWN.try_into().unwrap());
    device.refresh().unwrap();
    write(&mut queue, 3, GROWN - 4096);
    write(&mut queue, 4, 3 * 4096);
    server.inner.behaviour.lock().unwrap().answers = None;
    let mut over = Vec::new();
    wait_until("all are answered", || {
        over.extend(queue.turn(std::time::Duration::from_millis(10)));
        over.len() == 5
    });
    over.into_iter().for_each(|done| done.result.unwrap());
    let writes = server.commands().into_iter().filter(|&command| command == RequestType::Write).count();
    assert_eq!(writes, 5, "none was asked twice");
    let memory = server.memory();
    let at = |offset: u64| memory[usize::try_from(offset).unwrap()];
    assert_eq!([0, 4096, 8192, GROWN - 4096, 3 * 4096].map(at), [1, 2, 3, 4, 5]);
}

#[test]
fn a_server_that_went_away_before_it_is_asked_has_lost_what_nobody_flushed() {
    let server = Server::start(plain());
    let device = open(&server, "");
    // The next channel gets the connection.
    Blocking::new(&device).unwrap().write(0, &[1; 4096], false).unwrap();
    server.vanish();
    server.come_back();
    server.grow(GROWN.try_into().unwrap());
    assert_eq!(device.refresh().unwrap(), GROWN);
    let mut io = Blocking::new(&device).unwrap();
    assert_eq!(io.flush().unwrap_err().errno(), Some(5));
    io.flush().unwrap();
}

#[test]
fn a_server_that_was_started_again_to_grow_has_lost_what_open_channels_wrote() {
    for asks_first in [false, true] {
        let server = Server::start(Behaviour { forgets: true, ..plain() });
        let device = open(&server, "");
        let mut channels: Vec<Blocking> = (0..2).map(|_| Blocking::new(&device).unwrap()).collect();
        channels[0].write(0, &[1; 4096], false).unwrap();
        channels[1].read(0, &mut [0; 4096]).unwrap();
        server.vanish();
        server.come_back();
        server.grow(GROWN.try_into().unwrap());
        assert_eq!(device.refresh().unwrap(), GROWN);
        if asks_first {
            // The first request goes beyond the size on the old connection.
            channels.iter_mut().for_each(|io| io.read(GROWN - 4096, &mut [0; 4096]).unwrap());
        }
        for io in &mut channels {
            assert_eq!(io.flush().unwrap_err().errno(), Some(5), "the write is lost");
            io.flush().unwrap();
        }
    }
}

#[test]
fn the_size_on_an_only_connection_stays() {
    let server = Server::start(plain().without(Flags::CAN_MULTI_CONN));
    let device = open(&server, "");
    server.grow(GROWN.try_into().unwrap());
    assert_eq!(device.refresh().unwrap_err().kind(), ErrorKind::Open);
    assert_eq!(device.geometry().size, SIZE as u64);
}

#[test]
fn another_export_in_its_place_is_not_taken_for_it() {
    let server = Server::start(plain());
    let device = open(&server, "");
    server.grow(GROWN.try_into().unwrap());
    server.inner.behaviour.lock().unwrap().flags -= Flags::SEND_TRIM;
    let error = device.refresh().unwrap_err();
    assert!(error.kind() == ErrorKind::Open && error.to_string().contains("another export"), "{error}");
    assert_eq!(device.geometry().size, SIZE as u64);
    server.vanish();
    assert_eq!(device.refresh().unwrap_err().kind(), ErrorKind::Open);
}
