//! A disk with no space left, under a sparse image.

use std::fs;
use std::path::Path;

use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::nbd::{Client, ENOSPC};
use crate::support::scratch::assert_same;
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

const MIB: u64 = 1 << 20;
/// The disk's space, and the part of it that is taken at first.
const DISK: u64 = 24 * MIB;
const BALLAST: u64 = 4 * MIB;

#[test]
fn a_full_tmpfs_is_enospc_and_the_server_goes_on() {
    let scratch = Scratch::new();
    if let Some(reason) = cannot_mount() {
        return skip("full tmpfs", reason);
    }
    let disk = Mount::tmpfs(&scratch.path("disk"), DISK);
    fill(&scratch, disk.directory(), &[]);
}

#[test]
fn a_full_ext4_is_enospc_and_the_server_goes_on() {
    for open in [&[][..], &["--direct"]] {
        let scratch = Scratch::new();
        if let Some(reason) = cannot_mount() {
            return skip("full ext4", reason);
        }
        let file = scratch.sparse("disk.img", DISK);
        run(tool("mkfs.ext4").args(["-q", "-m", "0", "-b", "4096"]).arg(&file));
        let device = Loop::attach(&file, &[]);
        let disk = Mount::new(device.device(), &scratch.path("disk"), &[]);
        fill(&scratch, disk.directory(), open);
    }
}

fn fill(scratch: &Scratch, disk: &Path, open: &[&str]) {
    let header = scratch.path("header");
    let mut volume = Volume::at(scratch, "image").with(["--header", text(&header)]);
    volume.image = disk.join("image");
    let volume = volume.format("64M", &["--header", text(&header)]);
    let ballast = disk.join("ballast");
    fs::write(&ballast, bytes(1, usize::try_from(BALLAST).unwrap())).unwrap();

    let server = Server::start(&volume, open);
    let mut other = Client::connect(&server.socket()).unwrap();
    let mut client = Client::connect(&server.socket()).unwrap();
    let data = bytes(seed("full"), usize::try_from(MIB).unwrap());
    let mut written = 0;
    let error = loop {
        assert!(written < 64, "the disk is never full");
        match client.write(written * MIB, &data) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, ENOSPC, "after {written} MiB, {open:?}");
    assert!(written >= 8, "only {written} MiB were written");
    // Small writes, which are encrypted where they arrive, too.
    let fails =
        |client: &mut Client| (0..512).find_map(|i| client.write(32 * MIB + i * 65_536, &data[..4096]).err());
    assert_eq!(fails(&mut client), Some(ENOSPC));

    // Earlier writes are readable, can be repeated, and flushed, on both connections.
    for client in [&mut client, &mut other] {
        for at in 0..written {
            assert_same(&client.read(at * MIB, data.len()).unwrap(), &data, "a read on a full disk");
        }
        client.write(0, &data).unwrap();
        client.flush().unwrap();
    }
    fs::remove_file(ballast).unwrap();
    // ext4 frees the space when its journal commits, a moment after the unlink returns.
    run(tool("sync").arg("-f").arg(disk));
    wait_until("there is space again", PATIENCE, || client.write(written * MIB, &data).is_ok());
    client.flush().unwrap();
    assert_same(&other.read(written * MIB, data.len()).unwrap(), &data, "a write when there is space again");
    drop((client, other));
    let log = server.stop();
    let line = log.lines().find(|line| line.contains("No space left")).expect("a line for the operator");
    assert!(line.contains(text(&volume.image)) && line.contains("at byte "), "{line}");
}
