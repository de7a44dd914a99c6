//! Actions on whole headers.

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
fn luks2_data_begin_where_theirs_do() {
    for unit in ["1", "8", "32769", "32772", "32776", "36865"] {
        for sector in [None, Some("512"), Some("1024"), Some("2048"), Some("4096")] {
            let pair = Pair::new();
            pair.image("disk", 24 << 20);
            let mut words = vec!["luksFormat", "-q", "--type", "luks2", "disk", "--align-payload", unit];
            words.extend(sector.iter().flat_map(|size| ["--sector-size", size]));
            words.extend(CHEAP);
            if !pair.agree(&words, "secret\n").ours.status.success() {
                continue;
            }
            let segment = |whose: &str| {
                let disk = pair.folder(whose).join("disk");
                let dump = pair.theirs().args(["luksDump", "--dump-json-metadata"]).arg(disk).output();
                let dump = dump.unwrap().stdout;
                let json: serde_json::Value = serde_json::from_slice(&dump).unwrap();
                let of = |name: &str| json["segments"]["0"][name].to_string();
                (of("offset"), of("sector_size"), json["config"]["keyslots_size"].to_string())
            };
            assert_eq!(segment("ours"), segment("theirs"), "{words:?}");
            pair.each_opens_the_others("disk", "secret\n", true);
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

/// Changes the metadata of both copies of a header of 16 KiB, and makes the checksums right again.
fn edit_json(path: &std::path::Path, edit: impl Fn(&mut serde_json::Value)) {
    use sha2::{Digest, Sha256};
    const COPY: usize = 16 << 10;
    let mut bytes = fs::read(path).unwrap();
    for copy in bytes[..2 * COPY].chunks_mut(COPY) {
        let area = &copy[4096..];
        let text = &area[..area.iter().position(|byte| *byte == 0).unwrap()];
        let mut document = serde_json::from_slice(text).unwrap();
        edit(&mut document);
        let text = serde_json::to_vec(&document).unwrap();
        copy[4096..].fill(0);
        copy[4096..4096 + text.len()].copy_from_slice(&text);
        copy[448..512].fill(0);
        let sum = Sha256::digest(&*copy);
        copy[448..480].copy_from_slice(&sum);
    }
    fs::write(path, bytes).unwrap();
}

/// Puts the first MiB of a reencryption by journal under way, as a cut in its first step leaves it.
fn cut_first_step(path: &std::path::Path) {
    const STEP: usize = 1 << 20;
    let mut at = 0;
    let bytes = fs::read(path).unwrap();
    let text = &bytes[4096..16 << 10];
    let text = &text[..text.iter().position(|byte| *byte == 0).unwrap()];
    let document: serde_json::Value = serde_json::from_slice(text).unwrap();
    for slot in document["keyslots"].as_object().unwrap().values() {
        if slot["type"] == "reencrypt" {
            assert_eq!(slot["area"]["type"], "journal");
            at = slot["area"]["offset"].as_str().unwrap().parse().unwrap();
        }
    }
    let data: usize = document["segments"]["0"]["offset"].as_str().unwrap().parse().unwrap();
    let mut bytes = bytes;
    bytes.copy_within(data..data + STEP, at);
    // Half of the step was written.
    bytes[data..data + STEP / 2].fill(0x5a);
    fs::write(path, bytes).unwrap();
    edit_json(path, |document| {
        let old = document["segments"]["0"].clone();
        let backups = [document["segments"]["1"].clone(), document["segments"]["2"].clone()];
        let mut hot = old.clone();
        hot["size"] = STEP.to_string().into();
        hot["flags"] = serde_json::json!(["in-reencryption"]);
        let mut rest = old;
        rest["offset"] = (data + STEP).to_string().into();
        rest["iv_tweak"] = (STEP / 512).to_string().into();
        let segments = [vec![hot, rest], backups.to_vec()].concat();
        let numbered = segments.into_iter().enumerate().map(|(i, segment)| (i.to_string(), segment));
        document["segments"] = serde_json::Value::Object(numbered.collect());
        let is_previous =
            |n: &str| document["segments"][n]["flags"] == serde_json::json!(["backup-previous"]);
        let (old, new) = if is_previous("2") { ("2", "3") } else { ("3", "2") };
        document["digests"]["0"]["segments"] = serde_json::json!(["0", "1", old]);
        document["digests"]["1"]["segments"] = serde_json::json!(["0", new]);
    });
}

/// The plain bytes of an image, by underseal's own words.
fn plain(path: &std::path::Path) -> Vec<u8> {
    let mut read = crate::support::tool(env!("CARGO_BIN_EXE_underseal"));
    let read = with_stdin(read.args(["read", "--passphrase-fd", "0"]).arg(path), "secret\n");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    read.stdout
}

#[test]
fn a_repair_signs_a_reencryption_without_a_digest_and_makes_its_step_good_in_both() {
    for (version, hot) in
        [("online-reencrypt", false), ("online-reencrypt-v2", false), ("online-reencrypt", true)]
    {
        let pair = formatted("luks2");
        pair.share("disk");
        let before = plain(&pair.folder("ours").join("disk"));
        let begin = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--init-only"];
        pair.succeed(&[&begin[..], &["--resilience", "journal"], &CHEAP].concat(), "secret\n");
        for whose in ["ours", "theirs"] {
            let path = pair.folder(whose).join("disk");
            if hot {
                cut_first_step(&path);
            }
            edit_json(&path, |document| {
                document["digests"].as_object_mut().unwrap().remove("2").unwrap();
                document["config"]["requirements"] = serde_json::json!({ "mandatory": [version] });
            });
        }
        let open = with_stdin(pair.ours().args(["open", "disk", "unused"]), "secret\n");
        assert!(all(&open).contains("underseal header repair"), "{}", all(&open));
        let read = |whose: &str| fs::read(pair.folder(whose).join("disk")).unwrap();
        let unsigned = read("ours");
        let wrong = pair.run(&["-q", "repair", "disk"], "wrong\n");
        assert!(!wrong.theirs.status.success(), "{}", all(&wrong.theirs));
        assert!(!wrong.ours.status.success() && read("ours") == unsigned, "{}", all(&wrong.ours));
        pair.succeed(&["-q", "repair", "disk"], "secret\n");
        for whose in ["ours", "theirs"] {
            let dump = pair.theirs().arg("luksDump").arg(pair.folder(whose).join("disk")).output().unwrap();
            assert!(all(&dump).contains("online-reencrypt-v2"), "{whose}: {}", all(&dump));
            // The real program signs in one run and makes the step good in the next.
            let is_cut = all(&dump).contains("in-reencryption");
            assert_eq!(is_cut, hot && whose == "theirs", "{whose}: {}", all(&dump));
        }
        // Each program resumes a reencryption that the other has signed.
        for (whose, mut command) in [("theirs", pair.ours()), ("ours", pair.theirs())] {
            let disk = pair.folder(whose).join("disk");
            let words = ["reencrypt", "-q", "--resume-only", "--force-offline-reencrypt"];
            let output = with_stdin(command.args(words).arg(&disk), "secret\n");
            assert!(output.status.success(), "{version} {hot} of {whose}: {}", all(&output));
            assert!(plain(&disk) == before, "{version} {hot} of {whose}");
        }
    }
}

#[test]
fn a_repair_of_a_reencryption_that_others_changed_fails_in_both() {
    type Edit = fn(&mut serde_json::Value);
    let edits: [Edit; 4] = [
        |document| document["digests"]["2"]["iterations"] = 1111.into(),
        |document| document["keyslots"]["2"]["mode"] = "decrypt".into(),
        |document| document["keyslots"]["2"]["direction"] = "backward".into(),
        |document| document["config"]["requirements"] = serde_json::json!({ "mandatory": [] }),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        let pair = formatted("luks2");
        let begin = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--init-only"];
        pair.succeed(&[&begin[..], &CHEAP].concat(), "secret\n");
        let read = |whose: &str| fs::read(pair.folder(whose).join("disk")).unwrap();
        for whose in ["ours", "theirs"] {
            edit_json(&pair.folder(whose).join("disk"), edit);
        }
        let before = read("ours");
        let said = pair.run(&["-q", "repair", "disk"], "secret\n");
        assert!(!said.theirs.status.success(), "{number}: {}", all(&said.theirs));
        assert!(!said.ours.status.success(), "{number}: {}", all(&said.ours));
        assert!(read("ours") == before, "{number}: nothing is written");
    }
    // Unchanged metadata of a reencryption are checked, and left as they are.
    let pair = formatted("luks2");
    let begin = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--init-only"];
    pair.succeed(&[&begin[..], &CHEAP].concat(), "secret\n");
    pair.succeed(&["-q", "repair", "disk"], "secret\n");
    let wrong = pair.run(&["-q", "repair", "disk"], "wrong\n");
    assert!(!wrong.theirs.status.success() && !wrong.ours.status.success(), "{}", all(&wrong.ours));
}
