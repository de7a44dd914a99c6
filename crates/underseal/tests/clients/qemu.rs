//! qemu-io and qemu-img as clients.

use std::process::Command;

use crate::support::volume::{Volume, text};
use crate::support::{Scratch, Server, bytes, run, seed, tool};

/// Runs qemu-io commands on one connection. A pattern that is not found, or a request that fails,
/// fails the test.
fn qemu_io(server: &Server, commands: &[&str]) {
    let mut qemu_io = tool("qemu-io");
    qemu_io.args(["-f", "raw"]);
    for command in commands {
        qemu_io.args(["-c", command]);
    }
    let said = run(qemu_io.arg(server.uri()));
    assert!(!said.contains("verification failed") && !said.contains("failed:"), "{said}");
}

fn qemu_img(args: &[&str]) -> Command {
    let mut command = tool("qemu-img");
    command.args(args);
    command
}

#[test]
fn qemu_io_finds_its_patterns() {
    let scratch = Scratch::new();
    for (i, open) in [&[][..], &["--direct"]].into_iter().enumerate() {
        let volume = Volume::at(&scratch, &format!("image{i}")).format("32M", &["--sector-size", "4096"]);
        let server = Server::start(&volume, open);
        qemu_io(
            &server,
            &[
                "write -P 0xa5 0 64k",
                "write -P 0x5a 64k 1M",
                // Less than a sector: qemu reads, merges and writes, for it was told the block
                // size.
                "write -P 0x11 1000 3000",
                "read -P 0xa5 0 1000",
                "read -P 0x11 1000 3000",
                "read -P 0xa5 4000 61536",
                "read -P 0x5a 64k 1M",
                "write -f -P 0x77 3M 128k",
                "write -z 64k 512k",
                "read -P 0 64k 512k",
                "read -P 0x5a 576k 512k",
                "write -z -u 3M 64k",
                "read -P 0 3M 64k",
                "read -P 0x77 3136k 64k",
                "aio_write -P 1 4M 256k",
                "aio_write -P 2 5M 256k",
                "aio_write -P 3 6M 4k",
                "aio_flush",
                "aio_read -P 1 4M 256k",
                "aio_read -P 2 5M 256k",
                "aio_read -P 3 6M 4k",
                "aio_flush",
                "flush",
                "map",
            ],
        );
        server.stop();
    }
}

#[test]
fn qemu_img_copies_to_and_from_a_volume_and_finds_them_equal() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "40M");
    let len = usize::try_from(volume.size()).unwrap();
    // With holes, which qemu writes as zeroes.
    let mut plain = bytes(seed("qemu-img"), len);
    plain[3 << 20..9 << 20].fill(0);
    plain[len - (1 << 20)..].fill(0);
    let plain = scratch.file("plain", &plain);

    let server = Server::start(&volume, &[]);
    let uri = server.uri();
    let compare =
        |with: &str, format: &str| run(&mut qemu_img(&["compare", "-f", format, "-F", "raw", with, &uri]));
    run(&mut qemu_img(&["convert", "-n", "-m", "8", "-W", "-f", "raw", "-O", "raw", text(&plain), &uri]));
    assert!(compare(text(&plain), "raw").contains("identical"));
    let copy = scratch.path("copy.qcow2");
    run(&mut qemu_img(&["convert", "-m", "8", "-W", "-f", "raw", "-O", "qcow2", &uri, text(&copy)]));
    run(&mut qemu_img(&["check", text(&copy)]));
    assert!(compare(text(&copy), "qcow2").contains("identical"));
    server.stop();
    assert!(volume.read_all() == std::fs::read(plain).unwrap(), "what is on the image");
}
