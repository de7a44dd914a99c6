//! FileVault 2 on several disks.

use std::fs;

use sha2::{Digest, Sha256};

use super::{entries, images, listed, run_in, text};
use crate::support::Scratch;

/// A list of keys as a file, as on a recovery partition, beside the passphrase. The list belongs to
/// another volume, which shows only as noise.
#[test]
fn a_list_of_keys_goes_with_a_passphrase() {
    let scratch = Scratch::new();
    fs::copy(images().join("fv-no-19.img"), scratch.path("disk")).unwrap();
    let seed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/fvault2_keys/file");
    scratch.file("EncryptedRoot.plist.wipekey", &fs::read(seed).unwrap()[1..]);
    let entry = entries().into_iter().find(|entry| entry["image"] == "fv-plain.img").unwrap();
    let right = format!("{}\n", entry["passphrases"][0].as_str().unwrap());
    for (secret, code) in [(&right[..], 0), ("wrong\n", 3)] {
        let words = ["read", "disk", "-o", "-", "--key-file", "EncryptedRoot.plist.wipekey"];
        let read =
            run_in(scratch.folder(), &[&words[..], &["--passphrase-fd", "0"]].concat(), secret.as_bytes());
        assert_eq!(read.status.code(), Some(code), "{}", String::from_utf8_lossy(&read.stderr));
    }
}

#[test]
fn a_volume_on_two_disks_is_read_shown_and_put_in_a_table_with_both() {
    let entry = listed("further.json").into_iter().find(|entry| entry["format"] == "fvault2").unwrap();
    let secret = format!("{}\n", entry["passphrases"][0].as_str().unwrap());
    let scratch = Scratch::new();
    for (nth, name) in ["a", "b"].iter().enumerate() {
        fs::copy(images().join(entry["images"][nth].as_str().unwrap()), scratch.path(name)).unwrap();
    }
    let second = fs::read(scratch.path("b")).unwrap();
    let run = |words: &[&str], stdin: &[u8]| run_in(scratch.folder(), words, stdin);
    let digest = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let stdin = ["--passphrase-fd", "0"];
    for (image, device) in [("a", "b"), ("b", "a")] {
        let both = [&[image, "--other-device", device][..], &stdin].concat();
        let read = run(&[&["read"][..], &both, &["-o", "-"]].concat(), secret.as_bytes());
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        assert_eq!(Some(&*digest(&read.stdout)), text(&entry, "plaintext_sha256"));
        let info = run(&["info", image, "--other-device", device], b"");
        assert_eq!(String::from_utf8_lossy(&info.stdout).matches("Physical volume:").count(), 2);
        let table = run(&[&["table", "volume"][..], &both].concat(), secret.as_bytes());
        let said = String::from_utf8_lossy(&table.stdout).into_owned();
        let ends: Vec<&str> = said.lines().map(|line| line.rsplit(' ').nth(1).unwrap()).collect();
        assert_eq!(
            ends.iter().map(|end| end.rsplit('/').next().unwrap()).collect::<Vec<_>>(),
            ["a", "b", "a"]
        );
    }
    for (words, code, why) in [
        (&["read", "a"][..], 2, "try: --other-device IMAGE"),
        (&["read", "a", "--other-device", "a"], 5, "twice"),
        (&["read", "a", "--other-device", "none"], 1, "none"),
        (&["read", "a", "--other-device", "b", "--type", "tcrypt"], 2, "several images are for FileVault 2"),
        (&["read", "a", "--other-device", "b", "--type", "plain"], 2, "several images are for FileVault 2"),
    ] {
        let output = run(&[words, &["-o", "-"], &stdin].concat(), secret.as_bytes());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(code) && said.contains(why),
            "{words:?}: {:?} {said}",
            output.status
        );
    }
    // A disk of the volume is never overwritten by the volume's plain bytes.
    let over = run(&["read", "a", "--other-device", "b", "-o", "b"], secret.as_bytes());
    assert_eq!(over.status.code(), Some(2), "{}", String::from_utf8_lossy(&over.stderr));
    assert!(fs::read(scratch.path("b")).unwrap() == second);
}
