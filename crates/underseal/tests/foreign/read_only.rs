//! Volumes that take no writes whatever the options say, through an export.

use std::fs;

use super::{entries, images, text};
use crate::support::nbd::Client;
use crate::support::volume::underseal;
use crate::support::{Scratch, Server, output};

/// Each client's queue opens the image again, in the sandbox, as it is open: for writing.
#[test]
fn a_volume_that_takes_no_writes_serves_its_clients() {
    for image in ["fv-two-segments.img", "bl-paused.img"] {
        let entry = entries().into_iter().find(|entry| entry["image"] == image).unwrap();
        let scratch = Scratch::new();
        let copy = scratch.path("image");
        fs::copy(images().join(image), &copy).unwrap();
        let secret = text(&entry, "passphrase").or_else(|| entry["passphrases"][0].as_str()).unwrap();
        let secret = scratch.file("pass", secret.as_bytes());
        let command = |verb| {
            let mut command = underseal();
            command.arg(verb).arg(&copy).arg("--passphrase-file").arg(&secret);
            command
        };
        let plain = output(command("read").args(["--length", "8192"])).stdout;
        let server = Server::start_command(command("open"), &[]);
        let mut client = Client::connect(&server.socket()).unwrap();
        assert!(client.read(0, 8192).unwrap() == plain, "{image}");
        assert_eq!(client.write(0, &[7; 512]), Err(1), "{image}: EPERM");
        server.stop();
    }
}
