//! Hostile code inside each kind of server: what docs/sandbox.md says that it cannot do is refused, and the server goes on.
//!
//! ```text
//!   inject.rs   makes a thread of a running server execute system calls
//!   rows.rs     the table: what is tried, and at which doors it works
//!   rings.rs    rings, of its own and the helper's, and all their operations
//! ```
//!
//! A row that is refused is one that fails with `EPERM` or `EACCES`. Rows that work show that the calls are really made.

mod inject;
mod rings;
mod rows;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::hostile::inject::Inside;
use crate::hostile::rows::{Around, CAPABILITIES, Door, FILES, ITSELF, NETWORK, PROCESSES};
use crate::support::mounts::{cannot_fuse, skip, unmount_stale};
use crate::support::nbd::Client;
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, Server};

/// Tries all rows in this process, and says all that is not as it should be.
fn attacked(pid: u32, door: Door, own: &Path, log: PathBuf) {
    let mut around = Around::new(own.to_owned(), log);
    let mut inside = Inside::of(pid);
    let mut wrong = Vec::new();
    for row in [CAPABILITIES, FILES, NETWORK, PROCESSES, ITSELF].into_iter().flatten() {
        let answer = (row.try_it)(&mut inside, &around);
        inside.forget();
        let as_said = match answer {
            Ok(_) => row.works.contains(&door),
            Err(Errno::PERM | Errno::ACCESS) => row.at_most || !row.works.contains(&door),
            Err(_) => false,
        };
        if !as_said {
            wrong.push(format!("{door:?}: {}: {answer:?}", row.what));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    rings::are_restricted(&mut inside, door != Door::Tree);
    drop(inside);
    around.is_untouched();
}

fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "only root traces a process that keeps secrets");
    }
    root
}

/// The volume's server still serves those who come, and those who were there.
fn serves(server: &Server, before: &mut Client) {
    let mut after = Client::connect(&server.socket()).unwrap();
    after.write(4096, &[7; 4096]).unwrap();
    after.flush().unwrap();
    assert_eq!(before.read(4096, 4096).unwrap(), [7; 4096]);
}

#[test]
fn code_in_an_nbd_server() {
    if !is_root("hostile") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let log = scratch.path("log");
    let server = Server::start(&volume, &["--log-file", text(&log)]);
    let mut client = Client::connect(&server.socket()).unwrap();
    attacked(server.id(), Door::Nbd, &volume.image, log);
    serves(&server, &mut client);
    server.stop();
}

#[test]
fn code_in_a_server_of_a_mount() {
    if !is_root("hostile") {
        return;
    }
    if let Some(reason) = cannot_fuse() {
        return skip("hostile", reason);
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (disk, log) = (scratch.file("disk", b""), scratch.path("log"));
    let server = Server::start(&volume, &["--fuse", text(&disk), "--log-file", text(&log)]);
    let mut client = Client::connect(&server.socket()).unwrap();
    attacked(server.id(), Door::Fuse, &volume.image, log);
    serves(&server, &mut client);
    assert_eq!(fs::read(&disk).unwrap()[4096..8192], [7; 4096]);
    server.stop();
}

#[test]
fn code_in_a_server_of_machines() {
    if !is_root("hostile") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "48M");
    let (machine, log) = (scratch.path("machine"), scratch.path("log"));
    let options = ["--vhost-user", text(&machine), "--log-file", text(&log), "--hand-over"];
    let server = Server::start(&volume, &options);
    let mut client = Client::connect(&server.socket()).unwrap();
    attacked(server.id(), Door::VhostUser, &volume.image, log);
    serves(&server, &mut client);
    server.stop();
}

/// The server of an encrypted folder. It is ended, and unmounted, however a test ends.
struct Mounted {
    child: Child,
    at: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        unmount_stale(&self.at);
    }
}

#[test]
fn code_in_a_server_of_files() {
    if !is_root("hostile") {
        return;
    }
    if let Some(reason) = cannot_fuse() {
        return skip("hostile", reason);
    }
    let scratch = Scratch::new();
    let [lower, at] = ["lower", "mnt"].map(|name| scratch.path(name));
    for folder in [&lower, &at] {
        fs::create_dir(folder).unwrap();
    }
    let (passphrase, log) = (scratch.file("pass", b"correct horse"), scratch.path("log"));
    let mut command = underseal();
    command.args(["ecryptfs", "mount", text(&lower), text(&at), "--passphrase-file", text(&passphrase)]);
    command.args(["--log-file", text(&log)]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut mounted = Mounted { child, at: at.clone() };
    let mut lines = BufReader::new(mounted.child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(" is mounted on ")));
    fs::write(at.join("plain"), "before").unwrap();
    // Written below it, so that there is nothing that the mount has open.
    let own = lower.join("own");
    fs::write(&own, "x").unwrap();
    attacked(mounted.child.id(), Door::Tree, &own, log);
    assert_eq!(fs::read_to_string(at.join("plain")).unwrap(), "before");
    fs::write(at.join("plain"), "after").unwrap();
    assert_eq!(fs::read_to_string(at.join("plain")).unwrap(), "after");
    kill_process(Pid::from_child(&mounted.child), Signal::TERM).unwrap();
    assert!(mounted.child.wait().unwrap().success());
}
