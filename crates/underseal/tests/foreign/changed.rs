//! Passphrases of systems and of old TrueCrypt volumes, whose header has no backup.

use std::fs;
use std::process::Stdio;

use super::{entries, feed, images, options, run_in, text};
use crate::support::{Scratch, tool};

const NEW: &[u8] = b"another passphrase of 20 bytes and more\n";

/// The image, the header, and cryptsetup's option for it.
const CASES: [(&str, &str, &[&str]); 13] = [
    ("tc1-cbc-aes.img", "normal", &[]),
    ("tc1-cbc-aes.img", "hidden", &["--tcrypt-hidden"]),
    ("tc1-cbc-cast5.img", "normal", &[]),
    ("tc2-lrw-serpent-twofish-aes.img", "normal", &[]),
    ("tc2-lrw-twofish.img", "hidden", &["--tcrypt-hidden"]),
    ("tc2-outer-cbc-aes-serpent.img", "normal", &[]),
    ("tc2-inner-cbc-serpent-blowfish_le-aes.img", "normal", &[]),
    ("tc3-serpent-twofish-aes.img", "hidden", &["--tcrypt-hidden"]),
    ("tc3-aes.img", "hidden", &["--tcrypt-hidden"]),
    ("sys-mbr-partition.img", "system", &[]),
    ("sys-mbr-whole.img", "system", &[]),
    ("sys-gpt-partition.img", "system", &[]),
    ("sys-truecrypt.img", "system", &[]),
];

#[test]
fn the_only_header_of_a_system_or_an_old_volume_gets_another_passphrase() {
    for (image, header, dump) in CASES {
        let all = entries();
        let is_it = |entry: &&serde_json::Value| {
            entry["image"] == image && entry["header"] == header && entry["expect"] == "open"
        };
        let entry = all.iter().find(is_it).unwrap();
        let (read, old) = options(entry);
        let words: Vec<&str> = read.iter().map(String::as_str).collect();
        let scratch = Scratch::new();
        let whole = fs::read(images().join(image)).unwrap();
        scratch.file("disk", &whole);
        scratch.file("new", NEW);
        let run = |words: &[&str], stdin: &[u8]| run_in(scratch.folder(), words, stdin);
        let plain = |stdin: &[u8]| run(&[&["read", "disk", "-o", "-"][..], &words].concat(), stdin);
        let before = plain(&old);
        assert!(before.status.success(), "{image}: {}", String::from_utf8_lossy(&before.stderr));
        // The partition is not the header's matter.
        let changed: Vec<&str> =
            words.iter().copied().filter(|word| !matches!(*word, "--partition" | "1")).collect();
        let change = ["keyslot", "change", "disk", "--new-passphrase-file", "new"];
        let done = run(&[&change[..], &changed].concat(), &old);
        assert!(done.status.success(), "{image}: {}", String::from_utf8_lossy(&done.stderr));
        // The header and nothing else.
        let now = fs::read(scratch.path("disk")).unwrap();
        let differ: Vec<usize> = (0..whole.len() / 512)
            .filter(|nth| whole[nth * 512..][..512] != now[nth * 512..][..512])
            .collect();
        let at = match header {
            "system" => 62,
            "hidden" => whole.len() / 512 - 3,
            _ => 0,
        };
        assert_eq!(differ, [at], "{image}");
        let after = plain(NEW);
        assert!(after.status.success(), "{image}: {}", String::from_utf8_lossy(&after.stderr));
        assert!(after.stdout == before.stdout, "{image}");
        // VeraCrypt's many rounds are tried last.
        let few = if words.contains(&"--pim") { &[][..] } else { &["--no-veracrypt"] };
        let wrong = run(&[&["read", "disk", "-o", "-"][..], &words, few].concat(), &old);
        assert_eq!(wrong.status.code(), Some(3), "{image}");
        // cryptsetup reads the same header, except for random fields. Debian's cryptsetup has no
        // other cipher without the kernel's.
        if text(entry, "chain_cryptsetup") == Some("xts aes") && header != "system" {
            let hash = entry["kdf"][0].as_str().unwrap();
            let mut command = tool("cryptsetup");
            command
                .args(["tcryptDump", "disk", "-c", "aes", "-h", hash])
                .args(dump)
                .current_dir(scratch.folder());
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let dumped = feed(&mut command, NEW.strip_suffix(b"\n").unwrap());
            let dumped = String::from_utf8_lossy(&dumped.stdout).into_owned();
            let prf = format!("PBKDF2 hash:\t{hash}");
            assert!(dumped.contains(&prf), "{image}: {dumped}");
        }
    }
}

#[test]
fn a_system_keeps_its_prf_and_takes_another_pim() {
    let scratch = Scratch::new();
    fs::copy(images().join("sys-mbr-partition.img"), scratch.path("disk")).unwrap();
    scratch.file("new", NEW);
    let run = |words: &[&str]| run_in(scratch.folder(), words, b"33vD_xw5bci2rx_\n");
    let change =
        ["keyslot", "change", "disk", "--type", "tcrypt", "--system", "--new-passphrase-file", "new"];
    let secret = ["--pim", "3", "--prf", "sha256", "--passphrase-fd", "0"];
    let other = run(&[&change[..], &secret, &["--new-prf", "whirlpool"]].concat());
    assert_eq!(other.status.code(), Some(2), "{}", String::from_utf8_lossy(&other.stderr));
    let done = run(&[&change[..], &secret, &["--new-pim", "4"]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(String::from_utf8_lossy(&done.stdout).contains("a rescue disk still has one with the old"));
    let info =
        ["info", "disk", "--type", "tcrypt", "--system", "--partition", "1", "--passphrase-file", "new"];
    let said = run(&[&info[..], &["--pim", "4", "--prf", "sha256"]].concat());
    // Systems that a BIOS starts count 2048 rounds for each.
    assert!(
        String::from_utf8_lossy(&said.stdout).contains("8192"),
        "{}",
        String::from_utf8_lossy(&said.stdout)
    );
}
