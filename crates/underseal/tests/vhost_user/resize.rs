//! A disk that gets another size while a front end has it.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::{Frontend, VhostUserFrontend};

use crate::control::operator::Operator;
use crate::support::tools::PATIENCE;
use crate::support::volume::text;
use crate::vhost_user::front::{Front, IN, OUT};

const MIB: u64 = 1 << 20;
const OK: u8 = 0;
const FAILED: u8 = 1;

/// The size as the configuration has it, in bytes.
pub(crate) fn capacity(link: &mut Frontend) -> u64 {
    let got = link.get_config(0, 8, VhostUserConfigFlags::empty(), &[0; 8]).unwrap();
    u64::from_le_bytes(got.1.try_into().unwrap()) * 512
}

/// Whether the device says that its configuration has changed:
/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG, and nothing else.
pub(crate) fn is_told(back: &mut UnixStream, patience: Duration) -> bool {
    back.set_read_timeout(Some(patience)).unwrap();
    let mut message = [0; 12];
    match back.read_exact(&mut message) {
        Ok(()) => {
            assert_eq!(message, *[2_u32, 1, 0].map(u32::to_ne_bytes).concat());
            true
        }
        Err(e) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&e.kind()) => false,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_front_end_is_told_of_another_size_if_it_takes_messages() {
    let operator = Operator::new();
    let vm = operator.scratch.path("vm");
    let (volume, server) = operator.open(&["--vhost-user", text(&vm)]);
    let mut front = Front::connect(&vm);
    let old = 32 * MIB;
    assert_eq!(capacity(&mut front.link), old);

    // A front end without a channel for messages.
    let image = File::options().write(true).open(&volume.image).unwrap();
    image.set_len(56 * MIB).unwrap();
    let ran = operator.run("resize image");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("when it connects again"), "{ran:?}");

    let (mut ours, theirs) = UnixStream::pair().unwrap();
    front.link.set_backend_request_fd(&theirs).unwrap();
    drop(theirs);
    assert!(!is_told(&mut ours, Duration::from_millis(100)));
    image.set_len(64 * MIB).unwrap();
    let ran = operator.run("resize image");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(is_told(&mut ours, PATIENCE));
    assert_eq!(capacity(&mut front.link), 48 * MIB);
    assert_eq!(front.does(OUT, old / 512, 4096), OK);

    operator.does("resize image --size 8M");
    assert!(is_told(&mut ours, PATIENCE));
    assert_eq!(capacity(&mut front.link), 8 * MIB);
    assert_eq!(front.does(IN, old / 512, 4096), FAILED);
    assert_eq!(front.does(IN, 0, 4096), OK);

    // Only the last channel counts, and the server keeps no descriptor of the others.
    for _ in 0..200 {
        let (_, theirs) = UnixStream::pair().unwrap();
        front.link.set_backend_request_fd(&theirs).unwrap();
    }
    let ran = operator.run("resize image --size 9M");
    assert!(ran.err.contains("when it connects again"), "its end is closed: {ran:?}");
    drop(front);
    let log = server.stop();
    assert!(!log.contains("sandbox") && !log.contains("cut off"), "{log}");
}

#[test]
fn what_is_no_socket_is_no_channel() {
    let operator = Operator::new();
    let vm = operator.scratch.path("vm");
    let (_, server) = operator.open(&["--vhost-user", text(&vm)]);
    let mut front = Front::connect(&vm);
    let file = operator.scratch.file("file", b"");
    assert!(front.link.set_backend_request_fd(&File::open(file).unwrap()).is_err());
    drop(front);
    assert!(server.log().contains("that is no socket"), "{}", server.log());
    let mut front = Front::connect(&vm);
    assert_eq!(front.does(IN, 0, 4096), OK);
    drop(front);
    server.stop();
}
