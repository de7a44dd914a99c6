//! `underseal header`, and what a header is held to.

use std::os::unix::fs::{FileExt, PermissionsExt};

use serde_json::Value;

use crate::command::common::{PASSPHRASE, Place, Ran, Server};
use crate::support::mounts::{Loop, cannot_mount, skip};
use crate::support::terminal::Terminal;

fn damage(place: &Place, image: &str, at: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(place.path(image)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// An argument that is none.
#[track_caller]
fn refused(ran: &Ran, what: &str) {
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains(what), "{:?} lacks {what:?}", ran.stderr);
}

fn opens(place: &Place, image: &str) -> bool {
    place.unlock("read", image, &["--length", "512", "-o", "-"]).code == Some(0)
}

#[test]
fn a_backup_is_a_new_file_for_its_owner_and_comes_back() {
    let place = Place::with_volume();
    let said = place.run(&["header", "backup", "disk", "backup"]).succeeds();
    assert!(said.contains("16 MiB"), "{said}");
    let mode = std::fs::metadata(place.path("backup")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o400);
    place.run(&["header", "backup", "disk", "backup"]).fails(1, "File exists");
    let theirs = ["luksHeaderBackup", "disk", "--header-backup-file", "theirs"];
    place.tool("cryptsetup", &theirs);
    assert!(place.read("backup") == place.read("theirs"));

    damage(&place, "disk", 0, &vec![0; 1 << 20]);
    assert!(!opens(&place, "disk"));
    place.run(&["header", "restore", "disk", "backup"]).succeeds();
    assert!(opens(&place, "disk"));
    place.tool(
        "cryptsetup",
        &[
            "open",
            "--test-passphrase",
            "--key-file",
            "pass",
            "--keyfile-size",
            &PASSPHRASE.len().to_string(),
            "disk",
        ],
    );
    place.run(&["header", "restore", "disk", "pass"]).fails(5, "pass: the backup");
    // A header file that was made for a restore that fails goes again: this one may not grow.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" header restore disk backup --header new";
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", script, env!("CARGO_BIN_EXE_underseal")]).current_dir(place.path(""));
    assert_eq!(limited.output().unwrap().status.code(), Some(5));
    assert!(!place.path("new").exists());
    place.run(&["header", "restore", "disk", "backup", "--header", "new"]).succeeds();
}

#[test]
fn a_backup_of_another_volume_is_put_back_when_asked_twice_only() {
    let place = Place::with_volume();
    place.run(&["header", "backup", "disk", "backup"]).succeeds();
    place.format("disk", &["--force"]);
    let before = place.read("disk");
    let restore = ["header", "restore", "disk", "backup"];
    place.run(&restore).fails(2, "another volume");
    for answers in [&["no\n"][..], &["YES\n", "yes\n"]] {
        let mut terminal = Terminal::run(&place.path(""), &restore);
        answers.iter().for_each(|answer| {
            terminal.sees("YES in capitals").types(answer);
        });
        assert_eq!(terminal.ends().0, Some(2));
    }
    assert!(place.read("disk") == before);
    let mut terminal = Terminal::run(&place.path(""), &restore);
    terminal.sees("another volume").sees("YES in capitals").types("YES\n");
    terminal.sees("Really?").sees("YES in capitals").types("YES\n");
    assert_eq!(terminal.ends().0, Some(0));
    assert!(opens(&place, "disk"));
    place.format("disk", &["--force"]);
    place.run(&[&restore[..], &["--force"]].concat()).succeeds();
    assert!(opens(&place, "disk"));
}

#[test]
fn a_damaged_header_is_explained_and_repaired() {
    let place = Place::with_volume();
    let sound = place.run(&["header", "check", "disk"]).succeeds();
    assert!(sound.contains("LUKS2 header is sound"), "{sound}");
    place.run(&["header", "repair", "disk"]).succeeds();
    damage(&place, "disk", 5000, b"!!");
    let check = place.run(&["header", "check", "disk"]);
    check.fails(5, "1 thing is damaged");
    assert!(check.stdout.contains("checksum") && check.stdout.contains("header repair"), "{}", check.stdout);
    let json = place.run(&["header", "check", "disk", "--json"]);
    assert_eq!(json.code, Some(5));
    let report: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&report["sound"], &report["findings"][0]["damage"]), (&false.into(), &true.into()));
    let said = place.run(&["header", "repair", "disk"]).succeeds();
    assert!(said.contains("written again"), "{said}");
    place.run(&["header", "check", "disk"]).succeeds();
    // Other data at the header's place may be wanted, so repair needs --force.
    damage(&place, "disk", 0, &[0; 4096]);
    damage(&place, "disk", 510, &[0x55, 0xaa]);
    place.run(&["header", "repair", "disk"]).fails(2, "boot sector");
    place.run(&["header", "repair", "disk", "--force"]).succeeds();
    place.run(&["header", "check", "disk"]).succeeds();
    damage(&place, "disk", 40_960, &[0; 4096]);
    let check = place.run(&["header", "check", "disk"]);
    check.fails(5, "1 thing is damaged");
    assert!(check.stdout.contains("keyslots.0.area: 4096 bytes at byte 40960 are zeros"), "{}", check.stdout);
}

#[test]
fn names_change_and_keyslots_go_while_the_volume_is_open() {
    let place = Place::with_volume();
    let server = Server::start(&place, &[]);
    place.run(&["header", "set", "disk", "--label", "work", "--flag", "allow-discards"]).succeeds();
    let info: Value = serde_json::from_str(&place.run(&["info", "disk", "--json"]).succeeds()).unwrap();
    assert_eq!((&info["label"], &info["flags"][0]), (&"work".into(), &"allow-discards".into()));
    place.run(&["header", "set", "disk", "--no-flag", "allow-discards"]).succeeds();
    refused(&place.run(&["header", "set", "disk"]), "required");
    refused(&place.run(&["header", "set", "disk", "--flag", "x"]), "none of allow-discards");
    place.run(&["header", "convert", "disk", "--to", "luks1"]).fails(4, "disk");
    place.run(&["header", "erase", "disk"]).fails(2, "all 1 keyslots");
    let mut terminal = Terminal::run(&place.path(""), &["header", "erase", "disk"]);
    terminal.sees("YES in capitals").types("YES\n");
    terminal.sees("Really?").sees("YES in capitals").types("YES\n");
    assert_eq!(terminal.ends().0, Some(0));
    server.stop();
    place.unlock("read", "disk", &["-o", "-"]).fails(3, "no keyslot");
}

#[test]
fn a_header_is_converted_and_back() {
    let place = Place::new();
    place.format("disk", &["--size", "32M", "--sector-size", "512"]);
    for (to, name) in [("luks1", "luks1"), ("luks2", "luks2")] {
        place.run(&["header", "convert", "disk", "--to", to]).succeeds();
        assert!(place.run(&["info", "disk"]).succeeds().contains(name));
        assert!(opens(&place, "disk"));
        place.tool("cryptsetup", &["luksDump", "disk"]);
    }
    place.run(&["header", "convert", "disk", "--to", "luks2"]).fails(2, "already");
    // Conversion drops the parts that LUKS1 cannot express only after a confirmation.
    let names = ["--label", "work", "--subsystem", "sub", "--flag", "allow-discards"];
    place.run(&[&["header", "set", "disk"], &names[..]].concat()).succeeds();
    place.run(&["keyslot", "priority", "disk", "0", "preferred"]).succeeds();
    let convert = ["header", "convert", "disk", "--to", "luks1"];
    let before = place.read("disk");
    let lost = "label \"work\", subsystem \"sub\", flag \"allow-discards\", priority preferred of keyslot 0";
    place.run(&convert).fails(2, lost);
    assert!(place.read("disk") == before);
    place.run(&[&convert[..], &["--force"]].concat()).succeeds();
    assert!(opens(&place, "disk"));
    place.tool("cryptsetup", &["luksDump", "disk"]);
}

#[test]
fn the_volume_key_goes_to_a_new_file_or_the_terminal_only() {
    let place = Place::new();
    let key: Vec<u8> = (0..64).map(|byte| byte * 3 + 1).collect();
    std::fs::write(place.path("key"), &key).unwrap();
    let layout = ["--metadata-size", "64K", "--keyslots-size", "1M", "--volume-key-file", "key"];
    place.format("disk", &[&["--size", "32M"][..], &layout].concat());
    let info = place.run(&["info", "disk"]).succeeds();
    assert!(info.contains("65536 bytes") && info.contains("1048576 bytes"), "{info}");
    let dump = ["header", "dump-key", "disk", "--passphrase-file"];
    place.run(&[&dump[..], &["pass"]].concat()).fails(2, "on a terminal only");
    place.run(&[&dump[..], &["wrong", "-o", "out"]].concat()).fails(3, "no keyslot opens");
    place.run(&[&dump[..], &["pass", "-o", "out"]].concat()).succeeds();
    assert_eq!(place.read("out"), key);
    assert_eq!(std::fs::metadata(place.path("out")).unwrap().permissions().mode() & 0o777, 0o400);
    place.run(&[&dump[..], &["pass", "-o", "out"]].concat()).fails(1, "File exists");
    let piped = place.run(&[&dump[..], &["pass", "-o", "-"]].concat());
    assert_eq!((piped.code, &piped.bytes, place.path("-").exists()), (Some(0), &key, false));
    let (code, said) = Terminal::run(&place.path(""), &[&dump[..], &["pass", "-o", "-"]].concat()).ends();
    assert!(code == Some(2) && said.contains("would go to the terminal"), "{said}");
    let (code, shown) = Terminal::run(&place.path(""), &[&dump[..], &["pass"]].concat()).ends();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(code == Some(0) && shown.contains(&hex) && shown.contains("whoever has this key"), "{shown}");
}

#[test]
fn a_header_is_held_to_what_was_pinned() {
    let place = Place::with_volume();
    let info: Value = serde_json::from_str(&place.run(&["info", "disk", "--json"]).succeeds()).unwrap();
    let digest = info["header_digest"].as_str().unwrap().to_owned();
    let read =
        |args: &[&str]| place.unlock("read", "disk", &[&["--length", "512", "-o", "-"], args].concat());
    read(&["--header-digest", &digest, "--require-cipher", "aes-xts-plain64"]).succeeds();
    read(&["--require-cipher", "serpent-xts-plain64"]).fails(6, "segments.0.encryption: aes-xts-plain64");
    let (kind, hex) = digest.split_at(7);
    let other = format!("{kind}{}{}", if hex.starts_with("00") { "11" } else { "00" }, &hex[2..]);
    read(&["--header-digest", &other]).fails(6, "the header's digest is");
    refused(&read(&["--header-digest", "sha256:12"]), "64 hex digits");
    place.run(&["header", "set", "disk", "--flag", "allow-discards"]).succeeds();
    read(&["--header-digest", &digest]).fails(6, "the header's digest is");
}

#[test]
fn what_a_key_derivation_costs_is_bounded_before_it_is_spent() {
    let place = Place::new();
    let costly = [
        "--size",
        "32M",
        "--pbkdf",
        "argon2id",
        "--pbkdf-force-iterations",
        "4",
        "--pbkdf-memory",
        "65536",
        "--pbkdf-parallel",
        "1",
    ];
    place.run(&[&["format", "disk", "--passphrase-file", "pass"], &costly[..]].concat()).succeeds();
    let read =
        |args: &[&str]| place.unlock("read", "disk", &[&["--length", "512", "-o", "-"], args].concat());
    read(&["--max-kdf-memory", "64M", "--max-kdf-time", "600"]).succeeds();
    read(&["--max-kdf-memory", "63M"]).fails(6, "KiB of Argon2 memory");
    read(&["--max-kdf-time", "0"]).fails(6, "s of key derivation");
}

#[test]
fn no_header_is_put_into_an_image_that_a_server_has_for_something_else() {
    let place = Place::with_volume();
    place.run(&["header", "backup", "disk", "backup"]).succeeds();
    let image = std::fs::File::create_new(place.path("plain")).unwrap();
    image.set_len(32 << 20).unwrap();
    let served = std::fs::File::options().read(true).write(true).open(place.path("plain")).unwrap();
    underseal_device::lock_image(&served, "plain", true).unwrap();
    place.run(&["header", "restore", "plain", "backup"]).fails(4, "close it first");
    match cannot_mount() {
        Some(reason) => skip("a loop device over the image", reason),
        None => {
            let device = Loop::attach(&place.path("plain"), &[]);
            let device = device.device().to_str().unwrap();
            place.run(&["header", "restore", device, "backup"]).fails(4, "close it first");
        }
    }
    assert!(place.read("plain").iter().all(|byte| *byte == 0));
    drop(served);
    place.run(&["header", "restore", "plain", "backup"]).succeeds();
}

/// A reencryption that keeps the key gives the data another cipher: the digests are the same.
#[test]
fn a_backup_with_another_cipher_needs_consent() {
    let place = Place::with_volume();
    place.run(&["header", "backup", "disk", "before"]).succeeds();
    let begin = ["--keep-key", "--cipher", "serpent-xts-plain64", "--init-only", "-q", "--force"];
    place.unlock("reencrypt", "disk", &begin).succeeds();
    place.run(&["header", "backup", "disk", "amid"]).succeeds();
    place.unlock("reencrypt", "disk", &["--resume-only", "-q"]).succeeds();
    place.run(&["header", "backup", "disk", "after"]).succeeds();
    let header = place.read("disk");
    for backup in ["before", "amid"] {
        place.run(&["header", "restore", "disk", backup]).fails(2, "reencrypted since the backup");
        assert!(place.read("disk") == header, "{backup}");
    }
    place.run(&["header", "restore", "disk", "after"]).succeeds();
    assert!(opens(&place, "disk"));
}

/// The lock that keeps cryptsetup's reencryption off an open volume has the UUID's name.
#[test]
fn an_open_volume_keeps_its_uuid() {
    let place = Place::with_volume();
    let served = std::fs::File::options().read(true).write(true).open(place.path("disk")).unwrap();
    underseal_device::lock_image(&served, "disk", true).unwrap();
    let uuid = "00000000-0000-4000-8000-000000000007";
    place.run(&["header", "set", "disk", "--uuid", uuid]).fails(4, "in use");
    place.run(&["header", "set", "disk", "--label", "beside"]).succeeds();
    drop(served);
    place.run(&["header", "set", "disk", "--uuid", uuid]).succeeds();
    assert!(opens(&place, "disk"));
}
