//! A server that was taken over answers `status` with another volume's image. Commands go by the
//! record that the server made before it entered its sandbox, and send it no key of that volume.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use underseal_export::control::Reply;
use underseal_export::control::status::{KeyState, Status};

use crate::control::operator::{Operator, Ran};
use crate::support::volume::{CHEAP_PBKDF2, Volume, text};

/// The requests other than `status` that a lying server received, with the bytes behind each.
type Received = Arc<Mutex<Vec<(String, usize)>>>;

/// Answers at a control socket as a server does that has this status, until the test ends.
fn lie(socket: &Path, status: Status) -> Received {
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    let received = Received::default();
    let kept = received.clone();
    thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = BufReader::new(client.unwrap());
            let mut line = String::new();
            if client.read_line(&mut line).is_err() {
                continue;
            }
            if line.contains(r#""status""#) {
                let _ = client.get_mut().write_all(&Reply::Status(Box::new(status.clone())).line());
                continue;
            }
            client.get_mut().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            let mut behind = Vec::new();
            let _ = client.read_to_end(&mut behind);
            kept.lock().unwrap().push((line, behind.len()));
            let _ = client.get_mut().write_all(&Reply::Done.line());
        }
    });
    received
}

/// A volume `own` whose server was killed, a process that answers at its control socket with the
/// image `victim`, and that volume, which has another passphrase.
fn taken_over(operator: &Operator) -> (Volume, Received) {
    let own = Volume::at(&operator.scratch, "own").format("32M", &[]);
    let mut victim = Volume::at(&operator.scratch, "victim");
    victim.passphrase = operator.scratch.file("other-passphrase", b"another passphrase");
    let victim = victim.format("32M", &[]);
    let server = operator.serve(&own, &[]);
    let mut status: Status = serde_json::from_value(operator.status("own")).unwrap();
    assert_eq!(status.image, text(&own.image));
    server.kill();
    status.image = text(&victim.image).to_owned();
    status.key = KeyState::Wiped;
    let received = lie(&operator.directory().join("own.sock"), status);
    (victim, received)
}

#[test]
fn resume_derives_the_key_from_the_recorded_image() {
    let operator = Operator::new();
    let (victim, received) = taken_over(&operator);
    let resume = format!("resume own --passphrase-file {}", text(&victim.passphrase));
    operator.is_refused(&resume, 3, text(&operator.scratch.path("own")));
    assert_eq!(operator.status("own")["image"], text(&operator.scratch.path("own")));
    fs::remove_file(operator.directory().join("own.record")).unwrap();
    operator.is_refused(&resume, 6, "there is no record of how it was opened");
    assert!(received.lock().unwrap().is_empty(), "{received:?}");
}

#[test]
fn reencrypt_finds_no_server_by_an_image_that_it_did_not_record() {
    let operator = Operator::new();
    let (victim, received) = taken_over(&operator);
    let victim_image = text(&victim.image);

    for record in [true, false] {
        if !record {
            fs::remove_file(operator.directory().join("own.record")).unwrap();
        }
        operator.is_refused(&format!("reencrypt {victim_image} --pause"), 2, "is not open");
        let mut command = victim.command("reencrypt");
        command.env("UNDERSEAL_RUNTIME_DIR", operator.directory()).args(CHEAP_PBKDF2);
        let ran = Ran::from(command.output().unwrap());
        assert_eq!(ran.code, Some(0), "the volume is closed, and is reencrypted so: {ran:?}");
    }
    operator.is_refused("reencrypt own --init-only", 6, "there is no record of how it was opened");
    assert!(received.lock().unwrap().is_empty(), "{received:?}");
}
