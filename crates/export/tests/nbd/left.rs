//! Requests in flight of a client that has left, and what the next client writes.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use underseal_device::OpenOptions;
use underseal_export::nbd::protocol::{CommandFlags, RequestType};

use crate::client::{Client, FLAGS};
use crate::fixture::Stream;
use crate::talker::{Disk, SIZE, Talker, serve};

const PIECE: usize = 64 << 10;

/// Zeros for the whole volume.
fn zero_all(client: &mut Talker) {
    client.send(RequestType::WriteZeroes, CommandFlags::empty(), 0, u32::try_from(SIZE).unwrap(), &[]);
}

/// A client that dies leaves more requests than a queue takes: the server reads only some.
#[test]
fn zeros_of_a_client_that_is_gone_do_not_fall_on_later_writes() {
    for (requests, options) in [(1, false), (64, false), (400, false), (64, true)] {
        let options = OpenOptions { direct: options, ..Default::default() };
        let disk = Disk::new("aes-xts-plain64", options);
        let mut gone = disk.client(false);
        (0..requests).for_each(|_| zero_all(&mut gone));
        drop(gone);
        let mut next = disk.client(false);
        let places: Vec<u64> = (0..16).map(|nth| nth * (SIZE / 16)).collect();
        for place in &places {
            assert_eq!(next.write(*place, &[7; PIECE]).error, 0);
        }
        assert_eq!(next.ask(RequestType::Flush, CommandFlags::empty(), 0, 0, &[]).error, 0);
        // All connections have ended when the server has stopped.
        let (image, folder) = (disk.image(), disk.folder);
        disk.served.stop().unwrap();
        let again = serve(&image, "aes-xts-plain64", options);
        let mut client = again.client();
        client.go("").unwrap();
        let mut reader = Talker { client, next: 0 };
        for place in places {
            assert!(reader.read(place, PIECE) == [7; PIECE], "{requests} requests: zeros at {place}");
        }
        drop((reader, again, folder));
    }
}

/// A client with several connections repeats requests of one that broke on another one.
#[test]
fn zeros_of_a_connection_that_broke_do_not_fall_on_later_writes_to_another_one() {
    let disk = Disk::new("aes-xts-plain64", OpenOptions::default());
    let mut other = disk.client(false);
    for round in 0..40u8 {
        let mut broken = disk.client(false);
        (0..8).for_each(|_| zero_all(&mut broken));
        std::thread::sleep(Duration::from_micros(500 * u64::from(round % 8)));
        drop(broken);
        let places: Vec<u64> = (0..16).map(|nth| nth * (SIZE / 16)).collect();
        for place in &places {
            assert_eq!(other.write(*place, &[1 + round; PIECE]).error, 0);
        }
        assert_eq!(other.ask(RequestType::Flush, CommandFlags::empty(), 0, 0, &[]).error, 0);
        // The next one is served when all requests of the broken one have ended.
        drop(disk.client(false));
        for place in places {
            assert!(other.read(place, PIECE) == [1 + round; PIECE], "round {round}: zeros at {place}");
        }
    }
}

/// A request to disconnect is the last one: those before it are done.
#[test]
fn zeros_before_a_disconnect_are_written_before_the_next_client_is_served() {
    let disk = Disk::new("aes-xts-plain64", OpenOptions::default());
    let mut first = disk.client(false);
    assert_eq!(first.write(SIZE - PIECE as u64, &[7; PIECE]).error, 0);
    zero_all(&mut first);
    first.send(RequestType::Disconnect, CommandFlags::empty(), 0, 0, &[]);
    drop(first);
    let mut next = disk.client(false);
    assert!(next.read(SIZE - PIECE as u64, PIECE) == [0; PIECE], "zeros that were asked for are not there");
}

/// A client that disconnects repeats no request on another connection, so that one need not wait.
#[test]
fn zeros_before_a_disconnect_keep_no_client_waiting_that_is_served_already() {
    let disk = Disk::new("aes-xts-plain64", OpenOptions::default());
    let mut other = disk.client(false);
    for pause in 1..100 {
        let (mut first, socket) = half_closing(&disk);
        for _ in 0..60 {
            zero_all(&mut first);
        }
        first.send(RequestType::Disconnect, CommandFlags::empty(), 0, 0, &[]);
        std::thread::sleep(Duration::from_millis(pause));
        let begun = Instant::now();
        socket.shutdown(Shutdown::Write).unwrap();
        assert_eq!(other.write(0, &[7; PIECE]).error, 0);
        let waited = begun.elapsed();
        disk.client(false).read(0, PIECE);
        let all = begun.elapsed();
        // Requests of a client that leaves before the server has read all of them are given up.
        if all > Duration::from_millis(50) {
            assert!(waited * 2 < all, "a write took {waited:?} beside zeros of {all:?}");
            return;
        }
    }
    panic!("the zeros take no time");
}

/// Connects a client, and returns its socket, too.
fn half_closing(disk: &Disk) -> (Talker, UnixStream) {
    let socket = UnixStream::connect(disk.served.socket()).unwrap();
    let stream: Box<dyn Stream> = Box::new(socket.try_clone().unwrap());
    let mut client = Client::greet(stream, FLAGS).unwrap();
    client.go("").unwrap();
    (Talker { client, next: 0 }, socket)
}

/// The replies to a client that reads none of them wait; its requests have ended.
#[test]
fn a_client_that_closes_its_side_and_reads_nothing_keeps_no_client_waiting() {
    for disconnects in [false, true] {
        let disk = Disk::new("aes-xts-plain64", OpenOptions::default());
        let (mut half, socket) = half_closing(&disk);
        for _ in 0..16 {
            half.send(RequestType::Read, CommandFlags::empty(), 0, 1 << 20, &[]);
        }
        if disconnects {
            half.send(RequestType::Disconnect, CommandFlags::empty(), 0, 0, &[]);
        }
        socket.shutdown(Shutdown::Write).unwrap();
        let mut next = disk.client(false);
        assert_eq!(next.read(0, PIECE).len(), PIECE);
    }
}
