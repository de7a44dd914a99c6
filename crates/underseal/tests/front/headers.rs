//! What is done to whole headers.

use std::fs;

use crate::front::pair::{CHEAP, Pair, all, with_stdin};

fn formatted(kind: &str) -> Pair {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "--type", kind, "disk"][..], &CHEAP].concat(), "secret\n");
    pair
}

#[test]
fn a_backup_of_one_is_restored_by_the_other() {
    for kind in ["luks1", "luks2"] {
        let pair = formatted(kind);
        pair.share("disk");
        pair.succeed(&["luksHeaderBackup", "disk", "--header-backup-file", "backup"], "");
        let read = |whose: &str| fs::read(pair.folder(whose).join("backup")).unwrap();
        assert!(read("ours") == read("theirs"), "{kind}: the backups are the same");
        let again = pair.agree(&["luksHeaderBackup", "disk", "--header-backup-file", "backup"], "");
        assert!(!again.ours.status.success(), "a file that is there is not overwritten");
        pair.succeed(&["-q", "erase", "disk"], "");
        pair.each_opens_the_others("disk", "secret\n", false);
        pair.succeed(&["-q", "luksHeaderRestore", "disk", "--header-backup-file", "backup"], "");
        pair.each_opens_the_others("disk", "secret\n", true);
        pair.agree(&["-q", "luksHeaderRestore", "disk", "--header-backup-file", "absent"], "");
        pair.agree(&["-q", "luksHeaderRestore", "disk", "--header-backup-file", "/etc/passwd"], "");
    }
}

#[test]
fn a_header_becomes_one_of_the_other_version() {
    let pair = formatted("luks1");
    pair.succeed(&["-q", "convert", "disk", "--type", "luks2"], "");
    pair.each_opens_the_others("disk", "secret\n", true);
    pair.succeed(&["isLuks", "--type", "luks2", "disk"], "");
    pair.succeed(&["-q", "convert", "disk", "--type", "luks1"], "");
    pair.each_opens_the_others("disk", "secret\n", true);
    pair.succeed(&["isLuks", "--type", "luks1", "disk"], "");
    pair.agree(&["-q", "convert", "disk"], "");
}

#[test]
fn names_and_uuids_are_set() {
    let pair = formatted("luks2");
    pair.succeed(&["config", "disk", "--label", "a label", "--subsystem", "mine"], "");
    pair.succeed(&["-q", "luksUUID", "disk", "--uuid", "12345678-1234-1234-1234-123456789abc"], "");
    let said = pair.succeed(&["luksDump", "disk"], "");
    for line in ["a label", "mine", "12345678-1234-1234-1234-123456789abc"] {
        assert!(all(&said.ours).contains(line) && all(&said.theirs).contains(line), "{}", all(&said.ours));
    }
    pair.agree(&["-q", "luksUUID", "disk", "--uuid", "nonsense"], "");
}

#[test]
fn tokens_come_and_go() {
    let pair = formatted("luks2");
    pair.file("token", br#"{"type":"mine","keyslots":["0"],"any":[1,{"x":"y"}]}"#);
    pair.succeed(&["token", "import", "disk", "--json-file", "token"], "");
    pair.succeed(&["token", "add", "disk", "--key-description", "absent:key"], "");
    pair.succeed(&["token", "import", "disk", "--token-id", "7"], r#"{"type":"other","keyslots":[]}"#);
    for id in ["0", "1", "7"] {
        let said = pair.succeed(&["token", "export", "disk", "--token-id", id], "");
        let parsed = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        assert_eq!(parsed(&said.ours.stdout), parsed(&said.theirs.stdout), "{id}");
    }
    pair.succeed(&["token", "unassign", "disk", "--token-id", "0", "--key-slot", "0"], "");
    pair.succeed(&["token", "remove", "disk", "--token-id", "7"], "");
    for words in [
        &["token", "remove", "disk", "--token-id", "7"][..],
        &["token", "export", "disk", "--token-id", "7"],
        &["token", "remove", "disk"],
        &["token", "sing", "disk"],
        &["token", "import", "disk", "--json-file", "absent"],
    ] {
        let said = pair.agree(words, "");
        assert!(!said.ours.status.success(), "{words:?}");
    }
    let said = pair.agree(&["token", "import", "disk"], r#"{"keyslots":[]}"#);
    assert!(!said.ours.status.success());
    pair.each_opens_the_others("disk", "secret\n", true);
}

#[test]
fn a_damaged_copy_is_repaired() {
    let pair = formatted("luks2");
    for whose in ["ours", "theirs"] {
        let path = pair.folder(whose).join("disk");
        let mut bytes = fs::read(&path).unwrap();
        bytes[4096 + 30] ^= 0xff;
        fs::write(&path, bytes).unwrap();
    }
    pair.succeed(&["-q", "repair", "disk"], "");
    for whose in ["ours", "theirs"] {
        let path = pair.folder(whose).join("disk");
        let dump = with_stdin(pair.theirs().args(["luksDump", "--debug"]).arg(&path), "");
        assert!(!all(&dump).contains("corrupted"), "{whose}: {}", all(&dump));
    }
    pair.each_opens_the_others("disk", "secret\n", true);
}

/// Replaces text of the same length in both JSON areas, and makes the checksums right again.
fn edit(path: &std::path::Path, from: &str, to: &str) {
    use sha2::{Digest, Sha256};
    const COPY: usize = 16 << 10;
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(path).unwrap();
    for copy in bytes[..2 * COPY].chunks_mut(COPY) {
        let at = copy.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        copy[at..at + to.len()].copy_from_slice(to.as_bytes());
        copy[448..512].fill(0);
        let sum = Sha256::digest(&*copy);
        copy[448..480].copy_from_slice(&sum);
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_repair_of_what_does_not_open_then_fails_in_both() {
    for (to, said) in [
        ("online-reencrypt-x2", "which this build does not know"),
        ("online-reencrypt-v9", "is not known to this build"),
    ] {
        let pair = formatted("luks2");
        let begin = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--init-only"];
        pair.succeed(&[&begin[..], &CHEAP].concat(), "secret\n");
        let from = "online-reencrypt-v2";
        for whose in ["ours", "theirs"] {
            edit(&pair.folder(whose).join("disk"), from, &to[..from.len()]);
        }
        let repaired = pair.run(&["-q", "repair", "disk"], "secret\n");
        assert!(!repaired.theirs.status.success(), "{to}: {}", all(&repaired.theirs));
        assert!(!repaired.ours.status.success(), "{to}: {}", all(&repaired.ours));
        assert!(all(&repaired.ours).contains(said), "{to}: {}", all(&repaired.ours));
        assert!(!all(&repaired.ours).contains("finish it first"), "{to}: {}", all(&repaired.ours));
    }
}

#[test]
fn luks1_data_begin_where_theirs_do() {
    for (cipher, bits) in [
        (Some("aes-xts-plain64"), Some("512")),
        (Some("aes-xts-plain64"), Some("256")),
        (Some("aes-cbc-plain64"), Some("128")),
        (Some("aes-cbc-essiv:sha256"), None),
        (None, None),
    ] {
        for unit in ["1", "8", "16", "100", "2048"] {
            let pair = Pair::new();
            pair.image("disk", 8 << 20);
            let mut words = vec!["luksFormat", "-q", "--type", "luks1", "disk", "--align-payload", unit];
            words.extend(cipher.iter().flat_map(|cipher| ["--cipher", cipher]));
            words.extend(bits.iter().flat_map(|bits| ["--key-size", bits]));
            words.extend(["--pbkdf-force-iterations", "1000"]);
            pair.succeed(&words, "secret\n");
            // The payload offset of the binary header.
            let begins = |whose: &str| fs::read(pair.folder(whose).join("disk")).unwrap()[104..108].to_vec();
            assert_eq!(begins("ours"), begins("theirs"), "{words:?}");
        }
    }
}

#[test]
fn a_new_detached_header_is_sparse_and_opens_in_both() {
    use std::os::unix::fs::MetadataExt;
    let pair = Pair::new();
    pair.image("disk", 1 << 20);
    let words = ["luksFormat", "-q", "--type", "luks2", "--header", "header", "disk"];
    pair.succeed(&[&words[..], &CHEAP].concat(), "secret\n");
    let about = fs::metadata(pair.folder("ours").join("header")).unwrap();
    assert_eq!(about.len(), fs::metadata(pair.folder("theirs").join("header")).unwrap().len());
    assert!(about.blocks() * 512 < 2 << 20, "{} blocks for {} bytes", about.blocks(), about.len());
    pair.each_opens_the_others("header", "secret\n", true);
}
