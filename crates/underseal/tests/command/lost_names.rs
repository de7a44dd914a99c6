//! Files that another program replaces while a command that changes their header waits for input.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use crate::command::common::{CHEAP, Place, Ran};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::{run, tool};

const NEW: &str = "another passphrase of this test";

/// Runs a command that reads from the pipe `fifo`, and replaces the file `name` by a copy before
/// the command gets `input`. Asserts that the command fails.
fn notices_a_replaced_file(place: &Place, name: &str, args: &[&str], input: &str) {
    let mut command = place.command(args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = None;
    wait_until("the command reads", PATIENCE, || {
        pipe = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(place.path("fifo")).ok();
        pipe.is_some()
    });
    fs::copy(place.path(name), place.path("copy")).unwrap();
    fs::rename(place.path("copy"), place.path(name)).unwrap();
    pipe.unwrap().write_all(input.as_bytes()).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert!(ran.code == Some(1) && ran.stderr.contains("removed"), "{args:?}: {:?} {}", ran.code, ran.stderr);
}

#[test]
fn no_change_of_a_header_is_acknowledged_once_its_file_was_replaced() {
    let place = Place::with_volume();
    run(tool("mkfifo").arg(place.path("fifo")));
    fs::write(place.path("new"), NEW).unwrap();
    let change = ["--passphrase-file", "pass", "--new-passphrase-file", "fifo"];
    let keyslot = |verb| [&["keyslot", verb, "disk"], &change[..], &CHEAP[..]].concat();
    let cases: [(&[&str], &str); 3] = [
        (&keyslot("add"), NEW),
        (&keyslot("change"), NEW),
        (&["token", "import", "disk", "--json-file", "fifo"], r#"{"type":"mine","keyslots":[]}"#),
    ];
    for (args, input) in cases {
        notices_a_replaced_file(&place, "disk", args, input);
        place.run(&["keyslot", "test", "disk", "--passphrase-file", "new"]).fails(3, "no keyslot opens");
        place.run(&["keyslot", "test", "disk", "--passphrase-file", "pass"]).succeeds();
    }
    let secret = ["--pim", "1", "--passphrase-file", "pass"];
    place
        .run(&[&["format", "other", "--type", "veracrypt", "--size", "2M"], &secret[..]].concat())
        .succeeds();
    let veracrypt = [&["--type", "tcrypt"], &secret[..]].concat();
    let args = [&["keyslot", "change", "other", "--new-passphrase-file", "fifo"], &veracrypt[..]].concat();
    notices_a_replaced_file(&place, "other", &[&args[..], &["--new-pim", "1"]].concat(), NEW);
    place.run(&[&["info", "other"], &veracrypt[..]].concat()).succeeds();
}

/// The new header and the new passphrase end with the command, where the name is another file's.
#[test]
fn no_format_is_acknowledged_once_the_image_was_replaced() {
    let place = Place::new();
    run(tool("mkfifo").arg(place.path("fifo")));
    File::create(place.path("disk")).unwrap().set_len(32 << 20).unwrap();
    let args = [&["format", "disk", "-q", "--passphrase-file", "fifo"], &CHEAP[..]].concat();
    notices_a_replaced_file(&place, "disk", &args, NEW);
}
