//! Volumes of other systems through the program: TrueCrypt and VeraCrypt, BitLocker, FileVault 2,
//! loop-AES, made by an independent maker; and what is made here, before cryptsetup.

mod changed;
mod disks;
mod front;
mod made;
mod protected;
mod read_only;
mod wrapped;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::Scratch;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/vectors");

/// The images, unpacked once; no test writes to them.
fn images() -> &'static Path {
    static UNPACKED: OnceLock<Scratch> = OnceLock::new();
    let scratch = UNPACKED.get_or_init(|| {
        let scratch = Scratch::new();
        for archive in ["images.tar.xz", "further.tar.xz"] {
            let archive = format!("{FOLDER}/{archive}");
            let unpacked =
                Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(scratch.folder()).status();
            assert!(unpacked.unwrap().success(), "tar and xz unpack the images");
        }
        scratch
    });
    scratch.folder()
}

/// The entries of volumes in one image.
fn entries() -> Vec<Value> {
    let all = ["formats.json", "further.json"].map(listed);
    all.into_iter().flatten().filter(|entry| entry["image"].is_string()).collect()
}

fn listed(manifest: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(format!("{FOLDER}/{manifest}")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    manifest["images"].as_array().unwrap().clone()
}

fn text<'a>(of: &'a Value, field: &str) -> Option<&'a str> {
    of[field].as_str()
}

/// The options of an entry, with the passphrase on stdin where there is one.
fn options(entry: &Value) -> (Vec<String>, Vec<u8>) {
    let mut words: Vec<String> = Vec::new();
    let mut add = |option: &str, value: String| words.extend([format!("--{option}"), value]);
    let mut secret = Vec::new();
    let passphrase = text(entry, "passphrase").or_else(|| entry["passphrases"][0].as_str());
    let passphrase = passphrase.or_else(|| entry["recovery"][0].as_str()).filter(|text| !text.is_empty());
    for file in entry["keyfiles"].as_array().into_iter().flatten() {
        add("key-file", file.as_str().unwrap().into());
    }
    if let Some(file) = text(entry, "keyfile") {
        add("key-file", file.into());
    }
    if let (None, Some(file)) = (passphrase, entry["startup_keys"][0].as_str()) {
        add("key-file", file.into());
    }
    let nothing = text(entry, "passphrase") == Some("") && entry.get("keyfiles").is_none();
    if let Some(passphrase) = passphrase.or(nothing.then_some("")) {
        add("passphrase-fd", "0".into());
        secret = format!("{passphrase}\n").into_bytes();
    }
    match text(entry, "format").unwrap() {
        "tcrypt" => {
            add("type", "tcrypt".into());
            if let Some(pim) = entry["pim"].as_u64().filter(|pim| *pim > 0) {
                add("pim", pim.to_string());
            }
            add("prf", entry["kdf"][0].as_str().unwrap().into());
            if text(entry, "reason") == Some("another chain is asked for") {
                add("cipher", text(entry, "chain_cryptsetup").unwrap().rsplit(' ').next().unwrap().into());
            }
            let flags: &[&str] = match text(entry, "header").unwrap() {
                "hidden" => &["--hidden"],
                "backup" => &["--backup-header"],
                "backup-hidden" => &["--hidden", "--backup-header"],
                "system" => &["--system", "--partition", "1"],
                _ => &[],
            };
            words.extend(flags.iter().map(|flag| (*flag).to_owned()));
        }
        "loopaes" => {
            add("type", "loopaes".into());
            if let Some(bits) = entry["key_bits"].as_u64() {
                add("key-size", bits.to_string());
            }
            if let Some(hash) = text(entry, "hash") {
                add("hash", hash.into());
            }
            let offset = entry["offset_sectors"].as_u64().unwrap_or(0);
            add("data-offset", format!("{offset}s"));
            if let Some(skip) = entry["skip_sectors"].as_u64().filter(|skip| *skip != offset) {
                add("skip", skip.to_string());
            }
        }
        // Both are recognised.
        _ => {}
    }
    (words, secret)
}

/// Runs the program among the images.
fn run(words: &[&str], stdin: &[u8]) -> std::process::Output {
    run_in(images(), words, stdin)
}

fn run_in(folder: &Path, words: &[&str], stdin: &[u8]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_underseal"));
    command.args(words).current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env("UNDERSEAL_RUNTIME_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/run"));
    crate::foreign::feed(command.stderr(Stdio::piped()), stdin)
}

fn feed(command: &mut Command, stdin: &[u8]) -> std::process::Output {
    use std::io::Write;
    let mut child = command.spawn().unwrap();
    // A command that reads nothing may have ended already.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn every_image_reads_as_its_plaintext_or_is_refused_with_a_reason() {
    let (mut read, mut refused) = (0, 0);
    for entry in entries() {
        // The costs of the defaults are those of the library's own test.
        if entry["slow"] == true {
            continue;
        }
        let image = text(&entry, "image").unwrap();
        let (options, secret) = options(&entry);
        let mut words = vec!["read", image, "-o", "-"];
        words.extend(options.iter().map(String::as_str));
        let output = run(&words, &secret);
        let said = String::from_utf8_lossy(&output.stderr);
        if entry["expect"] == "open" {
            assert!(output.status.success(), "{words:?}: {said}");
            assert_eq!(output.stdout.len() as u64, entry["plaintext_size"].as_u64().unwrap(), "{words:?}");
            let digest: String = Sha256::digest(&output.stdout).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(Some(&*digest), text(&entry, "plaintext_sha256"), "{words:?}");
            read += 1;
        } else if output.status.success() {
            // An image that opens here although a refusal is allowed reads as the manifest says.
            let digest: String = Sha256::digest(&output.stdout).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(Some(&*digest), text(&entry, "plaintext_sha256"), "{words:?}");
        } else {
            let code = output.status.code().unwrap();
            assert!(matches!(code, 2 | 3 | 5 | 6), "{words:?}: {code}: {said}");
            assert!(entry["negative"] != true || matches!(code, 3), "{words:?}: {code}: {said}");
            assert!(said.starts_with("underseal: ") && !said.contains("panicked"), "{words:?}: {said}");
            assert!(output.stdout.is_empty(), "{words:?}");
            refused += 1;
        }
    }
    assert!(read >= 120 && refused >= 36, "{read} {refused}");
}

#[test]
fn what_has_a_mark_is_described_without_a_secret_and_what_has_none_with_it() {
    for (words, secret, wants) in [
        (&["info", "bl-8004-512.img"][..], &b""[..], &["Format:         BitLocker", "password"][..]),
        (&["info", "fv-plain.img"], b"", &["Format:         FileVault 2"]),
        (
            &[
                "info",
                "vc-aes.img",
                "--type",
                "tcrypt",
                "--pim",
                "1",
                "--prf",
                "sha512",
                "--passphrase-fd",
                "0",
            ],
            b"57Ax63HcjDx-_2G2x9H8apj.s.ibvB.9yq\n",
            &["Program:        VeraCrypt", "Rounds:         16000", "Cascade:        AES"],
        ),
    ] {
        let output = run(words, secret);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        for want in wants {
            assert!(said.to_lowercase().contains(&want.to_lowercase()), "{words:?}: {want}: {said}");
        }
    }
    let json = run(&["info", "bl-8004-512.img", "--json"], b"");
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["format"], "bitlk");
}

#[test]
fn options_that_do_not_go_together_are_refused_before_anything_is_tried() {
    for (words, why) in [
        (&["read", "vc-aes.img", "--type", "tcrypt", "--pim", "2147469"][..], "from 1 to 2147468"),
        (&["read", "vc-aes.img", "--type", "tcrypt", "--prf", "md5"], "no PRF of VeraCrypt"),
        (
            &["read", "vc-aes.img", "--type", "tcrypt", "--cipher", "aes-twofish", "--passphrase-fd", "0"],
            "invalid value",
        ),
        (&["read", "vc-aes.img", "--type", "tcrypt", "--hidden", "--system"], "cannot be used with"),
        (&["read", "vc-aes.img", "--type", "tcrypt", "--hidden-pim", "3"], "--protect-hidden"),
        (
            &["read", "vc-aes.img", "--partition", "1", "--type", "tcrypt", "--passphrase-fd", "0"],
            "no partition table",
        ),
        (&["read", "sys-gpt-partition.img", "--partition", "9", "--type", "tcrypt"], "no partition 9"),
        (&["read", "vc-aes.img", "--type", "tcrypt", "--key-file", "none"], "cannot read the key file"),
        (&["read", "loop-v1-128.img", "--type", "loopaes"], "key file"),
        (&["read", "vc-aes.img", "--key-file", "key-a", "--key-file", "key-b"], "--type tcrypt"),
    ] {
        let output = run(&[words, &["-o", "-"]].concat(), b"secret\n");
        let said = String::from_utf8_lossy(&output.stderr);
        let code = output.status.code();
        assert!(matches!(code, Some(1 | 2 | 5)), "{words:?}: {code:?} {said}");
        assert!(said.contains(why), "{words:?}: {said}");
    }
}

#[test]
fn a_table_reads_the_same_bytes_and_a_chain_has_none() {
    for (image, secret, words) in [
        ("vc-aes.img", "57Ax63HcjDx-_2G2x9H8apj.s.ibvB.9yq", &["--type", "tcrypt", "--pim", "1"][..]),
        ("bl-8000-512.img", "", &[]),
        ("bl-8003-4096.img", "", &[]),
        ("loop-v3-128.img", "", &["--type", "loopaes", "--key-file", "loop-v3.key", "--key-size", "128"]),
    ] {
        let entry = entries().into_iter().find(|entry| entry["image"] == image).unwrap();
        let (options, stdin) = options(&entry);
        let plain_words: Vec<&str> = match secret {
            "" if words.is_empty() => options.iter().map(String::as_str).collect(),
            "" => words.to_vec(),
            _ => [words, &["--passphrase-fd", "0"]].concat(),
        };
        let stdin = if secret.is_empty() { stdin } else { format!("{secret}\n").into_bytes() };
        let table = run(&[&["table", "volume", image][..], &plain_words].concat(), &stdin);
        assert!(table.status.success(), "{image}: {}", String::from_utf8_lossy(&table.stderr));
        let read = run(&["table", "decrypt", "--table", "-", "-o", "-"], &table.stdout);
        assert!(read.status.success(), "{image}: {}", String::from_utf8_lossy(&read.stderr));
        let digest: String = Sha256::digest(&read.stdout).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(Some(&*digest), text(&entry, "plaintext_sha256"), "{image}");
    }
    let chain =
        ["table", "volume", "vc-twofish-aes.img", "--type", "tcrypt", "--pim", "1", "--passphrase-fd", "0"];
    let refused = run(&chain, b"dabDH2jxssnnHsbC7Du_\n");
    assert_eq!(refused.status.code(), Some(6), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("a chain"));
}
