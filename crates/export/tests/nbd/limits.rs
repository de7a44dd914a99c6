//! Time limits, numbers of clients, panics: one client never harms another.

use std::{
    io::{Read, Write},
    time::{Duration, Instant},
};

use underseal_export::{
    ErrorKind,
    nbd::{
        Connection, ConnectionHandler, Server, ServerConfig,
        protocol::{option, option_reply as reply},
    },
    net::{Endpoint, listen},
};

use underseal_testing::skip;

use crate::{
    client::{Client, FLAGS, contexts, go, is_closed, message, request},
    fixture::{MemoryDisk, PATIENCE, Served, config},
};

/// The handshake's time limit where a test waits for its end: longer than a handshake takes on a
/// busy machine, where the test needs one first.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(10);

#[test]
fn slow_client_is_closed_when_its_time_is_over_however_it_dribbles() {
    let config = ServerConfig { handshake_timeout: Duration::from_millis(400), ..config() };
    for dribble in [false, true] {
        let served = Served::unix(config.clone(), MemoryDisk::default());
        let started = Instant::now();
        let mut client = served.connect();
        if dribble {
            let said = [&FLAGS.to_be_bytes()[..], &message(99, b"").repeat(100)].concat();
            // The loop ends when the server has closed.
            let written = said.chunks(1).take_while(|byte| {
                std::thread::sleep(Duration::from_millis(20));
                client.write_all(byte).is_ok()
            });
            assert!(written.count() < said.len());
        } else {
            client.read_to_end(&mut Vec::new()).unwrap();
        }
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(300), "{took:?}");
    }
}

#[test]
fn served_client_has_no_deadline() {
    let config = ServerConfig { handshake_timeout: HANDSHAKE, ..config() };
    let served = Served::unix(config, MemoryDisk::default());
    let mut client = served.served_client();
    std::thread::sleep(HANDSHAKE + Duration::from_millis(500));
    assert_eq!(client.read(512, 512).unwrap()[..8], 1_u64.to_be_bytes());
}

#[test]
fn client_over_the_limit_is_told_and_may_try_again() {
    let served = Served::unix(ServerConfig { max_connections: 2, ..config() }, MemoryDisk::default());
    let (first, mut second) = (served.served_client(), served.served_client());
    let mut third = served.client();
    assert_eq!(third.verdict(option::LIST, b"").unwrap(), reply::ACK, "to look is free");
    let refused = third.go("disk").unwrap_err();
    assert!(refused.to_string().contains("all 2 connections"), "{refused}");
    let mut old = served.client();
    old.option(option::EXPORT_NAME, b"disk").unwrap();
    assert!(old.is_closed());

    drop(first);
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = third.go("disk") {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(third.read(0, 512).unwrap().len(), 512);
    assert_eq!(second.read(0, 512).unwrap().len(), 512);
}

#[test]
fn silent_client_makes_room_and_one_that_talks_keeps_its_place() {
    let served = Served::unix(ServerConfig { max_handshakes: 2, ..config() }, MemoryDisk::default());
    let mut talking = served.client();
    assert_eq!(talking.verdict(option::STRUCTURED_REPLY, b"").unwrap(), reply::ACK);
    // After the greeting the client is registered.
    let mut silent = served.connect();
    silent.read_exact(&mut [0; 18]).unwrap();
    let mut third = served.served_client();
    assert_eq!(third.read(0, 512).unwrap().len(), 512);
    assert!(is_closed(&mut silent), "the silent one was closed");
    talking.verdict(option::SET_META_CONTEXT, &contexts("disk", &[])).unwrap();
    talking.go("disk").unwrap();
}

#[test]
fn request_sent_together_with_go_is_not_lost() {
    let served = Served::unix(config(), MemoryDisk::default());
    let mut client = served.client();
    let read = request(underseal_export::nbd::protocol::RequestType::Read, 1024, 512);
    client.0.write_all(&[message(option::GO, &go("disk", &[])), read].concat()).unwrap();
    while client.reply().unwrap().kind != reply::ACK {}
    assert_eq!(client.read_reply(512).unwrap()[..8], 2_u64.to_be_bytes());
}

#[test]
fn panic_of_one_connection_leaves_the_others_alone() {
    struct PanicsOnWrite(MemoryDisk);
    impl ConnectionHandler for PanicsOnWrite {
        fn serve(&self, connection: Connection) -> underseal_export::Result<()> {
            assert!(connection.negotiated.export == 0, "as this test wants");
            self.0.serve(connection)
        }
    }
    let served = Served::unix(config(), PanicsOnWrite(MemoryDisk::default()));
    let mut good = served.served_client();
    let mut fatal = served.client();
    fatal.go("big-sectors").unwrap();
    assert!(fatal.is_closed());
    assert_eq!(good.read(0, 512).unwrap().len(), 512);
    served.served_client();
    assert!(served.stop().is_ok(), "the dead connection left no place taken");
}

#[test]
fn plain_tcp_is_served_on_loopback_and_refused_elsewhere_unless_allowed() {
    let served = Served::tcp(config(), MemoryDisk::default());
    let mut client = Client::greet(served.connect(), FLAGS).unwrap();
    client.go("disk").unwrap();
    assert_eq!(client.read(0, 512).unwrap().len(), 512);

    let everywhere: Endpoint = "tcp:0.0.0.0:0".parse().unwrap();
    let server = |config| {
        Server::new(config, listen(&everywhere).unwrap(), std::sync::Arc::new(MemoryDisk::default()))
    };
    let error = server(config()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Plaintext);
    assert!(error.to_string().contains("require TLS"), "{error}");
    assert!(server(ServerConfig { allow_plaintext_tcp: true, ..config() }).is_ok());
}

#[test]
fn host_names_and_ipv6_addresses_are_listened_on() {
    let bound = |endpoint: &str| -> Vec<_> {
        listen(&endpoint.parse().unwrap()).unwrap().iter().map(|l| l.tcp_address().unwrap().ip()).collect()
    };
    let localhost = bound("tcp:localhost:0");
    assert!(!localhost.is_empty() && localhost.iter().all(std::net::IpAddr::is_loopback), "{localhost:?}");
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        assert_eq!(bound("tcp:[::1]:0"), ["::1".parse::<std::net::IpAddr>().unwrap()]);
    } else {
        skip("[::1]", "this machine has no IPv6");
    }
}

#[test]
fn taken_port_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp:{}", taken.local_addr().unwrap());
    let error = listen(&endpoint.parse().unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Listen);
    assert!(error.to_string().contains(&endpoint), "{error}");
}
