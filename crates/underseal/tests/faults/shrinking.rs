//! An image that another program makes shorter while it is served.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::mounts::{Loop, cannot_mount, skip};
use crate::support::nbd::{Client, EIO};
use crate::support::scratch::assert_same;
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, Server, bytes, seed};

const DATA: u64 = 16 << 20;
/// Where the volume ends after it was cut.
const LEFT: u64 = 2 << 20;

#[test]
fn what_is_gone_is_eio_and_a_log_line_and_what_is_left_can_be_read() {
    let scratch = Scratch::new();
    for (i, open) in [&[][..], &["--direct"], &["--read-only"]].into_iter().enumerate() {
        let volume = Volume::at(&scratch, &format!("image{i}")).format("24M", &[]);
        let plain = bytes(seed("shrinking"), usize::try_from(volume.size()).unwrap());
        volume.write(0, &plain);
        let mut server = Server::start(&volume, open);
        let (mut victim, mut other) =
            (Client::connect(&server.socket()).unwrap(), Client::connect(&server.socket()).unwrap());
        assert_same(&victim.read(4 << 20, 4096).unwrap(), &plain[4 << 20..][..4096], "before");

        let image = OpenOptions::new().write(true).open(&volume.image).unwrap();
        image.set_len(DATA + LEFT).unwrap();
        let end = usize::try_from(LEFT).unwrap();
        // Beyond the end, across it, and a whole payload.
        for (offset, len) in [(4 << 20, 4096), (LEFT - 4096, 8192), (LEFT, 1 << 20), (0, 8 << 20)] {
            assert_eq!(victim.read(offset, len), Err(EIO), "{len} bytes at {offset}, {open:?}");
            assert_same(&other.read(LEFT - 65_536, 65_536).unwrap(), &plain[end - 65_536..end], "the other");
        }
        // The same connection, too.
        assert_same(&victim.read(0, 1 << 20).unwrap(), &plain[..1 << 20], "what is left");
        if !open.contains(&"--read-only") {
            // Of a file that lost bytes nothing is said to be safe, and no write makes it longer.
            for client in [&mut other, &mut victim] {
                assert_eq!(client.flush(), Err(EIO), "{open:?}");
                for offset in [0, 4 << 20, plain.len() as u64 - 4096] {
                    assert_eq!(client.write(offset, &plain[4096..8192]), Err(EIO), "{offset}, {open:?}");
                }
            }
            assert_eq!(Client::connect(&server.socket()).unwrap().flush(), Err(EIO), "a later client");
            assert_same(&other.read(0, 4096).unwrap(), &plain[..4096], "what is left");
            assert_eq!(image.metadata().unwrap().len(), DATA + LEFT);
        }
        drop((victim, other));
        let log = if open.contains(&"--read-only") {
            server.stop()
        } else {
            server.signal(Signal::TERM);
            assert!(!server.wait().success(), "its last flush fails, too");
            server.log()
        };
        if !open.contains(&"--read-only") {
            let line = log.lines().find(|line| line.contains("has made it shorter"));
            let line = line.unwrap_or_else(|| panic!("no line tells of the file, {open:?}:\n{log}"));
            assert!(line.contains(text(&volume.image)) && line.contains("ERROR"), "{line}");
        }
        let place = format!("byte {}", DATA + (4 << 20));
        let line = log.lines().find(|line| line.contains(&place));
        let line = line.unwrap_or_else(|| panic!("no line names {place}, {open:?}:\n{log}"));
        assert!(line.contains(text(&volume.image)) && line.contains("ERROR"), "{line}");
    }
}

/// Flushes must not promise what ends with the server: nobody can open a file without a name.
#[test]
fn a_file_that_is_removed_or_replaced_fails_flushes() {
    for replaces in [false, true] {
        let scratch = Scratch::new();
        let volume = Volume::luks2(&scratch, "24M");
        let mut server = Server::start(&volume, &[]);
        let mut client = Client::connect(&server.socket()).unwrap();
        client.write(0, &[7; 4096]).unwrap();
        client.flush().unwrap();
        if replaces {
            let copy = scratch.path("copy");
            std::fs::copy(&volume.image, &copy).unwrap();
            std::fs::rename(copy, &volume.image).unwrap();
        } else {
            // A rename alone changes nothing.
            let moved = scratch.path("moved");
            std::fs::rename(&volume.image, &moved).unwrap();
            client.flush().unwrap();
            std::fs::remove_file(moved).unwrap();
        }
        assert_eq!(client.flush(), Err(EIO));
        assert_eq!(client.write(0, &[8; 4096]), Err(EIO));
        assert_same(&client.read(0, 4096).unwrap(), &[7; 4096], "what it has can be saved");
        drop(client);
        server.signal(Signal::TERM);
        assert!(!server.wait().success(), "its last flush fails, too");
        assert!(server.log().contains("removed or replaced"), "{}", server.log());
    }
}

/// A volume that ends before its image needs no byte behind its end, as after a file system and the
/// volume were made smaller.
#[test]
fn bytes_behind_a_volumes_end_may_be_cut_off() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let file = File::create(&image).unwrap();
    file.set_len(48 << 20).unwrap();
    only_used_bytes_are_missed(&scratch, &image, &file, 0);
}

/// The device keeps its size when its file is made shorter.
#[test]
fn bytes_that_a_loop_devices_file_lost_are_missed() {
    const START: u64 = 1 << 20;
    if let Some(reason) = cannot_mount() {
        return skip("bytes_that_a_loop_devices_file_lost_are_missed", reason);
    }
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let file = File::create(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    let device = Loop::attach(&image, &["--offset", &START.to_string()]);
    only_used_bytes_are_missed(&scratch, device.device(), &file, START);
}

/// Opens a volume of 8 MiB, which begins at byte `start` of the file, and makes the file shorter.
fn only_used_bytes_are_missed(scratch: &Scratch, image: &Path, file: &File, start: u64) {
    let key = scratch.file("key", &[7; 64]);
    let mut command = underseal();
    command.arg("open").arg(image).args(["--type", "plain", "--size", "8M", "--key-file"]).arg(key);
    let mut server = Server::start_command(command, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    file.set_len(start + (8 << 20)).unwrap();
    thread::sleep(Duration::from_millis(50));
    client.write(4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(Client::connect(&server.socket()).unwrap().read(4096, 4096).unwrap(), [2; 4096]);
    file.set_len(start + (8 << 20) - 4096).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(client.flush(), Err(EIO), "a byte in use is gone");
    drop(client);
    server.signal(Signal::TERM);
    assert!(!server.wait().success());
    assert!(server.log().contains(&format!("and {} are in use", start + (8 << 20))));
}
