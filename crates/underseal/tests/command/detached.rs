//! The detached header of an open volume, whose key is nowhere else.

use crate::command::common::{CHEAP, Place, Server};

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
}
