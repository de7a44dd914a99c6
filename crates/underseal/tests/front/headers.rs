//! What is done to whole headers.

use std::fs;

use crate::pair::{CHEAP, Pair, all, with_stdin};

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
