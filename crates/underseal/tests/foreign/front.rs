//! cryptsetup's actions for these volumes, beside the real one.

use std::os::unix::fs::symlink;
use std::process::{Output, Stdio};

use super::images;
use crate::support::{Scratch, tool};

const PASSPHRASE: &[u8] = b"57Ax63HcjDx-_2G2x9H8apj.s.ibvB.9yq";

fn entry_secret(image: &str, field: &str) -> String {
    let entry = super::entries().into_iter().find(|entry| entry["image"] == image).unwrap();
    let secret = if entry[field].is_array() { &entry[field][0] } else { &entry[field] };
    secret.as_str().unwrap().to_owned()
}

/// Our program under cryptsetup's name.
fn our_name(scratch: &Scratch) -> std::path::PathBuf {
    let path = scratch.path("cryptsetup");
    symlink(env!("CARGO_BIN_EXE_underseal"), &path).unwrap();
    path
}

/// Both programs with the same words and stdin: ours, then the real one.
fn both(words: &[&str], stdin: &[u8]) -> [Output; 2] {
    let scratch = Scratch::new();
    let ours = tool(our_name(&scratch).to_str().unwrap());
    [ours, tool("cryptsetup")].map(|mut command| {
        command.args(words).current_dir(images()).stdin(Stdio::piped()).stdout(Stdio::piped());
        super::feed(command.stderr(Stdio::piped()), stdin)
    })
}

#[test]
fn tcrypt_dump_says_what_cryptsetup_says() {
    for words in [
        &["tcryptDump", "--veracrypt-pim", "1", "vc-aes.img"][..],
        &["tcryptDump", "--veracrypt-pim", "1", "-h", "sha512", "-c", "aes", "vc-aes.img"],
        &["tcryptDump", "-q", "--veracrypt-pim", "1", "--dump-volume-key", "vc-aes.img"],
    ] {
        let [ours, theirs] = both(words, PASSPHRASE);
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(theirs.status.success(), "{words:?}: {theirs:?}");
        assert!(ours.status.success(), "{words:?}: {ours:?}");
        // Later versions of cryptsetup say more.
        for line in text(&theirs).lines() {
            assert!(text(&ours).lines().any(|own| own == line), "{words:?}: {line:?}\n{}", text(&ours));
        }
    }
}

/// Line by line, for every image that cryptsetup reads; the time is local in both.
#[test]
fn dumps_of_bitlocker_and_filevault_are_cryptsetups() {
    let mut same = 0;
    for entry in super::entries() {
        let action = match entry["format"].as_str().unwrap() {
            "bitlk" => "bitlkDump",
            "fvault2" => "fvault2Dump",
            _ => continue,
        };
        let image = entry["image"].as_str().unwrap();
        let [ours, theirs] = both(&[action, image], b"");
        // The manifest names the images that cryptsetup does not read. Forged ones it dumps.
        if !theirs.status.success() || !ours.status.success() {
            continue;
        }
        // cryptsetup takes the last of two 0x001a blocks, and moves no header of a volume without
        // entry 0x0f.
        if ["fv-two-sizes.img", "bl-no-entry15.img"].contains(&image) {
            continue;
        }
        let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text(&ours), text(&theirs), "{image}");
        same += 1;
    }
    assert!(same >= 35, "{same} dumps");
    for (action, image, secret) in [
        ("bitlkDump", "bl-8005-4096.img", entry_secret("bl-8005-4096.img", "passphrase")),
        ("fvault2Dump", "fv-plain.img", entry_secret("fv-plain.img", "passphrases")),
    ] {
        let scratch = Scratch::new();
        let file = scratch.path("key").display().to_string();
        let [ours, theirs] = both(&[action, "-q", "--dump-volume-key", image], secret.as_bytes());
        assert!(ours.status.success() && ours.stdout == theirs.stdout, "{action}: {ours:?}\n{theirs:?}");
        let words = [action, "-q", "--dump-volume-key", "--volume-key-file", &file, image];
        let mut command = tool(our_name(&scratch).to_str().unwrap());
        command.args(words).current_dir(images()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let stored = super::feed(&mut command, secret.as_bytes());
        let (said, key) =
            (String::from_utf8_lossy(&stored.stdout).into_owned(), std::fs::read(&file).unwrap());
        assert!(said.ends_with(&format!("Key stored to file {file}.\n")), "{said}");
        let key: String = key.iter().map(|byte| format!("{byte:02x} ")).collect();
        let rows = String::from_utf8_lossy(&theirs.stdout).replace("\n\t\t", "");
        assert!(rows.contains(&key), "{rows}");
    }
    // A secret is tested, and a key shown, also where the volume's kind or state keeps it closed.
    for image in ["bl-eow.img", "bl-switching.img"] {
        let secret = entry_secret(image, "passphrase");
        let [ours, theirs] = both(&["bitlkDump", "-q", "--dump-volume-key", image], secret.as_bytes());
        assert!(ours.status.success() && ours.stdout == theirs.stdout, "{image}: {ours:?}\n{theirs:?}");
        let test = ["open", "--type", "bitlk", "--test-passphrase", image];
        // Later versions of cryptsetup behave like this: 2.6 refuses the first.
        let [ours, _] = both(&test, secret.as_bytes());
        assert_eq!(ours.status.code(), Some(0), "{image}: {ours:?}");
    }
    let [ours, theirs] = both(&["bitlkDump", "vc-aes.img"], b"");
    assert_eq!((ours.status.code(), &ours.stderr), (theirs.status.code(), &theirs.stderr));
}

#[test]
fn a_passphrase_is_tested_with_cryptsetups_statuses() {
    for (words, stdin, code) in [
        (
            &["open", "--test-passphrase", "--type", "tcrypt", "--veracrypt-pim", "1", "vc-aes.img"][..],
            PASSPHRASE,
            0,
        ),
        (&["tcryptOpen", "--test-passphrase", "--veracrypt-pim", "1", "vc-aes.img"], PASSPHRASE, 0),
        (
            &["tcryptOpen", "--test-passphrase", "--veracrypt-pim", "1", "-h", "sha512", "vc-aes.img"],
            b"wrong",
            2,
        ),
        (
            &["tcryptDump", "--tcrypt-hidden", "--veracrypt-pim", "1", "-h", "sha512", "vc-aes.img"],
            PASSPHRASE,
            2,
        ),
    ] {
        let [ours, _] = both(words, stdin);
        assert_eq!(ours.status.code(), Some(code), "{words:?}: {ours:?}");
        if code == 2 {
            let said = String::from_utf8_lossy(&ours.stderr);
            assert_eq!(said, "No device header detected with this passphrase.\n", "{words:?}");
        }
    }
}
