//! Passphrases that come and go, by one program, and what the other makes of the image then.

use std::fs;

use crate::front::pair::{CHEAP, Pair, all, with_stdin};
use crate::support::tool;

/// An image of each program, with the passphrase "secret".
fn formatted(kind: &str) -> Pair {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "--type", kind, "disk"][..], &CHEAP].concat(), "secret\n");
    pair.file("key", b"bytes of a key\nin two lines\n");
    pair.file("empty", b"");
    pair
}

/// Words and the cheap key derivation.
fn cheap<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &CHEAP[..]].concat()
}

#[test]
fn keyslots_come_and_go_in_both_formats() {
    for kind in ["luks1", "luks2"] {
        let pair = formatted(kind);
        let opens = |passphrase: &str, opens: bool| pair.each_opens_the_others("disk", passphrase, opens);
        pair.succeed(&cheap(&["luksAddKey", "disk"]), "secret\nsecond\n");
        opens("second\n", true);
        pair.succeed(&cheap(&["luksAddKey", "disk", "key", "--new-key-slot", "5"]), "second\n");
        for whose in ["ours", "theirs"] {
            let image = pair.folder(whose).join("disk");
            let words = ["open", "--test-passphrase", "--key-slot", "5", "--key-file", "key"];
            for (who, mut program) in [("ours", pair.ours()), ("theirs", pair.theirs())] {
                let output = crate::support::output(program.args(words).arg(&image));
                assert!(output.status.success(), "{who} on {whose}: {}", all(&output));
            }
        }
        pair.succeed(&cheap(&["luksChangeKey", "disk"]), "second\nthird\n");
        opens("second\n", false);
        opens("third\n", true);
        let convert = ["luksConvertKey", "disk", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "2000"];
        if kind == "luks2" {
            pair.succeed(&convert, "third\n");
            opens("third\n", true);
        }
        pair.succeed(&["luksRemoveKey", "disk"], "third\n");
        opens("third\n", false);
        pair.agree(&["luksKillSlot", "disk", "5"], "wrong\n");
        pair.succeed(&["luksKillSlot", "disk", "5"], "secret\n");
        pair.agree(&["luksKillSlot", "disk", "5"], "secret\n");
        opens("secret\n", true);
        pair.succeed(&["-q", "luksKillSlot", "disk", "0"], "");
        opens("secret\n", false);
    }
}

#[test]
fn refusals_have_their_statuses() {
    for kind in ["luks1", "luks2"] {
        let pair = formatted(kind);
        for (words, stdin) in [
            (&["luksAddKey", "disk"][..], "wrong\nnew\n"),
            (&["luksAddKey", "disk", "absent"], "secret\n"),
            (&["luksAddKey", "disk", "--new-key-slot", "0"], "secret\nnew\n"),
            (&["luksAddKey", "disk", "--new-key-slot", "32"], "secret\nnew\n"),
            (&["luksAddKey", "absent"], "secret\nnew\n"),
            (&["luksRemoveKey", "disk"], "wrong\n"),
            (&["luksChangeKey", "disk"], "wrong\nnew\n"),
            (&["luksChangeKey", "disk", "--key-slot", "3"], "secret\nnew\n"),
            (&["luksKillSlot", "disk"], ""),
            (&["luksKillSlot", "-d", "key", "--keyfile-offset", "100", "disk", "0"], ""),
            (&["luksKillSlot", "disk", "7"], "secret\n"),
            (&["config", "disk"], ""),
        ] {
            let words = if words[0].starts_with("luksA") || words[0].starts_with("luksC") {
                cheap(words)
            } else {
                words.to_vec()
            };
            let said = pair.agree(&words, stdin);
            assert!(!said.ours.status.success(), "{words:?}");
        }
        // An empty key file is no reason to ask for nothing.
        let killed = with_stdin(pair.ours().args(["luksKillSlot", "-d", "empty", "disk", "0"]), "");
        assert!(!killed.status.success(), "{}", all(&killed));
        pair.each_opens_the_others("disk", "secret\n", true);
    }
}

#[test]
fn luks2_has_priorities_and_keys_of_nothing() {
    let pair = formatted("luks2");
    pair.succeed(&cheap(&["luksAddKey", "disk"]), "secret\nsecond\n");
    pair.succeed(&["config", "disk", "--priority", "prefer", "--key-slot", "1"], "");
    pair.succeed(&["config", "disk", "--priority", "ignore", "--key-slot", "0"], "");
    pair.each_opens_the_others("disk", "secret\n", false);
    pair.each_opens_the_others("disk", "second\n", true);
    pair.succeed(&cheap(&["luksAddKey", "--unbound", "--key-size", "256", "disk"]), "odd\n");
    pair.agree(&["open", "--test-passphrase", "disk"], "odd\n");
    pair.succeed(&["open", "--test-passphrase", "--unbound", "disk"], "odd\n");
    let said = pair.succeed(&["-q", "luksDump", "--unbound", "--key-slot", "2", "disk"], "odd\n");
    for said in [&said.ours, &said.theirs] {
        let text = all(said);
        assert!(text.contains("Key bits:\t256\n") && text.contains("Unbound Key:\t"), "{text}");
    }
    pair.agree(&["-q", "luksDump", "--unbound", "--key-slot", "1", "disk"], "second\n");
    pair.agree(&["-q", "luksDump", "--unbound", "disk"], "odd\n");
    for whose in ["ours", "theirs"] {
        fs::copy(pair.folder(whose).join("disk"), pair.folder("ours").join("copy")).unwrap();
        fs::copy(pair.folder(whose).join("disk"), pair.folder("theirs").join("copy")).unwrap();
        let said = pair.succeed(&["luksDump", "copy"], "");
        assert_eq!(said.ours.stdout, said.theirs.stdout);
        assert!(all(&said.ours).contains("2: luks2 (unbound)"), "{}", all(&said.ours));
    }
}

#[test]
fn a_volume_key_opens_and_makes_keyslots() {
    for kind in ["luks1", "luks2"] {
        let pair = Pair::new();
        pair.image("disk", 24 << 20);
        let key: Vec<u8> = (0..64).collect();
        pair.file("vk", &key);
        let format = ["luksFormat", "-q", "--type", kind, "--volume-key-file", "vk", "disk"];
        pair.succeed(&cheap(&format), "secret\n");
        pair.succeed(&["open", "--test-passphrase", "--volume-key-file", "vk", "disk"], "");
        pair.succeed(&cheap(&["luksAddKey", "--volume-key-file", "vk", "disk"]), "second\n");
        pair.each_opens_the_others("disk", "second\n", true);
        let said = pair.succeed(&["-q", "luksDump", "--dump-volume-key", "disk"], "secret\n");
        for said in [&said.ours, &said.theirs] {
            let text = all(said);
            assert!(text.contains("MK dump:\t00 01 02 03") && text.contains("3c 3d 3e 3f"), "{text}");
        }
        pair.succeed(
            &["-q", "luksDump", "--dump-volume-key", "--volume-key-file", "out", "disk"],
            "secret\n",
        );
        assert_eq!(fs::read(pair.folder("ours").join("out")).unwrap(), key);
        // Only so much of the file is the key (since cryptsetup 2.8).
        for (bits, opens) in [("512", true), ("504", false)] {
            let open = ["open", "--test-passphrase", "--volume-key-file", "vk", "-s", bits, "disk"];
            assert_eq!(with_stdin(pair.ours().args(open), "").status.success(), opens, "{bits}");
        }
    }
}

/// Runs our program in a session keyring where the key `us-front` holds a passphrase.
fn with_keyring(pair: &Pair, passphrase: &str, words: &str) -> std::process::Output {
    let script = format!("printf '{passphrase}' | keyctl padd user us-front @s > /dev/null && {words}");
    let mut command = tool("keyctl");
    command.current_dir(pair.folder("ours")).env("UNDERSEAL_MAPPER", pair.folder("mapper"));
    with_stdin(command.args(["session", "-", "sh", "-c", &script]), "new\n")
}

#[test]
fn a_passphrase_of_the_keyring_opens_volumes() {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "disk"][..], &CHEAP].concat(), "sec\nret");
    // The line of stdin ends before the newline; a key of the keyring is taken whole.
    let front = |words: &str| format!("../bin/cryptsetup {words} --key-description us-front disk");
    let opens = |passphrase: &str| with_keyring(&pair, passphrase, &front("open --test-passphrase"));
    assert!(opens("sec").status.success(), "{}", all(&opens("sec")));
    assert_eq!(opens("sec\\n").status.code(), Some(2), "{}", all(&opens("sec\\n")));
    let cheap = CHEAP.join(" ");
    let added = with_keyring(&pair, "sec", &front(&format!("luksAddKey {cheap}")));
    assert!(added.status.success(), "{}", all(&added));
    let theirs = ["open", "--test-passphrase", "disk"];
    let opened = with_stdin(pair.theirs().current_dir(pair.folder("ours")).args(theirs), "new\n");
    assert!(opened.status.success(), "{}", all(&opened));
    // A separate process opens the volume for use.
    let open = format!("{} us-front-name", front("open"));
    let used = with_keyring(&pair, "sec", &format!("{open} && ../bin/cryptsetup close us-front-name"));
    assert!(used.status.success(), "{}", all(&used));
    let none = with_stdin(
        pair.ours().args(["open", "--test-passphrase", "--key-description", "us-none", "disk"]),
        "sec\n",
    );
    assert!(all(&none).contains("Failed to read passphrase from keyring"), "{}", all(&none));
}
