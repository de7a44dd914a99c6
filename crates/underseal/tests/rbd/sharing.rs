//! Other clients of an image, and changes under an open one.

use std::fs::File;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rbd::cluster::Image;
use crate::support::nbd::Client;
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, output, tool, wait_until};
use crate::support::volume::{CHEAP_PBKDF2, underseal};
use crate::support::{Scratch, Server, bytes, fails, run, seed};

#[test]
fn a_second_writer_is_refused_and_told_who_the_first_is() {
    let Some((_scratch, image, volume, server)) = Image::served(40, &[]) else { return };
    let (client, address) = image.locker().expect("the server has the lock");
    for verb in ["open", "write"] {
        let mut second = volume.command(verb);
        let (status, said) =
            fails(if verb == "open" { second.args(["--nbd", "unix:other"]) } else { &mut second });
        assert_eq!(status, 4, "{verb}: {said}");
        assert!(said.contains("is in use by") && said.contains(&client) && said.contains(&address), "{said}");
    }
    let mut add = underseal();
    add.args(["keyslot", "add", "-q"]).arg(&volume.image).args(CHEAP_PBKDF2);
    add.arg("--passphrase-file").arg(&volume.passphrase);
    let (status, said) = fails(add.arg("--new-passphrase-file").arg(&volume.passphrase));
    assert_eq!(status, 4, "a header that is in use: {said}");
    // Reading is allowed.
    run(underseal().arg("info").arg(&volume.image));
    volume.read(0, 4096);
    server.stop();
    assert!(image.locker().is_none(), "the lock is given back");
    volume.write(0, &[1; 4096]);
}

/// Ceph's own clients hand the lock over when they are asked for it, and fail to write from then
/// on: so they are not asked.
#[test]
fn a_client_of_cephs_that_writes_keeps_the_lock() {
    let Some((_scratch, image, volume)) = Image::with_volume(40, &[]) else { return };
    let mut bench = image.rbd("bench");
    bench.args(["--io-type", "write", "--io-size", "4K", "--io-threads", "1", "--io-total", "1T"]);
    let mut bench = Writer(bench.arg(image.path()).stdout(Stdio::null()).spawn().unwrap());
    wait_until("it has the lock", PATIENCE, || image.locker().is_some());
    let (client, address) = image.locker().unwrap();
    let format = || {
        let mut format = underseal();
        format.args(["format", "-q", "--force"]).arg(&volume.image).args(CHEAP_PBKDF2);
        format.arg("--passphrase-file").arg(&volume.passphrase);
        format
    };
    for mut second in [volume.command("open"), volume.command("write"), format()] {
        let (status, said) = fails(&mut second);
        assert_eq!(status, 4, "{second:?}: {said}");
        assert!(said.contains("is in use by") && said.contains(&client) && said.contains(&address), "{said}");
    }
    assert_eq!(image.locker(), Some((client, address)), "it has the lock");
    assert!(bench.0.try_wait().unwrap().is_none(), "it writes");
}

/// A program that is ended with its test.
struct Writer(std::process::Child);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// For half a minute the cluster cannot tell a dead writer from a slow one, unless it ran on this
/// machine.
#[test]
fn a_writer_that_died_elsewhere_is_waited_for() {
    let Some((_scratch, _image, volume, mut server)) = Image::served(40, &[]) else { return };
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    server.signal(Signal::KILL);
    server.wait();
    assert_eq!(volume.read(0, 4096), [7; 4096]);
    let elsewhere = Scratch::new();
    let mut write = volume.command("write");
    write.env("UNDERSEAL_RUNTIME_DIR", elsewhere.path("run"));
    write.stdin(File::open(elsewhere.file("data", &[8; 4096])).unwrap());
    let began = Instant::now();
    run(write.args(["--offset", "4096"]));
    assert!(began.elapsed() > Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(volume.read(4096, 4096), [8; 4096]);
}

/// The next server takes the lock without waiting, and shuts the killed one out.
#[test]
fn a_writer_that_was_killed_here_is_followed_at_once() {
    let Some((_scratch, image, volume, mut server)) = Image::served(40, &[]) else { return };
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let (_, address) = image.locker().expect("the server has the lock");
    server.signal(Signal::KILL);
    server.wait();
    let began = Instant::now();
    let next = Server::start(&volume, &[]);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}\n{}", next.log());
    assert!(
        next.log().contains(&format!(
            "process {} of this machine had its lock, as the client at {address}",
            server.id()
        )),
        "{}",
        next.log()
    );
    assert_ne!(image.locker().expect("it has the lock").1, address);
    let mut client = Client::connect(&next.socket()).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), [7; 4096]);
    client.write(0, &[9; 4096]).unwrap();
    drop(client);
    next.stop();
}

#[test]
fn what_an_image_does_not_have_any_more_fails() {
    let Some((_scratch, image, _volume, server)) = Image::served(64, &["--allow-discards"]) else { return };
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(30 << 20, &[7; 4096]).unwrap();
    run(image.rbd("resize").args(["--no-progress", "--size", "32M", "--allow-shrink"]).arg(image.path()));
    for at in [30_u64 << 20, 20 << 20] {
        assert!(client.write(at, &[8; 65_536]).is_err(), "a write at {at}");
        assert!(client.read(at, 65_536).is_err(), "a read at {at}");
    }
    // Half of it is there: it is not cut short.
    assert!(client.write((16 << 20) - 32_768, &[8; 65_536]).is_err(), "a write across the end");
    client.write(0, &[9; 65_536]).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 65_536).unwrap(), [9; 65_536]);
    drop(client);
    assert!(server.log().contains("was shrunk from 67108864 to 33554432 bytes"), "{}", server.log());
    server.stop();
}

/// Ceph removes no image that is in use. After a forced removal no write is acknowledged that is
/// not stored.
#[test]
fn an_image_that_is_removed_is_not_written_to_any_more() {
    let Some((_scratch, image, _volume, mut server)) = Image::served(40, &[]) else { return };
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    for command in [&["rm", "--no-progress"][..], &["trash", "mv"]] {
        let mut remove = image.rbd(command[0]);
        let (status, said) = fails(remove.args(&command[1..]).arg(image.path()));
        assert_eq!(status, 16, "in use: {said}");
        client.write(4096, &[8; 4096]).unwrap();
        client.flush().unwrap();
    }
    let info = run(image.rbd("info").args(["--format", "json"]).arg(image.path()));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let header = format!("rbd_header.{}", info["id"].as_str().unwrap());
    run(image.rados().args(["--pool", "rbd", "rm", &header]));
    wait_until("it is noticed", PATIENCE, || client.write(4096, &[9; 4096]).is_err());
    assert!(client.flush().is_err(), "a flush");
    assert!(client.write(8192, &[9; 4096]).is_err(), "another write");
    drop(client);
    server.signal(Signal::TERM);
    let status = server.wait();
    let log = server.log();
    assert_eq!(status.code(), Some(8), "{log}");
    assert!(log.contains("the image, or its exclusive lock, is gone"), "{log}");
    // The remaining object of the image.
    run(image.rados().args(["--pool", "rbd", "rm", &format!("rbd_id.{}", image.name())]));
}

#[test]
fn a_client_that_is_shut_out_ends_and_tries_nothing_again() {
    let Some((_scratch, image, volume, mut server)) = Image::served(40, &[]) else { return };
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let (_, address) = image.locker().expect("the server has the lock");
    run(image.ceph().args(["osd", "blocklist", "add", &address]));
    // The disk's machines hear of it in a moment.
    wait_until("it is shut out", PATIENCE, || client.write(4096, &[8; 4096]).is_err());
    let status = server.wait();
    let log = server.log();
    assert_eq!(status.code(), Some(8), "{log}");
    assert!(log.contains("shut this client out"), "{log}");
    run(image.ceph().args(["osd", "blocklist", "rm", &address]));
    assert_eq!(volume.read(0, 4096), [7; 4096]);
}

#[test]
fn a_server_that_was_stopped_while_another_took_the_image_writes_nothing_however_late() {
    let Some((scratch, image, volume, mut server)) = Image::served(40, &[]) else { return };
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let (_, address) = image.locker().expect("the server has the lock");
    server.pause();
    client.send_write(1, 0, &[8; 4096]).unwrap();
    let next = Server::start(&image.volume(&scratch, ""), &["--name", "next"]);
    let mut writer = Client::connect(&next.socket()).unwrap();
    writer.write(0, &[9; 4096]).unwrap();
    writer.flush().unwrap();
    let listed = run(image.ceph().args(["osd", "blocklist", "ls"]));
    let until = listed.lines().find_map(|line| line.strip_prefix(&address)).expect("the client is shut out");
    let in_days = output(tool("date").args(["+%Y-%m-%d", "-d", "+29 days"]));
    assert!(until.trim() > String::from_utf8_lossy(&in_days.stdout).trim_end(), "for long: {until}");
    // As if that time were over.
    run(image.ceph().args(["osd", "blocklist", "rm", &address]));
    server.signal(Signal::CONT);
    let status = server.wait();
    let log = server.log();
    assert_eq!(status.code(), Some(8), "{log}");
    assert!(log.contains("shut this client out"), "{log}");
    assert_eq!(writer.read(0, 4096).unwrap(), [9; 4096]);
    writer.write(4096, &[9; 4096]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    next.stop();
    drop(volume);
}

#[test]
fn a_server_whose_lock_was_removed_writes_nothing_once_another_has_it() {
    let Some((scratch, image, volume, mut server)) = Image::served(40, &[]) else { return };
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let (locker, _) = image.locker().expect("the server has the lock");
    let listed = run(image.rbd("lock").args(["ls", "--format", "json"]).arg(image.path()));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let mut remove = image.rbd("lock");
    remove.args(["rm", "--rbd_blocklist_on_break_lock=false"]).arg(image.path());
    run(remove.args([listed[0]["id"].as_str().unwrap(), &locker]));
    let next = Server::start(&image.volume(&scratch, ""), &["--name", "next"]);
    let mut writer = Client::connect(&next.socket()).unwrap();
    writer.write(0, &[9; 4096]).unwrap();
    writer.flush().unwrap();
    assert!(client.write(0, &[8; 4096]).is_err(), "{}", server.log());
    assert_eq!(server.wait().code(), Some(8), "{}", server.log());
    assert_eq!(writer.read(0, 4096).unwrap(), [9; 4096]);
    drop((writer, volume));
    next.stop();
}

#[test]
fn a_snapshot_is_read_and_never_written() {
    let Some((scratch, image, volume)) = Image::with_volume(40, &[]) else { return };
    let old = bytes(seed("old"), 200_000);
    volume.write(8192, &old);
    run(image.rbd("snap").arg("create").arg("--no-progress").arg(format!("{}@then", image.path())));
    volume.write(8192, &vec![0; 200_000]);
    let then = image.volume(&scratch, "@then");
    assert_same(&then.read(8192, old.len()), &old, "the snapshot");
    let (status, said) = fails(then.command("open").args(["--nbd", "unix:none"]));
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("a snapshot never changes") && said.contains("--read-only"), "{said}");
    // A snapshot is served while the image is written to.
    let server = Server::start(&volume, &[]);
    let served = Server::start(&then, &["--read-only", "--name", "then"]);
    let mut client = Client::connect(&served.socket()).unwrap();
    assert_same(&client.read(8192, 65_536).unwrap(), &old[..65_536], "the snapshot, served");
    drop(client);
    served.stop();
    server.stop();
}

#[test]
fn a_clone_opens_with_its_parents_key() {
    let Some((scratch, image, volume)) = Image::with_volume(40, &[]) else { return };
    let data = bytes(seed("parent"), 200_000);
    volume.write(0, &data);
    let snapshot = format!("{}@base", image.path());
    run(image.rbd("snap").arg("create").arg("--no-progress").arg(&snapshot));
    run(image.rbd("snap").arg("protect").arg(&snapshot));
    let child = Image::named_by(&image, "-clone");
    run(image.rbd("clone").arg(&snapshot).arg(child.path()));
    let cloned = child.volume(&scratch, "");
    cloned.write(4096, &[9; 4096]);
    let mut expected = data.clone();
    expected[4096..8192].fill(9);
    assert_same(&cloned.read(0, data.len()), &expected, "the clone");
    assert_same(&volume.read(0, data.len()), &data, "its parent");
    drop(child);
    run(image.rbd("snap").arg("unprotect").arg(&snapshot));
}

#[test]
fn an_image_that_grows_is_as_large_as_it_is() {
    let Some((_scratch, image, volume, server)) = Image::served(40, &[]) else { return };
    let name = image.path().replace("rbd/", "");
    run(image.rbd("resize").args(["--no-progress", "--size", "48M"]).arg(image.path()));
    run(underseal().args(["resize", &name]));
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(28 << 20, &[5; 4096]).unwrap();
    assert_eq!(client.read(28 << 20, 4096).unwrap(), [5; 4096]);
    drop(client);
    server.stop();
    assert_eq!(volume.read(28 << 20, 4096), [5; 4096]);
}

#[test]
fn requests_wait_while_a_snapshot_is_made() {
    let Some((scratch, image, volume, server)) = Image::served(40, &[]) else { return };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = Client::connect(&server.socket()).unwrap();
            let mut round = 0_u8;
            while !stop.load(SeqCst) {
                round = round.wrapping_add(1);
                client.write(0, &[round; 4096]).unwrap();
                client.write(8 << 20, &[round; 65_536]).unwrap();
            }
            round
        });
        for number in 1..=3 {
            let mut create = image.rbd("snap");
            run(create.args(["create", "--no-progress"]).arg(format!("{}@s{number}", image.path())));
            wait_until("requests go on", PATIENCE, || {
                server.log().matches("requests go on after a snapshot").count() == number
            });
            assert_eq!(server.log().matches("requests wait while a snapshot is made").count(), number);
        }
        stop.store(true, SeqCst);
        assert!(writer.join().unwrap() > 0);
    });
    // The first of two writes is never older than the second.
    let then = image.volume(&scratch, "@s2");
    let (first, second) = (then.read(0, 1)[0], then.read(8 << 20, 1)[0]);
    assert!(first.wrapping_sub(second) <= 1, "{first} {second}");
    // A suspended volume stays suspended through a snapshot.
    let name = image.path().replace("rbd/", "");
    run(underseal().args(["suspend", &name]));
    run(image.rbd("snap").args(["create", "--no-progress"]).arg(format!("{}@s4", image.path())));
    assert!(run(underseal().args(["status", &name])).contains("suspended"));
    run(underseal().args(["resume", &name]));
    let log = server.stop();
    assert!(!log.contains("WARN"), "{log}");
    assert_same(&volume.read(0, 1), &image.volume(&scratch, "@s4").read(0, 1), "the last one");
}
