//! cryptsetup's actions for these volumes, beside the real one.

use std::os::unix::fs::symlink;
use std::process::{Output, Stdio};

use super::images;
use crate::support::{Scratch, tool};

const PASSPHRASE: &[u8] = b"57Ax63HcjDx-_2G2x9H8apj.s.ibvB.9yq";

/// Both programs with the same words and stdin: ours, then the real one.
fn both(words: &[&str], stdin: &[u8]) -> [Output; 2] {
    let scratch = Scratch::new();
    symlink(env!("CARGO_BIN_EXE_underseal"), scratch.path("cryptsetup")).unwrap();
    let ours = tool(scratch.path("cryptsetup").to_str().unwrap());
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
