//! Requests in flight of a client that has left, and what the next client writes.

use underseal_device::OpenOptions;
use underseal_export::nbd::protocol::{CommandFlags, RequestType};

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
