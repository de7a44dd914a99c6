//! Rings of the helper. Files that contain the request stand for rings: the way from the helper to
//! the server is the same.

use std::io::{Read, Seek, Write};

use underseal_sandbox::{RingMade, RingRequest, Rings, ring, will_give_commands};

use super::*;

fn make(request: RingRequest) -> io::Result<RingMade> {
    if request.entries == 0 {
        return Err(Errno::NOMEM.into());
    }
    let mut file = File::from(rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::empty())?);
    write!(file, "{request:?}")?;
    Ok(RingMade { fd: file.into(), parameters: format!("{request:?}").into_bytes() })
}

fn request(entries: u32) -> RingRequest {
    RingRequest { entries, completions: 2 * entries, single_issuer: true, commands: true }
}

/// Starts a sandbox whose rings are the helper's; false where Linux cannot have such rings.
fn enter_with_rings() -> bool {
    let state = enter(&Needs { rings: Rings::OfHelper, ..Needs::default() });
    match state.missing.iter().find(|missing| missing.contains("this kernel, before 5.9")) {
        Some(why) => underseal_testing::skip("rings of the helper", why),
        None => whole(&state),
    }
    state.rings
}

/// Asks the helper for a ring, and checks that the one that arrives is the one that it made.
#[track_caller]
fn check(asked: RingRequest, made_for: RingRequest) {
    let RingMade { fd, parameters } = ring(asked, || panic!("made here"), Ok).unwrap();
    assert_eq!(String::from_utf8(parameters).unwrap(), format!("{made_for:?}"));
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let (mut file, mut text) = (File::from(fd), String::new());
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, format!("{made_for:?}"));
}

#[test]
fn each_ring_is_the_one_that_the_helper_made_for_the_request() {
    alone("rings::each_ring_is_the_one_that_the_helper_made_for_the_request", || {
        Helper::start(None, Some(make)).unwrap();
        will_give_commands();
        ring(request(1), || Ok(()), |_| panic!("the helper's, before the sandbox")).unwrap();
        if !enter_with_rings() {
            return;
        }
        for entries in [1, 70_000, 3] {
            check(request(entries), request(entries));
        }
        let plain = RingRequest { single_issuer: false, commands: false, ..request(8) };
        check(plain, plain);
        assert_eq!(errno(ring(request(0), || Ok(()), |_| Ok(()))), Some(Errno::NOMEM));
        check(request(4), request(4));
        thread::spawn(|| check(request(5), request(5))).join().unwrap();
        // Without a request to the helper.
        // SAFETY: the helper answers the call, which accesses no memory.
        let own = unsafe { libc::syscall(libc::SYS_io_uring_setup, 8, std::ptr::null::<u8>()) };
        assert_eq!((own, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
    });
}

#[test]
fn a_ring_sends_drivers_no_commands_unless_that_was_said_before_the_sandbox() {
    alone("rings::a_ring_sends_drivers_no_commands_unless_that_was_said_before_the_sandbox", || {
        Helper::start(None, Some(make)).unwrap();
        if !enter_with_rings() {
            return;
        }
        let refused = RingRequest { commands: false, ..request(1) };
        check(request(1), refused);
        will_give_commands();
        check(request(1), refused);
        assert!(LOG.lock().unwrap().iter().any(|line| line.contains("cannot send commands to drivers")));
    });
}

#[test]
fn without_a_helper_for_them_rings_are_made_without_restrictions_and_that_is_said() {
    alone("rings::without_a_helper_for_them_rings_are_made_without_restrictions_and_that_is_said", || {
        Helper::start(None, None).unwrap();
        let state = enter(&Needs { rings: Rings::OfHelper, ..Needs::default() });
        assert!(!state.rings && state.missing.len() == 1, "{state:?}");
        assert!(state.missing[0].contains("its own rings (there is no helper)"), "{state:?}");
        ring(request(1), || Ok(()), |_| panic!("the helper's")).unwrap();
    });
}
