//! Key files of loop-AES that GPG encrypted with a passphrase.

use std::fs;
use std::process::Stdio;

use sha2::{Digest, Sha256};

use super::{entries, feed, images, run_in, text};
use crate::support::{Scratch, tool};

const PASSPHRASE: &[u8] = b"correct horse\n";

#[test]
fn a_key_file_that_gpg_encrypted_opens_with_its_passphrase() {
    let entry = entries().into_iter().find(|entry| entry["image"] == "loop-v3-128.img").unwrap();
    let scratch = Scratch::new();
    fs::copy(images().join("loop-v3-128.img"), scratch.path("disk")).unwrap();
    fs::copy(images().join("loop-v3.key"), scratch.path("keys")).unwrap();
    fs::create_dir(scratch.path("home")).unwrap();
    for (name, armour) in [("keys.gpg", false), ("keys.asc", true)] {
        let mut gpg = tool("gpg");
        gpg.args([
            "--homedir",
            "home",
            "--batch",
            "--quiet",
            "--no-autostart",
            "--pinentry-mode",
            "loopback",
        ]);
        gpg.args(["--passphrase-fd", "0", "--s2k-count", "65536", "--output", name]);
        gpg.args(armour.then_some("--armor")).args(["--symmetric", "keys"]);
        gpg.current_dir(scratch.folder()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let made = feed(&mut gpg, PASSPHRASE);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    scratch.file("passphrase", PASSPHRASE);
    let options = ["read", "disk", "-o", "-", "--type", "loopaes", "--key-size", "128"];
    let wrapped = fs::read(scratch.path("keys.gpg")).unwrap();
    for (words, stdin) in [
        (&["--key-file", "keys.gpg", "--passphrase-fd", "0"][..], PASSPHRASE),
        (&["--key-file", "keys.asc", "--passphrase-file", "passphrase"], b""),
        (&["--key-file", "-", "--passphrase-file", "passphrase"], &wrapped),
    ] {
        let read = run_in(scratch.folder(), &[&options[..], words].concat(), stdin);
        assert!(read.status.success(), "{words:?}: {}", String::from_utf8_lossy(&read.stderr));
        let digest: String = Sha256::digest(&read.stdout).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(Some(&*digest), text(&entry, "plaintext_sha256"), "{words:?}");
    }
    for (words, stdin, code, why) in [
        (&["--key-file", "keys.gpg", "--passphrase-fd", "0"][..], &b"wrong\n"[..], 3, "keys.gpg: gpg: "),
        (&["--key-file", "keys", "--passphrase-fd", "0"], PASSPHRASE, 2, "is not encrypted"),
    ] {
        let read = run_in(scratch.folder(), &[&options[..], words].concat(), stdin);
        let said = String::from_utf8_lossy(&read.stderr);
        assert!(
            read.status.code() == Some(code) && said.contains(why),
            "{words:?}: {:?} {said}",
            read.status
        );
        assert!(read.stdout.is_empty());
    }
}
