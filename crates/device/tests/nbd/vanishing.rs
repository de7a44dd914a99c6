//! Servers that go away, and come back or not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Behaviour, SIZE, Server, open, plain, refusal, said, wait_until};
use underseal_device::Blocking;
use underseal_nbd_protocol::TransmissionFlags as Flags;

#[test]
fn nothing_is_lost_when_a_server_goes_and_comes_again_and_again() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN] {
        let server = Server::start(plain().without(flags));
        let device = open(&server, "&unflushed=trust");
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writers: Vec<_> = (0..3_u64)
                .map(|number| {
                    let (device, over) = (&device, &over);
                    scope.spawn(move || {
                        let mut io = Blocking::new(device).unwrap();
                        let part = SIZE as u64 / 4;
                        let mut round = 0_u8;
                        while !over.load(Ordering::SeqCst) || round < 3 {
                            round = round.wrapping_add(1).max(1);
                            for at in (0..part).step_by(16 << 10) {
                                io.write(number * part + at, &[round; 16 << 10], round.is_multiple_of(3))
                                    .unwrap();
                            }
                            let mut back = vec![0; usize::try_from(part).unwrap()];
                            io.read(number * part, &mut back).unwrap();
                            assert!(back.iter().all(|&b| b == round));
                            io.flush().unwrap();
                        }
                    })
                })
                .collect();
            for _ in 0..5 {
                thread::sleep(Duration::from_millis(60));
                server.vanish();
                thread::sleep(Duration::from_millis(60));
                server.come_back();
            }
            over.store(true, Ordering::SeqCst);
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
    }
}

#[test]
fn requests_fail_when_their_time_is_over_and_go_on_when_the_server_is_back() {
    for flags in [Flags::empty(), Flags::CAN_MULTI_CONN] {
        let server = Server::start(plain().without(flags));
        let device = open(&server, "&reconnect-delay=1&unflushed=trust");
        let mut io = Blocking::new(&device).unwrap();
        io.write(0, &[1; 4096], false).unwrap();
        server.vanish();
        for _ in 0..3 {
            let error = io.write(0, &[2; 4096], false).unwrap_err();
            assert_eq!(error.errno(), Some(5), "{}", said(&error));
        }
        server.come_back();
        wait_until("the server is used again", || io.write(0, &[3; 4096], false).is_ok());
        let mut back = [0; 4096];
        io.read(0, &mut back).unwrap();
        assert_eq!(back, [3; 4096]);
    }
}

#[test]
fn a_server_that_may_not_be_waited_for_is_not() {
    let server = Server::start(plain());
    let device = open(&server, "&reconnect-delay=0");
    let mut io = Blocking::new(&device).unwrap();
    io.read(0, &mut [0; 4096]).unwrap();
    server.vanish();
    assert_eq!(io.read(0, &mut [0; 4096]).unwrap_err().errno(), Some(5));
}

#[test]
fn a_server_that_answers_nothing_is_not_asked_for_ever() {
    let server = Server::start(plain());
    let device = open(&server, "&reconnect-delay=1");
    server.inner.behaviour.lock().unwrap().dies_after = Some(1);
    let error = Blocking::new(&device).unwrap().read(0, &mut [0; 4096]).unwrap_err();
    assert_eq!(error.errno(), Some(5), "{}", said(&error));
}

#[test]
fn a_server_that_stalls_is_given_up_in_time() {
    let server = Server::start(plain());
    let device = open(&server, "&reconnect-delay=1");
    let mut io = Blocking::new(&device).unwrap();
    io.read(0, &mut [0; 4096]).unwrap();
    server.inner.behaviour.lock().unwrap().stalls = true;
    server.vanish();
    server.come_back();
    assert_eq!(io.read(0, &mut [0; 4096]).unwrap_err().errno(), Some(5));
    let error = refusal(&server.uri(""), false);
    assert!(error.contains("the server does not answer"), "{error}");
    server.inner.behaviour.lock().unwrap().stalls = false;
    wait_until("the server talks again", || io.read(0, &mut [0; 4096]).is_ok());
}

#[test]
fn another_export_does_not_take_the_place_of_the_first() {
    let others: [fn(&mut Behaviour); 4] = [
        |is| is.flags |= Flags::READ_ONLY,
        |is| is.flags -= Flags::SEND_FUA,
        |is| is.blocks = Some([4096, 4096, 1 << 25]),
        |is| is.blocks = Some([512, 4096, 1 << 20]),
    ];
    for change in others {
        let server = Server::start(plain());
        let device = open(&server, "&reconnect-delay=1");
        let mut io = Blocking::new(&device).unwrap();
        io.read(0, &mut [0; 4096]).unwrap();
        server.vanish();
        change(&mut server.inner.behaviour.lock().unwrap());
        server.come_back();
        assert_eq!(io.read(0, &mut [0; 4096]).unwrap_err().errno(), Some(5));
        *server.inner.behaviour.lock().unwrap() = plain();
        wait_until("the export is what it was", || io.read(0, &mut [0; 4096]).is_ok());
    }
    let server = Server::start(plain());
    let device = open(&server, "&reconnect-delay=1");
    server.vanish();
    server.inner.behaviour.lock().unwrap().size = SIZE / 2;
    server.come_back();
    let error = Blocking::new(&device).unwrap().read(0, &mut [0; 4096]).unwrap_err();
    assert_eq!(error.errno(), Some(5));
}
