//! Requests to a server, compared field by field.

use std::sync::atomic::Ordering;

use super::{Behaviour, Server, open, plain};
use underseal_device::{Blocking, Channel, Device, Io, Ring, Started};
use underseal_nbd_protocol::{CommandFlags, RequestType, TransmissionFlags as Flags};

/// Command, flags, offset, length.
type Asked = (RequestType, CommandFlags, u64, u32);

fn sent(server: &Server) -> Vec<Asked> {
    let requests = server.inner.requests.lock().unwrap();
    requests.iter().map(|r| (r.command, r.flags, r.offset, r.length)).collect()
}

#[test]
fn each_request_is_the_servers_own() {
    let none = CommandFlags::empty();
    let table: [(Flags, &[Asked]); 3] = [
        (
            Flags::empty(),
            &[
                (RequestType::Write, none, 0, 4096),
                (RequestType::Write, CommandFlags::FUA, 4096, 4096),
                (RequestType::Flush, none, 0, 0),
                (RequestType::Trim, none, 0, 8192),
                (RequestType::WriteZeroes, none, 8192, 4096),
            ],
        ),
        (
            Flags::SEND_FUA | Flags::SEND_TRIM,
            &[
                (RequestType::Write, none, 0, 4096),
                (RequestType::Write, none, 4096, 4096),
                (RequestType::Flush, none, 0, 0),
                (RequestType::Flush, none, 0, 0),
                (RequestType::WriteZeroes, none, 8192, 4096),
            ],
        ),
        (
            Flags::SEND_FLUSH | Flags::SEND_FUA,
            &[
                (RequestType::Write, none, 0, 4096),
                (RequestType::Write, none, 4096, 4096),
                (RequestType::Trim, none, 0, 8192),
                (RequestType::WriteZeroes, none, 8192, 4096),
            ],
        ),
    ];
    for (missing, expected) in table {
        let server = Server::start(plain().without(missing));
        let device = open(&server, "");
        let mut io = Blocking::new(&device).unwrap();
        io.write(0, &[1; 4096], false).unwrap();
        io.write(4096, &[2; 4096], true).unwrap();
        io.flush().unwrap();
        io.discard(0, 8192).unwrap();
        io.zero(8192, 4096).unwrap();
        assert_eq!(sent(&server), expected, "without {missing:?}");
    }
}

#[test]
fn a_server_that_cannot_zero_says_so() {
    let server = Server::start(plain().without(Flags::SEND_WRITE_ZEROES));
    let device = open(&server, "");
    let error = Blocking::new(&device).unwrap().zero(0, 4096).unwrap_err();
    assert_eq!(error.errno(), Some(95));
}

#[test]
fn long_requests_go_in_pieces_of_what_the_server_takes() {
    let server = Server::start(Behaviour { blocks: Some([512, 4096, 12_288]), ..plain() });
    let device = open(&server, "");
    let mut io = Blocking::new(&device).unwrap();
    let bytes: Vec<u8> = (0..30_720_u32).map(|i| i.to_le_bytes()[1]).collect();
    io.write(512, &bytes, true).unwrap();
    let mut back = vec![0; bytes.len()];
    io.read(512, &mut back).unwrap();
    assert!(back == bytes);
    let pieces = [(512, 12_288), (12_800, 12_288), (25_088, 6144)];
    let lengths: Vec<_> = sent(&server).into_iter().map(|(_, _, offset, len)| (offset, len)).collect();
    assert_eq!(lengths, [pieces, pieces].concat());
}

#[test]
fn channels_have_connections_of_their_own_only_where_that_is_promised() {
    for (flags, expected) in [(Flags::empty(), 4), (Flags::CAN_MULTI_CONN, 1)] {
        let server = Server::start(plain().without(flags));
        let device = open(&server, "");
        let mut channels: Vec<Blocking> = (0..4).map(|_| Blocking::new(&device).unwrap()).collect();
        assert_eq!(server.inner.connections.load(Ordering::SeqCst), 1, "none before it is needed");
        for (number, io) in (0..4).zip(&mut channels) {
            io.write(number * 4096, &[1; 4096], false).unwrap();
        }
        assert_eq!(server.inner.connections.load(Ordering::SeqCst), expected);
        drop(channels);
        // The last channel's connection is used again.
        Blocking::new(&device).unwrap().flush().unwrap();
        assert_eq!(server.inner.connections.load(Ordering::SeqCst), expected);
    }
}

#[test]
fn a_channel_that_goes_amid_its_requests_leaves_the_others_theirs() {
    let server = Server::start(plain().without(Flags::CAN_MULTI_CONN));
    let device = open(&server, "&unflushed=trust");
    let mut stays = Blocking::new(&device).unwrap();
    stays.write(0, &[5; 4096], false).unwrap();
    for _ in 0..10 {
        let mut ring = Ring::new(8).unwrap();
        let mut goes = device.channel(4).unwrap();
        for slot in 0..4 {
            let started = Channel::start(&mut *goes, &mut ring, slot, Io::Prefetch { offset: 0, len: 4096 });
            assert!(matches!(started, Started::Pending));
        }
        drop(goes);
        let mut back = [0; 4096];
        stays.read(0, &mut back).unwrap();
        assert_eq!(back, [5; 4096]);
    }
}
