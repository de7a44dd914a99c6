//! A flush is acknowledged only when the writes that it covers are on stable storage.

use super::{Behaviour, Server, open, plain};
use underseal_device::Blocking;
use underseal_nbd_protocol::TransmissionFlags as Flags;

fn restart(server: &Server) {
    server.vanish();
    server.come_back();
}

fn forgetful(flags: Flags) -> Server {
    Server::start(Behaviour { forgets: true, ..plain().without(flags) })
}

#[test]
fn a_flush_fails_once_when_acknowledged_writes_may_be_lost() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN] {
        let server = forgetful(flags);
        let device = open(&server, "");
        let mut io = Blocking::new(&device).unwrap();
        io.write(0, &[1; 4096], false).unwrap();
        restart(&server);
        assert_eq!(server.memory()[0], 0, "it is lost indeed");
        let error = io.flush().unwrap_err();
        assert_eq!(error.errno(), Some(5));
        assert!(error.to_string().contains("acknowledged writes"), "{error}");
        io.write(0, &[1; 4096], false).unwrap();
        io.flush().unwrap();
        restart(&server);
        assert_eq!(server.memory()[0], 1);
        io.flush().unwrap();
    }
}

#[test]
fn a_flush_that_the_server_could_not_do_is_not_made_good_by_another() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN, Flags::SEND_FUA] {
        let server = Server::start(plain().without(flags));
        let device = open(&server, "&unflushed=trust");
        let mut channels: Vec<Blocking> = (0..3).map(|_| Blocking::new(&device).unwrap()).collect();
        for io in &mut channels {
            io.write(0, &[1; 4096], false).unwrap();
            io.flush().unwrap();
        }
        server.inner.behaviour.lock().unwrap().cannot_flush = true;
        if flags == Flags::SEND_FUA {
            // The client asks a server without FUA for a flush after the write.
            assert_eq!(channels[1].write(0, &[1; 4096], true).unwrap_err().errno(), Some(5));
        } else {
            assert_eq!(channels[1].flush().unwrap_err().errno(), Some(5));
        }
        server.inner.behaviour.lock().unwrap().cannot_flush = false;
        channels.push(Blocking::new(&device).unwrap());
        for io in &mut channels {
            assert_eq!(io.flush().unwrap_err().errno(), Some(5));
            io.write(0, &[1; 4096], false).unwrap();
        }
        drop((channels, device));
        Blocking::new(&open(&server, "")).unwrap().flush().unwrap();
    }
}

/// A server's FUA is often a write and a flush of the whole export.
#[test]
fn a_durable_write_whose_flush_the_server_could_not_do_makes_all_flushes_fail() {
    let server = Server::start(plain());
    let device = open(&server, "&unflushed=trust");
    let mut channels: Vec<Blocking> = (0..2).map(|_| Blocking::new(&device).unwrap()).collect();
    channels[0].write(0, &[1; 4096], false).unwrap();
    server.inner.behaviour.lock().unwrap().cannot_fua = true;
    assert_eq!(channels[1].write(4096, &[2; 4096], true).unwrap_err().errno(), Some(5));
    server.inner.behaviour.lock().unwrap().cannot_fua = false;
    for io in &mut channels {
        for _ in 0..2 {
            assert_eq!(io.flush().unwrap_err().errno(), Some(5), "the first write may be lost");
        }
        io.write(4096, &[3; 4096], true).expect("a durable write speaks for itself");
    }
}

#[test]
fn a_durable_write_that_fails_by_itself_leaves_flushes_alone() {
    let server = Server::start(plain());
    let device = open(&server, "");
    let mut io = Blocking::new(&device).unwrap();
    io.write(0, &[1; 4096], false).unwrap();
    // The server's blocks become larger: it refuses this write, with FUA and without.
    server.inner.behaviour.lock().unwrap().blocks = Some([8192, 8192, 1 << 25]);
    assert_eq!(io.write(4096, &[2; 4096], true).unwrap_err().errno(), Some(22));
    server.inner.behaviour.lock().unwrap().blocks = None;
    io.flush().unwrap();
}

#[test]
fn a_server_without_flush_is_no_reason_to_keep_a_loss_secret() {
    // The last server has neither flush nor FUA: its acknowledged durable writes may be lost, too.
    for (flags, durable) in
        [(Flags::SEND_FLUSH, false), (Flags::SEND_FLUSH | Flags::SEND_FUA | Flags::CAN_MULTI_CONN, true)]
    {
        let server = forgetful(flags);
        let device = open(&server, "");
        let mut channels: Vec<Blocking> = (0..2).map(|_| Blocking::new(&device).unwrap()).collect();
        channels[0].write(0, &[1; 4096], durable).unwrap();
        channels[1].flush().unwrap();
        restart(&server);
        for io in &mut channels {
            assert_eq!(io.flush().unwrap_err().errno(), Some(5));
            io.flush().unwrap();
        }
    }
}

/// A connection that ended with an earlier server does not hide one that ended with a later server.
#[test]
fn a_channel_hears_of_the_second_loss_though_others_have_not_noticed_the_first() {
    let server = forgetful(Flags::empty());
    let device = open(&server, "");
    let mut channels: Vec<Blocking> = (0..3).map(|_| Blocking::new(&device).unwrap()).collect();
    for io in &mut channels[..2] {
        io.write(0, &[1; 4096], false).unwrap();
    }
    restart(&server);
    assert_eq!(channels[2].flush().unwrap_err().errno(), Some(5));
    channels[1].write(4096, &[2; 4096], false).unwrap();
    restart(&server);
    assert_eq!(Blocking::new(&device).unwrap().flush().unwrap_err().errno(), Some(5));
}

#[test]
fn what_is_on_stable_storage_is_not_missed() {
    let server = forgetful(Flags::empty());
    let device = open(&server, "");
    let mut io = Blocking::new(&device).unwrap();
    io.write(0, &[1; 4096], false).unwrap();
    io.flush().unwrap();
    io.write(4096, &[2; 4096], true).unwrap();
    restart(&server);
    io.flush().unwrap();
    let memory = server.memory();
    assert_eq!((memory[0], memory[4096]), (1, 2));
}

#[test]
fn every_channel_is_told_that_has_not_asked_yet() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN] {
        let server = forgetful(flags);
        let device = open(&server, "");
        let mut channels: Vec<Blocking> = (0..3).map(|_| Blocking::new(&device).unwrap()).collect();
        for io in &mut channels {
            io.write(0, &[1; 4096], false).unwrap();
        }
        restart(&server);
        for io in &mut channels {
            assert_eq!(io.flush().unwrap_err().errno(), Some(5));
        }
        for io in &mut channels {
            io.flush().unwrap();
        }
        Blocking::new(&device).unwrap().flush().unwrap();
    }
}

#[test]
fn a_channel_that_was_not_there_is_told_of_what_nobody_heard() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN] {
        let server = forgetful(flags);
        let device = open(&server, "");
        let mut writer = Blocking::new(&device).unwrap();
        writer.write(0, &[1; 4096], false).unwrap();
        restart(&server);
        // A volume that is closed does this: the writer may still exist, or not.
        assert_eq!(Blocking::new(&device).unwrap().flush().unwrap_err().errno(), Some(5));
        drop(writer);

        let mut writer = Blocking::new(&device).unwrap();
        writer.write(0, &[1; 4096], false).unwrap();
        server.vanish();
        drop(writer);
        server.come_back();
        assert_eq!(Blocking::new(&device).unwrap().flush().unwrap_err().errno(), Some(5));
    }
}

#[test]
fn a_channel_that_flushes_once_takes_the_news_from_no_client() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN] {
        let server = forgetful(flags);
        let device = open(&server, "");
        Blocking::new(&device).unwrap().write(0, &[1; 4096], false).unwrap();
        restart(&server);
        // `suspend` does this.
        for _ in 0..2 {
            assert_eq!(Blocking::new(&device).unwrap().flush().unwrap_err().errno(), Some(5));
        }
        // The client that wrote comes back.
        let mut client = Blocking::new(&device).unwrap();
        assert_eq!(client.flush().unwrap_err().errno(), Some(5));
        client.flush().unwrap();
        Blocking::new(&device).unwrap().flush().unwrap();
    }
}

#[test]
fn a_durable_write_that_was_cut_short_is_written_again() {
    let server = Server::start(Behaviour {
        forgets: true,
        // The second request is the flush of the durable write: its write is lost with the
        // connection.
        dies_after: Some(2),
        ..plain().without(Flags::SEND_FUA)
    });
    let device = open(&server, "");
    let mut io = Blocking::new(&device).unwrap();
    let inner = server.inner.clone();
    let fixed = std::thread::spawn(move || {
        super::wait_until("the flush was asked for", || inner.requests.lock().unwrap().len() >= 2);
        inner.behaviour.lock().unwrap().dies_after = None;
    });
    io.write(0, &[7; 4096], true).unwrap();
    fixed.join().unwrap();
    restart(&server);
    assert_eq!(server.memory()[0], 7);
    let writes = server.commands().iter().filter(|c| **c == super::server::WRITE).count();
    assert!(writes >= 2, "{:?}", server.commands());
}

#[test]
fn an_operator_who_knows_better_is_believed() {
    let server = Server::start(plain());
    let device = open(&server, "&unflushed=trust");
    let mut io = Blocking::new(&device).unwrap();
    io.write(0, &[1; 4096], false).unwrap();
    restart(&server);
    io.flush().unwrap();
}
