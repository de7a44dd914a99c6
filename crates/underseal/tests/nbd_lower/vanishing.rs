//! Servers that are killed under load.

use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::nbd_lower::backing::Backing;
use crate::support::fio::verifying;
use crate::support::nbd::{Client, EIO};
use crate::support::tools::{PATIENCE, wait_until, within};
use crate::support::volume::{text, underseal};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

/// Starts fio, which writes at a measured pace for a few seconds, and verifies its writes.
fn load(server: &Server) -> Child {
    let mut fio = verifying(server, 2, 10 << 20);
    fio.args(["--bs=4k", "--rw=randwrite", "--rate_iops=400"]);
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

#[test]
fn a_server_that_does_not_answer_is_told_of() {
    let scratch = Scratch::new();
    let lower = Backing::nbdkit(&scratch, &["memory", "32M"]);
    let volume = lower.formatted(&scratch, "", &[]);
    let name = text(scratch.folder().file_name().unwrap().as_ref());
    let server = Server::start(&volume, &["--name", name, "--metrics", "localhost:0"]);
    let status = |more: &[&str]| run(underseal().args(["status", name]).args(more));
    let metric = || {
        let log = server.log();
        let address =
            log.split("serving metrics on tcp:").nth(1).and_then(|rest| rest.lines().next()).expect(&log);
        let metrics = run(tool("curl").args(["-sS", &format!("http://{address}/metrics")]));
        let sample =
            metrics.lines().find(|line| line.starts_with("underseal_waiting_seconds{")).expect(&metrics);
        sample.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let mut client = Client::connect(&server.socket()).unwrap();
    let block = bytes(seed("waits"), 4096);
    client.write(0, &block).unwrap();
    assert!(!status(&[]).contains("wait"), "{}", status(&[]));
    assert_eq!(metric(), 0.0);
    lower.freeze();
    client.send_write(7, 4096, &block).unwrap();
    assert!(!status(&[]).contains("wait"), "it has only begun");
    wait_until("it says so", PATIENCE, || status(&[]).contains("waits for"));
    let shown = status(&[]);
    assert!(shown.contains(&format!("waits for  {}, for ", volume.image.display())), "{shown}");
    assert!(shown.contains("open, waiting"), "{shown}");
    assert!(metric() >= 3.0);
    lower.signal(Signal::CONT);
    assert_eq!(client.reply().unwrap(), (7, 0));
    assert!(!status(&[]).contains("wait"));
    assert_eq!(metric(), 0.0);
    drop(client);
    server.stop();
}
