//! `underseal keyslot`, by cryptsetup's judgement.

use crate::command::common::{CHEAP, PASSPHRASE, Place, Ran};
use crate::support::terminal::Terminal;

/// A LUKS1 volume and a LUKS2 volume, and files with other passphrases.
fn volumes() -> Place {
    let place = Place::with_volume();
    place.format("disk1", &["--size", "32M", "--type", "luks1"]);
    for name in ["second", "third"] {
        std::fs::write(place.path(name), format!("{name} passphrase\n")).unwrap();
    }
    place
}

const IMAGES: [&str; 2] = ["disk", "disk1"];

/// `underseal keyslot VERB IMAGE` with the right passphrase.
fn keyslot(place: &Place, verb: &str, image: &str, args: &[&str]) -> Ran {
    place.run(&[&["keyslot", verb, image, "--passphrase-file", "pass"], args].concat())
}

/// `underseal keyslot VERB IMAGE` without one.
fn bare(place: &Place, verb: &str, image: &str, args: &[&str]) -> Ran {
    place.run(&[&["keyslot", verb, image], args].concat())
}

/// Whether cryptsetup opens this keyslot with the first line of the file.
fn theirs_open(place: &Place, image: &str, file: &str, slot: u32) -> bool {
    let text = String::from_utf8(place.read(file)).unwrap();
    let args = ["open", "--test-passphrase", "--key-file", "-", "--key-slot", &slot.to_string(), image];
    let mut command = std::process::Command::new("cryptsetup");
    command.args(args).current_dir(place.path(""));
    crate::command::common::feed(command, text.trim_end_matches('\n').as_bytes()).code == Some(0)
}

fn in_use(place: &Place, image: &str) -> Vec<u64> {
    let list: serde_json::Value =
        serde_json::from_str(&bare(place, "list", image, &["--json"]).succeeds()).unwrap();
    assert_eq!(list["json_version"], 1);
    list["keyslots"].as_array().unwrap().iter().map(|slot| slot["number"].as_u64().unwrap()).collect()
}

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &CHEAP[..]].concat()
}

#[test]
fn keyslots_are_added_changed_and_removed_by_passphrase_and_by_number() {
    let place = volumes();
    for image in IMAGES {
        let add = with(&["--new-passphrase-file", "second", "--new-key-slot", "6"]);
        assert!(keyslot(&place, "add", image, &add).succeeds().contains("keyslot 6 is new"));
        assert!(theirs_open(&place, image, "second", 6), "{image}");
        bare(&place, "test", image, &["--passphrase-file", "second"]).succeeds();
        let change = with(&["--new-passphrase-file", "third"]);
        let number = u32::from(image == "disk1");
        let told = keyslot(&place, "change", image, &change).succeeds();
        assert!(told.contains(&format!("keyslot {number} has the new")), "{told}");
        assert!(theirs_open(&place, image, "third", number), "{image}");
        keyslot(&place, "test", image, &[]).fails(3, "no keyslot opens");
        assert_eq!(in_use(&place, image), [u64::from(number), 6]);
        // The passphrase of a keyslot that stays, not of the one that goes.
        let number = number.to_string();
        bare(&place, "kill", image, &[&number, "--passphrase-file", "third"]).fails(3, "no keyslot opens");
        bare(&place, "kill", image, &[&number, "--passphrase-file", "second"]).succeeds();
        assert_eq!(in_use(&place, image), [6]);
        bare(&place, "kill", image, &[&number, "--force"]).fails(3, "is not in use");
        // The last one.
        let last = ["--passphrase-file", "second"];
        bare(&place, "remove", image, &last).fails(2, "the last one");
        bare(&place, "kill", image, &["6"]).fails(2, "the last one");
        assert_eq!(in_use(&place, image), [6]);
        bare(&place, "remove", image, &[&last[..], &["--force"]].concat()).succeeds();
        assert_eq!(in_use(&place, image), [0; 0]);
    }
}

#[test]
fn both_secrets_come_from_one_descriptor_and_from_parts_of_key_files() {
    let place = volumes();
    for image in IMAGES {
        let args = [
            &["keyslot", "change", image, "--passphrase-fd", "0", "--new-passphrase-fd", "0"][..],
            &CHEAP[..],
        ]
        .concat();
        place.run_with_input(&args, format!("{PASSPHRASE}\nsecond passphrase\n").as_bytes()).succeeds();
        let slot = u32::from(image == "disk1");
        assert!(theirs_open(&place, image, "second", slot), "{image}");
        std::fs::write(place.path("keys"), [&[1; 10][..], &[2; 32], &[3; 5]].concat()).unwrap();
        let new = ["--new-key-file", "keys", "--new-keyfile-offset", "10", "--new-keyfile-size", "32"];
        let old = ["--passphrase-file", "second", "--new-key-slot", "5"];
        bare(&place, "add", image, &with(&[&old[..], &new].concat())).succeeds();
        let theirs = ["--keyfile-offset", "10", "--keyfile-size", "32", "--key-slot", "5", image];
        let open = ["open", "--test-passphrase", "--key-file", "keys"];
        place.tool("cryptsetup", &[&open[..], &theirs].concat());
        let empty = [&old[..], &["--new-key-file", "/dev/null"]].concat();
        bare(&place, "add", image, &with(&empty)).fails(2, "nothing in it");
    }
}

#[test]
fn the_volume_key_takes_the_place_of_a_passphrase() {
    let place = volumes();
    for image in IMAGES {
        let dump =
            ["-q", "luksDump", "--dump-volume-key", "--volume-key-file", "key", "--key-file", "-", image];
        let mut command = std::process::Command::new("cryptsetup");
        command.args(dump).current_dir(place.path(""));
        crate::command::common::feed(command, PASSPHRASE.as_bytes()).succeeds();
        let add = with(&["--volume-key-file", "key", "--new-passphrase-file", "second"]);
        bare(&place, "add", image, &add).succeeds();
        assert!(theirs_open(&place, image, "second", 1), "{image}");
        bare(&place, "test", image, &["--volume-key-file", "key"]).succeeds();
        bare(&place, "test", image, &["--volume-key-file", "second"]).fails(3, "not the key");
        std::fs::remove_file(place.path("key")).unwrap();
    }
}

#[test]
fn a_recovery_key_opens_as_it_was_printed_and_as_it_is_typed() {
    let place = volumes();
    for image in IMAGES {
        let key = keyslot(&place, "recovery-key", image, &[]).succeeds();
        assert_eq!((key.len(), key.matches('-').count()), (72, 7), "{image}");
        std::fs::write(place.path("recovery"), &key).unwrap();
        assert!(theirs_open(&place, image, "recovery", 1), "{image}");
        for typed in [key.clone(), key.replace('-', ""), key.to_uppercase()] {
            std::fs::write(place.path("typed"), typed).unwrap();
            let args = ["--passphrase-file", "typed", "--recovery-key"];
            assert!(bare(&place, "test", image, &args).succeeds().contains("keyslot 1 opens"), "{image}");
            let read = ["read", image, "--length", "512", "-o", "/dev/null", "--passphrase-file", "typed"];
            place.run(&read).succeeds();
        }
        keyslot(&place, "test", image, &["--recovery-key"]).fails(3, "eight groups");
    }
    let dump = place.tool("cryptsetup", &["luksDump", "disk"]);
    assert!(dump.contains("0: systemd-recovery"), "{dump}");
    assert!(bare(&place, "list", "disk", &[]).succeeds().contains("0 systemd-recovery"));
}

#[test]
fn conversion_priorities_and_unbound_keys_are_cryptsetups() {
    let place = volumes();
    let convert = ["--pbkdf", "argon2id", "--pbkdf-force-iterations", "4", "--pbkdf-memory", "1024"];
    keyslot(&place, "convert", "disk", &convert).succeeds();
    assert!(theirs_open(&place, "disk", "pass", 0));
    let dump = place.tool("cryptsetup", &["luksDump", "disk"]);
    assert!(dump.contains("argon2id") && dump.contains("1024"), "{dump}");
    keyslot(&place, "convert", "disk1", &convert).fails(2, "LUKS1 has no key derivation but PBKDF2");
    let cost = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "2000"];
    keyslot(&place, "convert", "disk1", &cost).succeeds();
    assert!(theirs_open(&place, "disk1", "pass", 1));
    let cipher = ["--keyslot-cipher", "aes-cbc-essiv:sha256", "--keyslot-key-size", "128"];
    keyslot(&place, "convert", "disk", &with(&cipher)).succeeds();
    assert!(theirs_open(&place, "disk", "pass", 0));

    bare(&place, "priority", "disk", &["0", "preferred"]).succeeds();
    assert!(place.tool("cryptsetup", &["luksDump", "disk"]).contains("Priority:   preferred"));
    bare(&place, "priority", "disk1", &["1", "preferred"]).fails(2, "no priority");
    bare(&place, "priority", "disk", &["7", "normal"]).fails(3, "not in use");

    let unbound = with(&["--unbound", "--key-size", "128", "--new-passphrase-file", "second"]);
    bare(&place, "add", "disk", &unbound).succeeds();
    let dump = place.tool("cryptsetup", &["luksDump", "disk"]);
    assert!(dump.contains("1: luks2 (unbound)") && dump.contains("Key:        128 bits"), "{dump}");
    let list = bare(&place, "list", "disk", &[]).succeeds();
    assert!(list.contains("not the data's"), "{list}");
    bare(&place, "test", "disk", &["--passphrase-file", "second"]).fails(3, "no keyslot opens");
    bare(&place, "test", "disk", &["--passphrase-file", "second", "--key-slot", "1"]).succeeds();
}

#[test]
fn without_room_for_both_an_overwriting_change_must_be_asked_for() {
    let place = volumes();
    for _ in 1..8 {
        let add = with(&["--new-passphrase-file", "second"]);
        keyslot(&place, "add", "disk1", &add).succeeds();
    }
    let before = place.read("disk1");
    let change = with(&["--new-passphrase-file", "third"]);
    keyslot(&place, "add", "disk1", &change).fails(2, "all keyslots are in use");
    keyslot(&place, "change", "disk1", &change).fails(2, "not safe against a power cut");
    assert!(place.read("disk1") == before);
    keyslot(&place, "change", "disk1", &[&change[..], &["--in-place"]].concat()).succeeds();
    assert!(theirs_open(&place, "disk1", "third", 0) && !theirs_open(&place, "disk1", "pass", 0));
}

#[test]
fn a_detached_header_is_changed_and_its_data_are_not_looked_at() {
    let place = volumes();
    place.format("data", &["--size", "20M", "--header", "header"]);
    let add = with(&["--header", "header", "--new-passphrase-file", "second"]);
    keyslot(&place, "add", "no-such-file", &add).succeeds();
    assert!(theirs_open(&place, "header", "second", 1));
}

#[test]
fn the_last_keyslot_goes_when_somebody_says_yes_twice() {
    let place = volumes();
    let remove = ["keyslot", "remove", "disk", "--passphrase-file", "pass"];
    let mut terminal = Terminal::run(&place.path(""), &remove);
    terminal.sees("the last one").sees("YES in capitals").types("YES\n");
    terminal.sees("lost for ever").sees("YES in capitals").types("no\n");
    assert_eq!(terminal.ends().0, Some(2));
    assert_eq!(in_use(&place, "disk"), [0]);
    let mut terminal = Terminal::run(&place.path(""), &remove);
    terminal
        .sees("YES in capitals")
        .types("YES\n")
        .sees("lost for ever")
        .sees("YES in capitals")
        .types("YES\n");
    assert_eq!(terminal.ends().0, Some(0));
    assert_eq!(in_use(&place, "disk"), [0; 0]);
}

#[test]
fn the_new_passphrase_is_typed_twice_after_the_old_one() {
    let place = volumes();
    let change = [&["keyslot", "change", "disk"][..], &CHEAP[..]].concat();
    let mut terminal = Terminal::run(&place.path(""), &change);
    terminal.sees("Passphrase for disk: ").types("wrong\n").sees("No keyslot opens");
    terminal.sees("Passphrase for disk: ").types(&format!("{PASSPHRASE}\n"));
    terminal.sees("New passphrase for disk: ").types("second passphrase\n");
    terminal.sees("The same again: ").types("second passphrase\n");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(0), "{shown}");
    assert!(theirs_open(&place, "disk", "second", 0));
}

#[test]
fn limits_and_pins_hold_before_anything_is_spent() {
    let place = volumes();
    let info = place.run(&["info", "disk", "--json"]).succeeds();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let digest = info["header_digest"].as_str().unwrap().to_owned();
    let other = format!("sha256:{}", "0".repeat(64));
    let new = with(&["--new-passphrase-file", "second"]);
    let commands: [(&[&str], &[&str]); 8] = [
        (&["keyslot", "add"], &new),
        (&["keyslot", "change"], &new),
        (&["keyslot", "convert"], &CHEAP),
        (&["keyslot", "remove"], &["--force"]),
        (&["keyslot", "kill"], &["0"]),
        (&["keyslot", "test"], &[]),
        (&["keyslot", "recovery-key"], &[]),
        (&["token", "enroll"], &[]),
    ];
    // With a second keyslot, `kill` asks for the passphrase of the remaining one.
    keyslot(&place, "add", "disk", &new).succeeds();
    let before = place.read("disk");
    for (command, args) in commands {
        let run = |secret: &str, trust: &[&str]| {
            let secret = ["disk", "--passphrase-file", secret];
            let enroll: &[&str] = if command[0] == "token" { &["keyring", "none"] } else { &[] };
            place.run(&[command, &secret, args, trust, enroll].concat())
        };
        // The trust options are checked before the passphrase is read: this file does not exist.
        run("absent", &["--header-digest", &other]).fails(6, "the header's digest is");
        run("absent", &["--header-digest", &digest]).fails(6, "the header's digest is");
        run("absent", &["--require-cipher", "serpent-xts-plain64"]).fails(6, "segments.0.encryption");
        run("wrong", &["--max-kdf-time", "0"]).fails(6, "s of key derivation");
        run("wrong", &["--require-cipher", "aes-xts-plain64"]).fails(3, "no keyslot opens");
    }
    assert!(place.read("disk") == before);
    keyslot(&place, "change", "disk", &[&new[..], &["--max-kdf-time", "600"]].concat()).succeeds();
}

#[test]
fn a_luks1_keyslot_that_is_named_keeps_its_number() {
    let place = volumes();
    for number in ["3", "6", "7"] {
        let add = with(&["--new-passphrase-file", "second", "--new-key-slot", number]);
        keyslot(&place, "add", "disk1", &add).succeeds();
        let secrets = ["--passphrase-file", "second", "--new-passphrase-file", "third"];
        let change = with(&[&["--key-slot", number], &secrets[..]].concat());
        bare(&place, "change", "disk1", &change).succeeds();
        assert!(theirs_open(&place, "disk1", "third", number.parse().unwrap()));
        assert!(!theirs_open(&place, "disk1", "second", number.parse().unwrap()));
    }
    assert_eq!(in_use(&place, "disk1"), [0, 3, 6, 7]);
    assert!(theirs_open(&place, "disk1", "pass", 0));
}

#[test]
fn keyslots_change_while_the_volume_is_open() {
    let place = volumes();
    let server = crate::command::common::Server::start(&place, &[]);
    keyslot(&place, "add", "disk", &with(&["--new-passphrase-file", "second"])).succeeds();
    server.stop();
    assert!(theirs_open(&place, "disk", "second", 1));
}
