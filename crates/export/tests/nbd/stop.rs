//! The stop of a server: requests in flight are answered, and the wait for clients is limited.

use std::{
    io::Read,
    sync::mpsc::{Sender, channel},
    time::{Duration, Instant},
};

use underseal_export::{
    ErrorKind,
    nbd::{
        Connection, ConnectionHandler, ServerConfig,
        protocol::{option, option_reply as reply},
    },
};

use crate::fixture::{MemoryDisk, PATIENCE, Served, config};

#[test]
fn idle_clients_do_not_hold_the_server_up() {
    let served = Served::unix(config(), MemoryDisk::default());
    let socket = served.socket();
    let mut clients = [served.served_client(), served.client()];
    let _silent = served.connect();
    clients[0].read(0, 512).unwrap();
    let started = Instant::now();
    served.stop().unwrap();
    assert!(started.elapsed() < PATIENCE / 2, "it did not wait until their time was over");
    assert!(!socket.exists(), "the socket is gone");
    assert!(clients.iter_mut().all(|client| client.is_closed()));
}

#[test]
fn request_in_flight_is_answered_and_its_handler_is_woken() {
    /// Serves until woken through its eventfd, then sends an answer.
    struct Woken(Sender<()>);
    impl ConnectionHandler for Woken {
        fn serve(&self, mut connection: Connection) -> underseal_export::Result<()> {
            use std::io::Write;
            let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            connection.stop.wake_with(&event).unwrap();
            connection.transport.read_exact(&mut [0; 28])?;
            assert!(!connection.stop.is_stopping());
            self.0.send(()).unwrap();
            // Blocks until the server stops.
            rustix::io::read(&event, &mut [0; 8]).unwrap();
            assert!(connection.stop.is_stopping());
            // An eventfd that is registered after the stop is raised at once.
            let late = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
            connection.stop.wake_with(&late).unwrap();
            rustix::io::read(&late, &mut [0; 8]).unwrap();
            connection.transport.write_all(b"the answer")?;
            assert_eq!(connection.transport.read(&mut [0])?, 0, "nothing more is read");
            Ok(())
        }
    }
    let (sender, receiver) = channel();
    let served = Served::unix(config(), Woken(sender));
    let mut client = served.served_client();
    client.0.write_all(&[0; 28]).unwrap();
    receiver.recv().unwrap();
    served.begin_to_stop();
    assert_eq!(&client.array::<10>().unwrap(), b"the answer");
    served.stop().unwrap();
}

#[test]
fn handler_that_waits_for_its_client_is_cut_off() {
    /// Writes until the client has read everything, which never happens.
    struct Stubborn;
    impl ConnectionHandler for Stubborn {
        fn serve(&self, mut connection: Connection) -> underseal_export::Result<()> {
            use std::io::Write;
            loop {
                connection.transport.write_all(&[0; 1 << 16])?;
            }
        }
    }
    let config = ServerConfig { drain_timeout: Duration::from_millis(300), ..config() };
    let served = Served::unix(config, Stubborn);
    let _client = served.served_client();
    let started = Instant::now();
    served.stop().unwrap();
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
}

#[test]
fn handler_that_never_ends_is_reported() {
    struct Stuck(Sender<()>);
    impl ConnectionHandler for Stuck {
        fn serve(&self, _connection: Connection) -> underseal_export::Result<()> {
            self.0.send(()).unwrap();
            loop {
                std::thread::park();
            }
        }
    }
    let config = ServerConfig { drain_timeout: Duration::from_millis(100), ..config() };
    let (sender, serves) = channel();
    let served = Served::unix(config, Stuck(sender));
    let _client = served.served_client();
    serves.recv_timeout(PATIENCE).unwrap();
    let error = served.stop().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Drain);
    assert!(error.to_string().contains("1 connections"), "{error}");
}

#[test]
fn negotiating_client_hears_that_the_server_stops() {
    // Over TCP the kernel accepts bytes that arrive after the reading side was shut down.
    let served = Served::tcp(config(), MemoryDisk::default());
    let mut client = served.client();
    assert_eq!(client.verdict(option::LIST, b"").unwrap(), reply::ACK);
    served.begin_to_stop();
    // The client gets a reply, or finds the connection closed; it does not wait for ever.
    if let Ok(verdict) = client.verdict(option::STRUCTURED_REPLY, b"") {
        assert!([reply::ERR_SHUTDOWN, reply::ACK].contains(&verdict));
    }
    served.stop().unwrap();
    assert!(client.is_closed());
}
