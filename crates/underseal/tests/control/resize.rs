//! A volume that gets another size while it is served.

use std::fs::File;
use std::path::Path;

use crate::control::operator::Operator;
use crate::support::mounts::{Loop, cannot_mount, skip};
use crate::support::nbd::Client;
use crate::support::volume::{CHEAP_PBKDF2, PASSPHRASE, Volume, text, underseal};
use crate::support::{Scratch, Server, run, tool};

const MIB: u64 = 1 << 20;
/// The bytes before the data of [`Volume::luks2`].
const HEADER: u64 = 16 * MIB;
const EINVAL: u32 = 22;

fn set_len(image: &Path, size: u64) {
    File::options().write(true).open(image).unwrap().set_len(size).unwrap();
}

/// The size that a client sees when it connects now.
fn size_for_qemu(server: &Server) -> u64 {
    let info = run(tool("qemu-img").args(["info", "--output=json", "-f", "raw", &server.uri()]));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    info["virtual-size"].as_u64().unwrap()
}

#[test]
fn a_served_volume_grows_with_its_image_and_shrinks_as_it_is_told() {
    let operator = Operator::new();
    let (volume, server) = operator.open(&[]);
    let old = 32 * MIB;
    let mut client = Client::connect(&server.socket()).unwrap();
    assert_eq!((client.size, operator.status("image")["size"].as_u64()), (old, Some(old)));
    client.write(old - 4096, &[1; 4096]).unwrap();
    assert!(client.write(old, &[2; 4096]).is_err());

    // A size beyond the image's end is refused.
    operator.is_refused("resize image --size 33M", 2, "cut short");
    assert_eq!(operator.status("image")["size"], old);
    set_len(&volume.image, HEADER + 40 * MIB);
    assert!(operator.does("resize image").contains(&(40 * MIB).to_string()));
    client.write(old, &[2; 4096]).unwrap();
    assert_eq!(client.read(old, 4096).unwrap(), [2; 4096]);
    assert_eq!(
        (size_for_qemu(&server), operator.status("image")["size"].as_u64()),
        (40 * MIB, Some(40 * MIB))
    );

    operator.does("resize image --size 8M");
    assert_eq!(client.read(old, 4096), Err(EINVAL));
    assert!(client.write(8 * MIB, &[3; 4096]).is_err());
    assert_eq!(size_for_qemu(&server), 8 * MIB);
    let server_log = server.log();
    assert!(!server_log.contains("sandbox"), "{server_log}");
    for (size, why) in [("0", "last segment"), ("4097", "4096-byte sectors"), ("1G", "cut short")] {
        operator.is_refused(&format!("resize image --size {size}"), 2, why);
    }
    assert_eq!(operator.status("image")["size"], 8 * MIB);

    // The bytes beyond the smaller size are still there, and `--size` does not carry over to the
    // next resize.
    operator.does("suspend image");
    operator.does("resize image");
    operator.does("resume image");
    assert_eq!(client.read(old, 4096).unwrap(), [2; 4096]);
    operator.does("resize image --size 8M");
    drop(client);
    server.stop();
    assert_eq!(volume.size(), 40 * MIB);
    assert_eq!(volume.read(old - 4096, 8192), [[1; 4096], [2; 4096]].concat());
}

#[test]
fn plain_volumes_and_the_last_line_of_tables_are_resized() {
    let operator = Operator::new();
    let plain = Volume::at(&operator.scratch, "image").with(["--type", "plain", "--size", "4M"]);
    operator.scratch.sparse("image", 8 * MIB);
    let server = operator.serve(&plain, &[]);
    assert_eq!(size_for_qemu(&server), 4 * MIB);
    operator.does("resize image --size 6M");
    assert_eq!(size_for_qemu(&server), 6 * MIB);
    operator.does("resize image");
    assert_eq!(size_for_qemu(&server), 8 * MIB);
    server.stop();

    let (a, b) = (operator.scratch.sparse("a", MIB), operator.scratch.sparse("b", 2 * MIB));
    let key = "5d3c91f07a62e8b4c1479f0326ad58ee90b7f41c3ad8652e7bf60914c28da3e7";
    let lines = format!(
        "0 2048 crypt aes-xts-plain64 {key} 0 {} 0\n2048 1024 crypt aes-xts-plain64 {key} 0 {} 0",
        text(&a),
        text(&b)
    );
    let table = operator.scratch.file("two", lines.as_bytes());
    let mut command = operator.command("table open --table");
    command.arg(&table);
    let server = Server::start_command(command, &[]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(MIB, &[4; 4096]).unwrap();
    set_len(&a, 4 * MIB);
    operator.does("resize two");
    assert_eq!(size_for_qemu(&server), 3 * MIB);
    client.write(3 * MIB - 4096, &[5; 4096]).unwrap();
    operator.is_refused("resize two --size 1M", 2, "last segment");
    operator.does("resize two --size 1028K");
    assert_eq!(client.read(MIB, 4096).unwrap(), [4; 4096]);
    assert_eq!(client.read(MIB + 4096, 4096), Err(EINVAL));
    drop(client);
    server.stop();
}

#[test]
fn a_volume_over_another_server_grows_with_what_that_serves() {
    let (operator, below) = (Operator::new(), Operator::new());
    let (image, lower) = below.open(&[]);
    let scratch = Scratch::new();
    let passphrase = scratch.file("above.pass", PASSPHRASE.as_bytes());
    let volume = Volume { image: lower.uri().into(), passphrase, options: Vec::new() };
    let mut format = underseal();
    format.arg("format").arg(&volume.image).args(["-q", "--force"]).args(CHEAP_PBKDF2);
    run(format.arg("--passphrase-file").arg(&volume.passphrase));
    let server = operator.serve(&volume, &["--name", "above"]);
    let mut client = Client::connect(&server.socket()).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    assert_eq!(client.size, 16 * MIB);
    set_len(&image.image, HEADER + 48 * MIB);
    operator.does("resize above");
    assert_eq!(size_for_qemu(&server), 16 * MIB, "the lower volume has not grown yet");
    below.does("resize image");
    operator.does("resize above");
    assert_eq!(size_for_qemu(&server), 32 * MIB);
    client.write(32 * MIB - 4096, &[2; 4096]).unwrap();
    assert_eq!(client.read(32 * MIB - 4096, 4096).unwrap(), [2; 4096]);
    assert!(!server.log().contains("sandbox"), "{}", server.log());
    drop(client);
    server.stop();
    lower.stop();
}

#[test]
fn a_volume_on_a_block_device_grows_with_it() {
    if let Some(reason) = cannot_mount() {
        return skip("a resized block device", reason);
    }
    let operator = Operator::new();
    let image = Volume::luks2(&operator.scratch, "48M");
    let device = Loop::attach(&image.image, &["--sector-size", "4096"]);
    let volume = Volume { image: device.device().into(), ..image.clone() };
    for options in [&[][..], &["--direct"]] {
        let server = operator.serve(&volume, &[&["--name", "image"], options].concat());
        let before = operator.status("image")["size"].as_u64().unwrap();
        let mut client = Client::connect(&server.socket()).unwrap();
        set_len(&image.image, HEADER + before + 8 * MIB);
        operator.does("resize image");
        assert_eq!(operator.status("image")["size"], before, "the device has not grown yet");
        run(tool("losetup").arg("--set-capacity").arg(device.device()));
        operator.does("resize image");
        assert_eq!(operator.status("image")["size"], before + 8 * MIB, "{options:?}");
        client.write(before + 8 * MIB - 4096, &[1; 4096]).unwrap();
        assert_eq!(client.read(before + 8 * MIB - 4096, 4096).unwrap(), [1; 4096]);
        drop(client);
        let log = server.stop();
        assert!(!log.contains("sandbox"), "{log}");
    }
}

#[test]
fn a_volume_without_its_key_keeps_its_size() {
    let operator = Operator::new();
    let (_, server) = operator.open(&[]);
    operator.does("suspend image --wipe");
    operator.is_refused("resize image --size 8M", 3, "key is not set");
    operator.is_refused("resize nobody", 2, "no volume nobody is open");
    operator.does("close image");
    drop(server);
}
