//! Every kind of failure: its exit status, its line, its remedy.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags, poll};

use crate::command::common::{CHEAP, Place, Server, eventually};

#[test]
fn failures_have_stable_statuses_and_say_what_to_do() {
    let place = Place::with_volume();
    place.format("null", &["--size", "32M", "--cipher", "cipher_null-ecb", "--allow-null"]);
    place.format("luks1", &["--size", "8M", "--type", "luks1"]);
    std::fs::write(place.path("empty"), "").unwrap();
    std::fs::write(place.path("short.key"), "123").unwrap();
    File::create(place.path("zeros")).unwrap().set_len(1 << 20).unwrap();
    let disk = place.read("disk");
    std::fs::write(place.path("cut"), &disk[..16 << 20]).unwrap();
    std::fs::write(place.path("stub"), &disk[..8192]).unwrap();
    let mut flipped = disk.clone();
    for at in [5000, 16384 + 5000] {
        flipped[at] ^= 1;
    }
    std::fs::write(place.path("flipped"), flipped).unwrap();

    let table = [
        // Errors in the command line.
        ("format new", 2, "new: does not exist"),
        ("format new --size 0", 2, "no bytes"),
        ("format disk --passphrase-file pass", 2, "holds a LUKS2 volume"),
        ("format luks1 --passphrase-file pass", 2, "holds a LUKS1 volume"),
        ("format flipped --passphrase-file pass", 2, "holds a damaged LUKS header"),
        ("format zeros --size 2M --passphrase-file pass", 2, "there already, of 1 MiB"),
        ("format new --size 32M --passphrase-file empty", 2, "empty"),
        ("format new --size 32M --passphrase-file pass --key-size 100", 2, "bits"),
        ("format new --size 32M --passphrase-file pass --key-size 128", 2, "128 bits"),
        ("format new --size 32M --passphrase-file pass --sector-size 1000", 2, "sector size 1000"),
        ("format new --size 32M --passphrase-file pass --pbkdf pbkdf2 --pbkdf-memory 32", 2, "memory"),
        ("format new --size 32M --passphrase-file pass --pbkdf-force-iterations 1", 2, "too few"),
        ("format new --size 32M --passphrase-file pass --type luks1 --label x", 2, "LUKS1"),
        ("format new --size 32M --passphrase-file pass --cipher rot13-xts-plain64", 2, "rot13"),
        ("format new --size 32M --passphrase-file pass --cipher cipher_null-ecb", 6, "encrypts nothing"),
        ("format new --size 32M --passphrase-fd 99", 2, "descriptor 99 is not open"),
        ("format new --size 32M", 2, "no terminal"),
        ("format new --size 1M --passphrase-file pass", 2, "leave no data"),
        ("format new --size 32M --type plain --header h", 2, "no header"),
        ("format no/such/dir --size 32M --passphrase-file pass", 1, "No such file"),
        (
            "open disk --passphrase-file pass --nbd unix:s --socket-group no-such-group",
            2,
            "there is no group",
        ),
        ("open disk --passphrase-file pass --nbd systemd", 2, "no socket was handed over"),
        ("open disk --passphrase-file pass --nbd tcp:0.0.0.0:0", 2, "plain text"),
        ("open disk --passphrase-file pass --nbd unix:/no/such/dir/s", 1, "unix:/no/such/dir/s"),
        ("open disk --passphrase-file pass --nbd unix:pass", 1, "is no socket"),
        ("open disk --passphrase-file pass --nbd unix:s --tls-certificates .", 2, "server-cert.pem"),
        ("info luks1 --raw-metadata", 2, "LUKS1"),
        // The key.
        ("open disk --nbd unix:s --passphrase-file pass --key-file pass", 2, "--key-file"),
        ("open disk --nbd unix:s --passphrase-file wrong", 3, "no keyslot opens"),
        ("open disk --nbd unix:s --passphrase-file pass --key-slot 7", 3, "7"),
        ("open disk --nbd unix:s --passphrase-file none", 1, "No such file"),
        ("read disk --passphrase-file wrong -o out", 3, "no keyslot opens"),
        ("read disk --key-file pass -o out", 3, "no keyslot opens"),
        ("read disk -o out", 2, "no terminal"),
        ("read zeros --type plain --key-file short.key -o out", 2, "holds 3 bytes"),
        // Errors in the image.
        ("info none", 1, "none: cannot open: No such file"),
        ("info zeros", 5, "no LUKS header"),
        ("info empty", 5, "empty"),
        ("info stub", 5, "stub"),
        ("info flipped", 5, "flipped"),
        ("open zeros --nbd unix:s --passphrase-file pass", 5, "no LUKS header"),
        ("open cut --nbd unix:s --passphrase-file pass", 5, "cut: "),
        ("open flipped --nbd unix:s --passphrase-file pass", 5, "flipped"),
        ("open disk --type luks1 --nbd unix:s --passphrase-file pass", 5, "other LUKS version"),
        ("open null --nbd unix:s --passphrase-file pass", 6, "encrypts nothing"),
        ("open . --nbd unix:s --passphrase-file pass", 1, "cannot open"),
        // Errors in the range of bytes.
        ("read disk --passphrase-file pass --offset 17M -o out", 2, "goes beyond the volume"),
        ("read disk --passphrase-file pass --offset 1 --length 16M -o out", 2, "16 MiB"),
        ("read disk --passphrase-file pass --offset 15E --length 15E -o out", 2, "goes beyond the volume"),
        ("read disk --passphrase-file pass -o disk", 2, "would be overwritten"),
        ("read disk --passphrase-file pass -o pass", 2, "its key would be overwritten"),
        ("read disk --key-file pass -o pass", 2, "its key would be overwritten"),
        ("read disk --passphrase-file pass -o /dev/full", 1, "No space left"),
        ("write disk --passphrase-file pass -i disk", 2, "written into itself"),
        ("write disk --passphrase-file pass --offset 17M", 2, "beyond the volume"),
        ("write disk --passphrase-file pass -i cut --offset 1", 2, "room for 16777215"),
        ("write disk --passphrase-file pass -i none", 1, "none: cannot open"),
    ];
    for (command, code, what) in table {
        let ran = place.run(&command.split(' ').collect::<Vec<_>>());
        eprintln!("{command}\n{}", ran.stderr);
        ran.fails(code, what);
        for made in ["new", "out", "s"] {
            assert!(!place.path(made).exists(), "{command}: leaves {made} behind");
        }
    }
    assert!(place.read("disk") == disk, "nothing was written");
}

#[test]
fn bad_arguments_end_with_status_2() {
    let place = Place::new();
    for command in [
        "",
        "frobnicate",
        "open",
        "open disk --nbd nowhere",
        "open disk --nbd unix:s --max-connections 0",
        "open disk --nbd unix:s --passphrase secret",
        "read disk --offset 1X",
        "read disk --keyfile-size 1",
        "format new --size 1M --pbkdf scrypt",
        "format new --size 1M --hash rot13",
        "format new --size 1M --iter-time 1 --pbkdf-force-iterations 4",
    ] {
        let ran = place.run(&command.split(' ').filter(|arg| !arg.is_empty()).collect::<Vec<_>>());
        assert_eq!(ran.code, Some(2), "{command}: {}", ran.stderr);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{command}");
    }
}

#[test]
fn an_image_in_use_is_refused_with_status_4() {
    let place = Place::with_volume();
    let server = Server::start(&place, &[]);
    for command in ["open disk --nbd unix:other", "read disk -o out", "write disk"] {
        let args = [&command.split(' ').collect::<Vec<_>>()[..], &["--passphrase-file", "pass"]].concat();
        place.run(&args).fails(4, "in use");
    }
    let format = [&["format", "disk", "--force", "--passphrase-file", "pass"], &CHEAP[..]].concat();
    place.run(&format).fails(4, "in use");
    server.stop();
    place.unlock("read", "disk", &["-o", "out"]).succeeds();
}

#[test]
fn readers_share_an_image() {
    let place = Place::with_volume();
    let server = Server::start(&place, &["--read-only"]);
    place.unlock("read", "disk", &["-o", "out"]).succeeds();
    place.unlock("write", "disk", &[]).fails(4, "in use");
    server.stop();
}

#[test]
fn a_closed_pipe_is_an_error_not_a_signal() {
    let place = Place::with_volume();
    for args in
        [&["read", "disk", "--passphrase-file", "pass"][..], &["info", "disk"], &["completions", "bash"]]
    {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        // A process that another test starts at this moment may inherit the reading end for a short
        // time.
        eventually("nobody reads", || {
            let mut fds = [PollFd::new(&write, PollFlags::OUT)];
            poll(&mut fds, None).unwrap();
            fds[0].revents().contains(PollFlags::ERR)
        });
        let output = place.command(args).stdout(Stdio::from(write)).output().unwrap();
        crate::command::common::Ran::from(output).fails(1, "Broken pipe");
    }
}

#[test]
fn one_bad_copy_of_the_header_is_told_and_written_again() {
    for at in [4096 + 500, 16384 + 4096 + 500] {
        let place = Place::with_volume();
        let whole = place.read("disk");
        File::options().write(true).open(place.path("disk")).unwrap().write_all_at(b"#", at).unwrap();

        let told = place.unlock("read", "disk", &["-o", "out"]);
        assert!(told.stderr.contains("opening the volume for writing repairs it"), "{}", told.stderr);
        assert_eq!(told.code, Some(0));
        assert!(place.run(&["info", "disk"]).succeeds().contains("Damage:"));

        let mended = Server::start(&place, &[]).stop();
        assert!(mended.contains("written again"), "{mended}");
        assert!(!place.run(&["info", "disk"]).succeeds().contains("Damage:"));
        place.tool("cryptsetup", &["luksDump", "disk"]);
        assert!(place.read("disk")[32768..] == whole[32768..], "nothing but the header was written");
    }
}

#[test]
fn messages_stay_on_their_line_whatever_a_file_is_called() {
    let place = Place::new();
    let name = "a\nunderseal: forged\x1b[2J";
    let mut file = File::create(place.path(name)).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    place.run(&["info", name]).fails(5, "a?underseal: forged?[2J: no LUKS header");
}
