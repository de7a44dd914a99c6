//! The protection of a hidden volume, through an export.

use std::fs;

use serde_json::Value;

use super::{entries, images, text};
use crate::support::nbd::Client;
use crate::support::volume::underseal;
use crate::support::{Scratch, Server};

fn outer(image: &str) -> Value {
    let find = |entry: &Value| entry["image"] == image && entry.get("hidden_protection").is_some();
    entries().into_iter().find(find).unwrap()
}

/// A server of the outer volume of a copy of the image, with its hidden volume protected.
fn serve(scratch: &Scratch, entry: &Value) -> Server {
    let image = scratch.path("image");
    fs::copy(images().join(text(entry, "image").unwrap()), &image).unwrap();
    let hidden = &entry["hidden_protection"];
    let outer = scratch.file("outer", text(entry, "passphrase").unwrap().as_bytes());
    let inner = scratch.file("inner", text(hidden, "passphrase").unwrap().as_bytes());
    let mut command = underseal();
    command.arg("open").arg(&image).args(["--type", "tcrypt"]);
    command.arg("--passphrase-file").arg(outer).arg("--protect-hidden");
    command.arg("--hidden-passphrase-file").arg(inner);
    for (option, of) in [("--pim", entry), ("--hidden-pim", hidden)] {
        if let Some(pim) = of["pim"].as_u64().filter(|pim| *pim > 0) {
            command.args([option, &pim.to_string()]);
        }
    }
    Server::start_command(command, &[])
}

#[test]
fn a_write_that_touches_the_hidden_volume_is_refused_and_so_is_every_later_one() {
    for image in ["vc-hidden.img", "tc5-hidden.img"] {
        let entry = outer(image);
        for refused in entry["hidden_protection"]["refused_writes"].as_array().unwrap() {
            let (offset, len) = (refused[0].as_u64().unwrap(), refused[1].as_u64().unwrap());
            let scratch = Scratch::new();
            let server = serve(&scratch, &entry);
            let mut client = Client::connect(&server.socket()).unwrap();
            client.write(0, &[7; 512]).unwrap();
            client.flush().unwrap();
            let before = fs::read(scratch.path("image")).unwrap();
            let data = vec![7; usize::try_from(len).unwrap()];
            assert_eq!(client.write(offset, &data), Err(1), "{image}: {offset}: EPERM");
            assert_eq!(client.write(0, &[8; 512]), Err(1), "{image}: a write elsewhere");
            let mut other = Client::connect(&server.socket()).unwrap();
            assert_eq!(other.write(1024, &[8; 512]), Err(1), "{image}: of another client");
            assert_eq!(other.read(0, 512).unwrap(), [7; 512], "{image}: reads go on");
            let log = server.stop();
            assert!(log.contains("protected hidden volume"), "{log}");
            assert!(fs::read(scratch.path("image")).unwrap() == before, "{image}: {offset}");
        }
    }
}

#[test]
fn writes_before_the_hidden_volume_are_what_the_manifest_says() {
    let entry = outer("vc-hidden.img");
    let scratch = Scratch::new();
    let server = serve(&scratch, &entry);
    let mut client = Client::connect(&server.socket()).unwrap();
    for write in entry["writes"].as_array().unwrap() {
        let (offset, len) = (write[0].as_u64().unwrap(), write[1].as_u64().unwrap());
        let bytes: Vec<u8> = (0..len).map(|i| (7 * (offset + i) + 13).to_le_bytes()[0]).collect();
        client.write(offset, &bytes).unwrap();
    }
    client.flush().unwrap();
    server.stop();
    let after = <sha2::Sha256 as sha2::Digest>::digest(fs::read(scratch.path("image")).unwrap());
    let after: String = after.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(Some(&*after), text(&entry, "image_sha256_after"));
}
