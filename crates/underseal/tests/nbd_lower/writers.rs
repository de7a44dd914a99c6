//! Programs that open one export for writing, and a bad copy of a header there.

use std::os::unix::fs::FileExt;
use std::process::Stdio;

use crate::nbd_lower::backing::Backing;
use crate::support::volume::{CHEAP_PBKDF2, Volume, text, underseal};
use crate::support::{Scratch, Server, fails, run};

const IN_USE: i32 = 4;

#[test]
fn an_export_is_open_for_writing_once_whatever_it_is_called() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "32M"]);
    let volume = lower.formatted(&scratch, "", &[]);
    // Another spelling of the same export.
    let link = scratch.path("link");
    std::os::unix::fs::symlink(scratch.path("lower"), &link).unwrap();
    let other = lower.volume(&scratch, "&reconnect-delay=1").image;
    let linked = format!("nbd+unix:///?socket={}", text(&link));
    let server = Server::start(&volume, &[]);
    for image in [text(&volume.image), text(&other), &linked] {
        let open = |more: &[&str]| {
            let mut open = underseal();
            open.args(["open", image, "--nbd", &format!("unix:{}", text(&scratch.path("second")))]);
            open.arg("--passphrase-file").arg(&volume.passphrase).args(more);
            open
        };
        let (status, said) = fails(&mut open(&[]));
        assert_eq!(status, IN_USE, "{image}: {said}");
        assert!(said.contains("in use by another program"), "{image}: {said}");
    }
    // The place of control sockets differs where a service or a job of cron is started.
    let mut open = underseal();
    open.args(["open", text(&volume.image), "--nbd", &format!("unix:{}", text(&scratch.path("second")))]);
    open.arg("--passphrase-file").arg(&volume.passphrase);
    let (status, said) = fails(open.env("UNDERSEAL_RUNTIME_DIR", scratch.path("elsewhere")));
    assert_eq!(status, IN_USE, "{said}");
    // Readers, and changes of the header, go beside.
    assert_eq!(volume.read(0, 4096).len(), 4096);
    run(underseal().args(["header", "set", text(&volume.image), "--label", "beside"]));
    server.stop();
    Server::start(&volume, &[]).stop();
}

#[test]
fn a_keyslot_that_was_added_to_an_export_is_there_whatever_others_add() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "32M"]);
    let volume = lower.formatted(&scratch, "", &[]);
    for round in 0..4 {
        let add = |number: u32| {
            let mut add = underseal();
            add.args(["keyslot", "add", "-q"]).arg(&volume.image).args(CHEAP_PBKDF2);
            add.arg("--passphrase-file").arg(&volume.passphrase);
            let new = scratch.file(&format!("new{number}"), format!("round {round}, {number}").as_bytes());
            add.arg("--new-passphrase-file").arg(new).stdin(Stdio::null()).spawn().unwrap()
        };
        let added = [1, 2, 3].map(|number| (number, add(number))).map(|(number, mut child)| {
            let status = child.wait().unwrap().code();
            // Another one has changed the header since it was read.
            assert!(status == Some(0) || status == Some(IN_USE), "{status:?}");
            (number, status == Some(0))
        });
        assert!(added.iter().any(|(_, is_added)| *is_added));
        for (number, _) in added.iter().filter(|(_, is_added)| *is_added) {
            let passphrase = scratch.path(&format!("new{number}"));
            Volume { passphrase, ..lower.volume(&scratch, "") }.read(0, 512);
        }
    }
}

#[test]
fn a_killed_server_leaves_no_lock() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "32M"]);
    let volume = lower.formatted(&scratch, "", &[]);
    Server::start(&volume, &[]).kill();
    Server::start(&volume, &[]).stop();
}

#[test]
fn a_bad_copy_of_a_header_is_healed_through_a_server() {
    let scratch = Scratch::new();
    let image = scratch.file("raw", &vec![0; 32 << 20]);
    let lower = Backing::nbdkit(&scratch, &["file", text(&image)]);
    let volume = lower.formatted(&scratch, "", &[]);
    let file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
    const COPY: usize = 16 << 10;
    let mut sound = vec![0; 2 * COPY];
    file.read_exact_at(&mut sound, 0).unwrap();
    // In the first copy, and in the second; the other one stays as it is.
    for (place, other) in [(5000, COPY..2 * COPY), (20_000, 0..COPY)] {
        file.write_all_at(b"xx", place).unwrap();
        let check = || underseal_header(&["check"], &volume.image);
        fails(&mut check());
        run(&mut underseal_header(&["repair"], &volume.image));
        run(&mut check());
        let mut found = vec![0; 2 * COPY];
        file.read_exact_at(&mut found, 0).unwrap();
        assert!(found[other.clone()] == sound[other], "byte {place}");
        sound = found;
    }
}

fn underseal_header(words: &[&str], image: &std::path::Path) -> std::process::Command {
    let mut command = underseal();
    command.arg("header").args(words).arg(image);
    command
}
