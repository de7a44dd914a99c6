//! Volumes that keep a tag beside each sector: made, opened, checked.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::Value;

use crate::command::common::{CHEAP, Place, Server};

/// Ciphers and their types of integrity.
const KINDS: [(&str, &str); 6] = [
    ("aes-xts-plain64", "hmac-sha256"),
    ("aes-xts-random", "hmac-sha512"),
    ("aes-gcm-random", "aead"),
    ("chacha20-random", "poly1305"),
    ("aegis128-random", "aead"),
    ("aes-xts-random", "none"),
];

fn format(place: &Place, cipher: &str, kind: &str, args: &[&str]) {
    let these = ["--size", "24M", "--cipher", cipher, "--integrity", kind];
    place.format("disk", &[&these[..], args].concat());
}

#[test]
fn what_is_made_is_wiped_and_reads_back_what_is_written() {
    for (cipher, kind) in KINDS {
        let place = Place::new();
        format(&place, cipher, kind, &[]);
        let info: Value = serde_json::from_str(&place.run(&["info", "disk", "--json"]).succeeds()).unwrap();
        let segment = &info["segments"][0];
        assert_eq!(segment["cipher"], cipher, "{segment}");
        let shown = kind.split_once('-').map_or(kind.into(), |(mac, hash)| format!("{mac}({hash})"));
        assert_eq!(segment["integrity"], shown, "{segment}");
        let all = place.unlock("read", "disk", &[]);
        assert_eq!(all.code, Some(0), "{}", all.stderr);
        let all = all.bytes;
        assert!(all.len() > 6 << 20 && all.len() < 8 << 20 && all.iter().all(|byte| *byte == 0), "{cipher}");
        let noise = place.noise("noise", 3_000_001);
        let cached = ["--tag-cache", "32K"];
        place
            .unlock("write", "disk", &[&["-i", "noise", "--offset", "12345"][..], &cached].concat())
            .succeeds();
        let back = place.unlock("read", "disk", &["--offset", "12345", "--length", "3000001"]);
        assert!(back.bytes == noise, "{cipher} {kind}: {}", back.stderr);
        if kind == "none" {
            place.unlock("check", "disk", &[]).fails(6, "not authenticated");
        } else {
            assert!(place.unlock("check", "disk", &[]).succeeds().contains("as it was written"));
        }
        place.unlock("open", "disk", &["--allow-discards", "--nbd", "unix:s"]).fails(6, "no discards");
    }
}

#[test]
fn what_was_changed_on_the_image_is_found() {
    let place = Place::new();
    format(&place, "aes-gcm-random", "aead", &[]);
    let noise = place.noise("noise", 4 << 20);
    place.unlock("write", "disk", &["-i", "noise"]).succeeds();
    // Somewhere amid the data: one byte in each of two places.
    let image = File::options().read(true).write(true).open(place.path("disk")).unwrap();
    for at in [20 << 20, (20 << 20) + 3 * 4096] {
        let mut byte = [0];
        image.read_exact_at(&mut byte, at).unwrap();
        image.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }
    drop(image);
    let checked = place.unlock("check", "disk", &[]);
    let found: Vec<u64> =
        checked.stdout.lines().map(|line| line.split(' ').nth(1).unwrap().parse().unwrap()).collect();
    assert_eq!((checked.code, found.len()), (Some(1), 2), "{} {}", checked.stdout, checked.stderr);
    assert_eq!(found[1] - found[0], 3 * 4096);
    assert!(checked.stderr.contains("8192 bytes"), "{}", checked.stderr);
    place.unlock("read", "disk", &["-o", "back"]).fails(1, "not as it was written");
    let zeros = place.unlock("read", "disk", &["-o", "back", "--length", "4M", "--on-error", "zero"]);
    assert_eq!(zeros.code, Some(1));
    let back = place.read("back");
    let bad = |at: usize| found.iter().any(|from| (*from..from + 4096).contains(&(at as u64)));
    assert!(back.len() == 4 << 20);
    assert!((0..back.len()).all(|at| back[at] == if bad(at) { 0 } else { noise[at] }));
    // A client's read fails with EIO, and the server reports the mismatch to its operator.
    let server = Server::start(&place, &["--name", "mismatches"]);
    let script = format!("h.pread(4096, {})", found[0]);
    let read = place.nbdsh(server.uri(), &script).output().unwrap();
    assert!(String::from_utf8_lossy(&read.stderr).contains("Input/output error"), "{read:?}");
    let status = place.run(&["status", "mismatches", "--json"]).succeeds();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["mismatches"]["count"], 1, "{status}");
    assert_eq!(status["mismatches"]["first"][0], found[0], "{status}");
    // `check` of an open volume is done by its server, by the volume's name and by its image's.
    for which in ["mismatches", "disk"] {
        let open = place.run(&["check", which]);
        assert_eq!((open.code, &open.stdout), (Some(1), &checked.stdout), "{}", open.stderr);
        assert!(open.stderr.contains("8192 bytes"), "{}", open.stderr);
    }
    place.run(&["check", "disk", "--require-integrity", "aead"]).fails(2, "is open");
    place.run(&["suspend", "mismatches"]).succeeds();
    place.run(&["check", "mismatches"]).fails(1, "suspended");
    place.run(&["resume", "mismatches"]).succeeds();
    place.nbdsh(server.uri(), &format!("h.pwrite(bytes(16384), {})", found[0])).status().unwrap();
    assert!(place.run(&["check", "mismatches"]).succeeds().contains("as it was written"));
    // A folder with the volume's name does not hide the volume; a file does, and an error says so.
    std::fs::create_dir(place.path("mismatches")).unwrap();
    place.run(&["check", "mismatches"]).succeeds();
    std::fs::remove_dir(place.path("mismatches")).unwrap();
    place.noise("mismatches", 4096);
    let hidden = place.run(&["check", "mismatches"]);
    hidden.fails(5, "`mismatches` is ./mismatches here");
    assert!(hidden.stderr.contains(&place.text("disk")), "{}", hidden.stderr);
}

#[test]
fn the_integrity_that_is_required_is_the_headers() {
    let place = Place::new();
    let require = |kind: &str, command: &str| {
        place.unlock(command, "disk", &["--require-cipher", "aes-gcm-random", "--require-integrity", kind])
    };
    format(&place, "aes-gcm-random", "aead", &["--integrity-no-wipe"]);
    for command in ["check", "read", "write", "open"] {
        require("hmac-sha256", command).fails(6, "segments.0.integrity.type: aead is not hmac(sha256)");
    }
    require("aead", "read").fails(1, "not as it was written");
    place.format("plain", &["--size", "24M"]);
    let none = place.unlock("read", "plain", &["--require-integrity", "aead"]);
    none.fails(6, "segments.0.integrity.type: nothing is not aead");
    let useless = place.unlock("read", "plain", &["--require-integrity", "none"]);
    assert_eq!(useless.code, Some(2));
    assert!(useless.stderr.contains("protects from nothing"), "{}", useless.stderr);
    let plain = ["--type", "plain", "--require-integrity", "aead"];
    place.unlock("read", "plain", &plain).fails(2, "a plain volume");
}

#[test]
fn an_image_on_which_the_layer_does_not_fit_is_left_as_it_was() {
    let place = Place::new();
    // A header, 16 MiB, and not enough behind it for a section of a journal.
    let disk = place.noise("disk", (16 << 20) + (64 << 10));
    let head = place.noise("head", 1 << 20);
    let format = ["format", "disk", "--force", "--passphrase-file", "pass", "--cipher", "aes-gcm-random"];
    let all = [&format[..], &CHEAP, &["--integrity", "aead"]].concat();
    place.run(&all).fails(2, "too small");
    assert!(place.read("disk") == disk, "nothing was written");
    let small = place.noise("small", 64 << 10);
    let all: Vec<&str> = all.iter().map(|word| if *word == "disk" { "small" } else { *word }).collect();
    place.run(&[&all[..], &["--header", "head"]].concat()).fails(2, "too small");
    assert!(place.read("small") == small && place.read("head") == head);
    place.run(&[&all[..], &["--size", "16448K"]].concat()).fails(2, "too small");
    assert!(place.read("small") == small, "its size is as it was, too");
}

#[test]
fn without_a_wipe_what_was_never_written_is_not_readable() {
    let place = Place::new();
    format(&place, "aegis128-random", "aead", &["--integrity-no-wipe", "--integrity-no-journal"]);
    place.unlock("read", "disk", &["-o", "out", "--length", "4096"]).fails(1, "not as it was written");
    place.unlock("write", "disk", &["-i", "pass"]).fails(1, "not as it was written");
    let noise = place.noise("noise", 8192);
    place.unlock("write", "disk", &["-i", "noise"]).succeeds();
    assert!(place.unlock("read", "disk", &["--length", "8192"]).bytes == noise);
    let info = place.run(&["info", "disk", "--json"]).succeeds();
    assert!(info.contains("no-journal"), "{info}");
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let place = Place::new();
    let refused = |args: &[&str], why: &str| {
        let all = ["format", "disk", "--size", "24M", "--passphrase-file", "pass"];
        let ran = place.run(&[&all[..], &CHEAP, args].concat());
        assert!(ran.code == Some(2) && ran.stderr.contains(why), "{args:?}: {}", ran.stderr);
        assert!(!place.path("disk").exists());
    };
    refused(&["--type", "luks1", "--integrity", "hmac-sha256"], "only LUKS2");
    refused(&["--integrity", "aead"], "is not known");
    refused(&["--integrity", "aead", "--cipher", "aes-gcm-plain64"], "nonce");
    // 64 bytes are no AES-256 in XTS with a MAC.
    place.noise("key", 64);
    refused(&["--integrity", "hmac-sha256", "--volume-key-file", "key"], "key");
    refused(&["--integrity", "crc32c"], "want hmac-HASH");
    refused(&["--integrity-no-wipe"], "--integrity");
}

#[test]
fn tags_are_not_made_over_an_images_data_without_a_question() {
    let place = Place::new();
    let noise = place.noise("disk", 8 << 20);
    let format = ["format", "disk", "--header", "head", "--passphrase-file", "pass"];
    let format = [&format[..], &CHEAP, &["--integrity", "hmac-sha256"]].concat();
    place.run(&format).fails(2, "disk: holds data");
    assert!(place.read("disk") == noise && !place.path("head").exists());
    place.run(&[&format[..], &["--force"]].concat()).succeeds();
    place.unlock("check", "disk", &["--header", "head"]).succeeds();
}
