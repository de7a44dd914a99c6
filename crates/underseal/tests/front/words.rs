//! Statuses, refusals, and output.

use crate::front::pair::{CHEAP, Pair, all};

fn formatted(kind: &str) -> Pair {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    let words = [&["luksFormat", "-q", "--type", kind, "disk", "--label", "work"][..], &CHEAP].concat();
    let words: Vec<&str> = if kind == "luks1" {
        words.into_iter().filter(|word| !["--label", "work"].contains(word)).collect()
    } else {
        words
    };
    pair.succeed(&words, "secret\n");
    pair
}

#[test]
fn both_end_with_the_same_status() {
    let pair = formatted("luks2");
    pair.file("plain", b"no header here");
    let cases: &[(&[&str], &str)] = &[
        (&["isLuks", "disk"], ""),
        (&["isLuks", "--type", "luks2", "disk"], ""),
        (&["isLuks", "--type", "luks1", "disk"], ""),
        (&["isLuks", "plain"], ""),
        (&["isLuks", "absent"], ""),
        (&["luksUUID", "plain"], ""),
        (&["luksUUID", "absent"], ""),
        (&["luksDump", "plain"], ""),
        (&["luksDump", "absent"], ""),
        (&["luksDump", "--type", "luks1", "disk"], ""),
        (&["luksDump"], ""),
        (&["luksDump", "disk", "more"], ""),
        (&["sing", "disk"], ""),
        (&[], ""),
        (&["luksDump", "--sing", "disk"], ""),
        (&["luksDump", "--allow-discards", "disk"], ""),
        (&["open", "--test-passphrase", "disk"], "secret\n"),
        (&["open", "--test-passphrase", "disk"], "secret"),
        (&["open", "--test-passphrase", "disk"], "wrong\n"),
        (&["luksOpen", "--test-passphrase", "disk"], ""),
        (&["luksOpen", "--test-passphrase", "plain"], "secret\n"),
        (&["luksOpen", "--test-passphrase", "-S", "0", "disk"], "secret\n"),
        (&["luksOpen", "--test-passphrase", "-S", "1", "disk"], "secret\n"),
        (&["luksOpen", "--test-passphrase", "--key-file", "-", "disk"], "secret"),
        (&["luksOpen", "--test-passphrase", "--key-file", "-", "disk"], "secret\n"),
        (&["luksOpen", "--test-passphrase", "-d", "-", "-l", "6", "disk"], "secret and more"),
        (&["luksOpen", "--test-passphrase", "-d", "absent", "disk"], ""),
        (&["--version"], ""),
        (&["--help"], ""),
    ];
    for (words, stdin) in cases {
        pair.agree(words, stdin);
    }
}

#[test]
fn a_dump_is_laid_out_as_theirs() {
    for kind in ["luks1", "luks2"] {
        let pair = formatted(kind);
        pair.share("disk");
        for words in [&["luksDump", "disk"][..], &["luksUUID", "disk"]] {
            let said = pair.succeed(words, "");
            assert_eq!(
                String::from_utf8_lossy(&said.ours.stdout),
                String::from_utf8_lossy(&said.theirs.stdout)
            );
        }
    }
    let pair = formatted("luks2");
    pair.share("disk");
    let said = pair.succeed(&["luksDump", "--dump-json-metadata", "disk"], "");
    let parsed = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    assert_eq!(parsed(&said.ours.stdout), parsed(&said.theirs.stdout));
}

#[test]
fn verbose_says_how_it_went() {
    let pair = formatted("luks2");
    for (words, stdin) in [
        (["-v", "open", "--test-passphrase", "disk"], "secret\n"),
        (["-v", "open", "--test-passphrase", "disk"], "wrong\n"),
        (["-v", "isLuks", "--type=luks1", "disk"], ""),
    ] {
        let said = pair.agree(&words, stdin);
        let (ours, theirs) = (all(&said.ours), all(&said.theirs));
        for line in
            ["Key slot 0 unlocked.", "Command successful.", "Command failed with code", "No key available"]
        {
            assert_eq!(
                ours.contains(line),
                theirs.contains(line),
                "{words:?}: {line}\nours: {ours}\ntheirs: {theirs}"
            );
        }
    }
}

#[test]
fn what_is_not_done_here_is_said_to_be() {
    let pair = formatted("luks2");
    for words in [
        &["reencrypt", "--type", "luks1", "disk"][..],
        &["luksFormat", "-q", "--integrity", "hmac-sha256", "--integrity-legacy-padding", "disk"],
        &["close", "--deferred", "name"],
    ] {
        let output = crate::front::pair::with_stdin(pair.ours().args(words), "secret\n");
        assert_eq!(output.status.code(), Some(1), "{words:?}: {}", all(&output));
        assert!(all(&output).contains("supported"), "{words:?}: {}", all(&output));
    }
    let said = pair.run(&["open", "--test-passphrase", "disk"], "secret\n");
    assert!(said.ours.status.success(), "nothing was touched: {}", all(&said.ours));
}

#[test]
fn an_argument_that_is_missing_is_named() {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    let words = ["reencrypt", "-q", "--encrypt", "--offset", "16384", "disk"];
    let output = crate::front::pair::with_stdin(pair.ours().args(words), "secret\n");
    assert!(!output.status.success());
    assert!(all(&output).contains("--reduce-device-size"), "{}", all(&output));
}
