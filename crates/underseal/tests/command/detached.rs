//! The detached header of an open volume, whose key is nowhere else.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;

use underseal_device::lock_image;

use crate::command::common::{CHEAP, Place, Server};
use crate::support::mounts::{Loop, cannot_mount, skip};

/// Commands that would make another volume of the header are refused while a server has it, of
/// either version, although the server's image is another file.
#[test]
fn a_header_stays_that_of_the_open_volume() {
    for (version, other) in [("luks1", "luks2"), ("luks2", "luks1")] {
        let place = Place::new();
        let plain_size = ["--size", "32M", "--header"];
        place.format("disk", &[&["--type", version][..], &plain_size, &["head"]].concat());
        place.format("second", &[&["--type", version][..], &plain_size, &["other"]].concat());
        place.run(&["header", "backup", "other", "backup"]).succeeds();
        let server = Server::start(&place, &["--header", "head"]);
        let before = place.read("head");
        let anew = |arguments: &[&'static str]| {
            [&["format"], arguments, &["-q", "--force", "--passphrase-file", "pass"], &CHEAP].concat()
        };
        for change in [
            vec!["header", "set", "head", "--uuid", "00000000-0000-4000-8000-000000000007"],
            vec!["header", "convert", "head", "--to", other, "--force"],
            vec!["header", "restore", "head", "backup", "--force"],
            // The image that is named is another one than the server's.
            vec![
                "header",
                "set",
                "second",
                "--header",
                "head",
                "--uuid",
                "00000000-0000-4000-8000-000000000007",
            ],
            vec!["header", "convert", "second", "--header", "head", "--to", other, "--force"],
            vec!["read", "second", "--header", "other", "--passphrase-file", "pass", "-o", "head"],
            anew(&["third", "--size", "8M", "--header", "head"]),
            anew(&["head", "--type", other]),
        ] {
            place.run(&change).fails(4, "");
            assert!(place.read("head") == before, "{version}: {change:?}");
        }
        // Keyslots change beside the server.
        let add = ["keyslot", "add", "head", "--passphrase-file", "pass", "--new-key-file", "wrong"];
        place.run(&[&add[..], &CHEAP].concat()).succeeds();
        server.stop();
        place.unlock("read", "disk", &["--header", "head", "--length", "4096"]).succeeds();
        place.run(&["header", "restore", "head", "backup", "--force"]).succeeds();
    }
}

/// A disk with one partition from the first MiB on.
fn disk_with_partition(place: &Place, name: &str) {
    let mut record = [0; 512];
    record[446..462].copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0xa0, 0, 0]);
    record[510..].copy_from_slice(&[0x55, 0xaa]);
    fs::write(place.path(name), record).unwrap();
    File::options().write(true).open(place.path(name)).unwrap().set_len(32 << 20).unwrap();
}

#[test]
fn a_header_of_a_volume_in_a_partition_is_locked_too() {
    let place = Place::new();
    place.format("part", &["--size", "20M", "--header", "head"]);
    disk_with_partition(&place, "disk");
    let server = Server::start(&place, &["--header", "head", "--partition", "1"]);
    let anew = ["format", "part", "--header", "head", "-q", "--force", "--passphrase-file", "pass"];
    place.run(&[&anew[..], &CHEAP].concat()).fails(4, "in use");
    server.stop();
    place.run(&[&anew[..], &CHEAP].concat()).succeeds();
}

/// A command that waits for a passphrase, and will replace the header, has it locked already.
#[test]
fn a_header_that_is_about_to_be_replaced_opens_no_volume() {
    let place = Place::new();
    place.format("disk", &["--size", "20M", "--header", "head"]);
    let replacing = File::options().read(true).write(true).open(place.path("head")).unwrap();
    lock_image(&replacing, "head", true).unwrap();
    place.unlock("read", "disk", &["--header", "head", "--length", "512"]).fails(4, "in use");
    drop(replacing);
    place.unlock("read", "disk", &["--header", "head", "--length", "512"]).succeeds();
    // A volume's own image may be named as its header.
    place.format("whole", &["--size", "32M"]);
    let own = ["--header", "whole", "--length", "512"];
    place.unlock("read", "whole", &own).succeeds();
    place.unlock("write", "whole", &own[..2]).succeeds();
}

#[test]
fn a_header_on_a_loop_device_is_locked_as_its_file() {
    if let Some(reason) = cannot_mount() {
        return skip("a header on a loop device", reason);
    }
    let place = Place::new();
    place.format("disk", &["--size", "20M", "--header", "head"]);
    let device = Loop::attach(&place.path("head"), &[]);
    let header = device.device().to_str().unwrap();
    let server = Server::start(&place, &["--header", header]);
    let anew = [
        "format",
        "disk2",
        "--size",
        "20M",
        "--header",
        "head",
        "-q",
        "--force",
        "--passphrase-file",
        "pass",
    ];
    place.run(&[&anew[..], &CHEAP].concat()).fails(4, "in use");
    server.stop();
}

/// The output of `read` may be another volume's image.
#[test]
fn an_image_in_use_is_no_output() {
    let place = Place::with_volume();
    place.format("second", &["--size", "32M"]);
    let server = Server::start(&place, &[]);
    let before = place.read("disk");
    place.unlock("read", "second", &["-o", "disk"]).fails(4, "in use");
    assert!(place.read("disk") == before);
    server.stop();
    // Files that are no images are shared.
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    lock_image(&null, "null", true).unwrap();
    place.unlock("read", "disk", &["-o", "/dev/null"]).succeeds();
    if let Some(reason) = cannot_mount() {
        return skip("a mounted disk", reason);
    }
    fs::write(place.path("other"), vec![7; 1 << 20]).unwrap();
    let device = Loop::attach(&place.path("other"), &[]);
    // As the kernel has the disk of a mounted file system.
    let mounted = File::options().read(true).custom_flags(libc::O_EXCL).open(device.device()).unwrap();
    place.unlock("read", "disk", &["-o", device.device().to_str().unwrap()]).fails(4, "in use");
    drop(mounted);
}
