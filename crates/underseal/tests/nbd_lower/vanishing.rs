//! Servers that are killed under load.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use crate::backing::Backing;
use crate::support::nbd::{Client, EIO};
use crate::support::tools::{PATIENCE, wait_until, within};
use crate::support::volume::text;
use crate::support::{Scratch, Server, bytes, seed, tool};

/// fio writes at a measured pace for a few seconds, and verifies what it wrote.
fn load(server: &Server) -> Child {
    let mut fio = tool("fio");
    fio.args(["--name=verify", "--ioengine=nbd", "--thread", "--group_reporting"]).args([
        format!("--uri={}", server.uri()),
        "--numjobs=2".into(),
        "--size=10M".into(),
        "--offset_increment=10M".into(),
        "--bs=4k".into(),
        "--rw=randwrite".into(),
        "--iodepth=16".into(),
        "--rate_iops=400".into(),
        "--verify=crc32c".into(),
        "--verify_fatal=1".into(),
        "--do_verify=1".into(),
        format!("--randseed={}", seed("fio") >> 1),
        "--aux-path=/tmp".into(),
        "--verify_state_save=0".into(),
    ]);
    fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("fio is there: scripts/setup test")
}

fn survives(program: &str, args: &[&str]) {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 48 << 20);
    let args: Vec<&str> = args.iter().map(|&arg| if arg == "IMAGE" { text(&image) } else { arg }).collect();
    let mut lower = Backing::start(&scratch, program, &args);
    // A file's bytes stay in the page cache when its server ends.
    let volume = lower.formatted(&scratch, "&unflushed=trust&reconnect-delay=120", &[]);
    let server = Server::start(&volume, &[]);
    let fio = load(&server);
    // Both of fio's connections that stay, after those that only ask.
    wait_until("fio has connected", PATIENCE, || {
        let log = server.log();
        log.matches("serving export").count() >= log.matches(": done").count() + 2
    });
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(300));
        lower.kill();
        thread::sleep(Duration::from_millis(200));
        lower.come_back();
    }
    let output = fio.wait_with_output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains("err= 0"), "{report}");
    let log = server.stop();
    assert!(log.contains("connecting again") && log.contains("answered again"), "{log}");
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn nbdkit_is_killed_under_load_and_nothing_is_missing() {
    survives("nbdkit", &["-f", "-U", "SOCKET", "file", "IMAGE"]);
}

#[test]
fn qemu_nbd_with_one_client_is_killed_under_load_and_nothing_is_missing() {
    survives("qemu-nbd", &["-t", "-f", "raw", "-k", "SOCKET", "IMAGE"]);
}

#[test]
fn a_flush_after_the_servers_memory_is_gone_fails_once() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 32 << 20);
    let mut lower = Backing::nbdkit(&scratch, &["file", text(&image)]);
    let server = Server::start(&lower.formatted(&scratch, "", &[]), &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    let block = bytes(seed("flush"), 4096);
    client.write(0, &block).unwrap();
    lower.kill();
    lower.come_back();
    assert_eq!(client.flush(), Err(EIO), "nobody knows whether it was kept");
    client.write(0, &block).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), block);
    drop(client);
    let log = server.stop();
    assert!(log.contains("had not flushed may be lost"), "{log}");
}

#[test]
fn without_a_server_requests_fail_in_time_and_the_volume_stays() {
    let scratch = Scratch::new();
    let image = scratch.sparse("image", 32 << 20);
    let mut lower = Backing::nbdkit(&scratch, &["file", text(&image)]);
    let server = Server::start(&lower.formatted(&scratch, "&reconnect-delay=1", &[]), &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.read(0, 4096).unwrap();
    lower.kill();
    assert_eq!(client.read(0, 4096), Err(EIO));
    assert_eq!(client.read(0, 4096), Err(EIO));
    lower.come_back();
    let back = within(PATIENCE, || client.read(0, 4096).is_ok());
    assert!(back, "it is used again");
    drop(client);
    let log = server.stop();
    assert!(log.contains("did not come back within 1 s"), "{log}");
}

#[test]
fn errors_of_the_server_are_the_clients() {
    let scratch = Scratch::new();
    let trigger = scratch.path("fail");
    let file = format!("error-file={}", text(&trigger));
    let args = ["--filter=error", "memory", "32M", "error=EIO", "error-rate=100%", &file];
    let lower = Backing::nbdkit(&scratch, &args);
    let server = Server::start(&lower.formatted(&scratch, "", &[]), &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    let block = bytes(seed("errors"), 4096);
    client.write(8192, &block).unwrap();
    std::fs::write(&trigger, "").unwrap();
    assert_eq!(client.read(8192, 4096), Err(EIO));
    assert_eq!(client.write(8192, &block), Err(EIO));
    std::fs::remove_file(&trigger).unwrap();
    assert_eq!(client.read(8192, 4096).unwrap(), block, "the connection went on");
    client.flush().unwrap();
    drop(client);
    server.stop();
}
