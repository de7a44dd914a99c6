//! `reencrypt`, in both programs.

use crate::front::pair::{CHEAP, Pair, all, text, with_stdin};
use crate::support::{bytes, run, seed, tool};

fn formatted() -> Pair {
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    pair.succeed(&[&["luksFormat", "-q", "--type", "luks2", "disk"][..], &CHEAP].concat(), "secret\n");
    pair
}

#[test]
fn a_volume_gets_another_key_and_opens_in_both() {
    for options in [
        &["--resilience", "journal"][..],
        &["--cipher", "aes-cbc-essiv:sha256", "--key-size", "256"],
        &["--sector-size", "512", "--keep-key"],
        &["--resilience", "none", "--hotzone-size", "1M"],
    ] {
        let pair = formatted();
        let words = [&["reencrypt", "-q", "disk", "--force-offline-reencrypt"][..], options, &CHEAP].concat();
        pair.succeed(&words, "secret\n");
        pair.each_opens_the_others("disk", "secret\n", true);
    }
}

#[test]
fn each_goes_on_with_what_the_other_began() {
    let pair = formatted();
    // A reencryption that would change nothing is refused.
    let same = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--keep-key"];
    assert!(!pair.agree(&same, "secret\n").ours.status.success());
    let begin =
        [&["reencrypt", "-q", "--init-only", "disk", "--force-offline-reencrypt"][..], &CHEAP].concat();
    pair.succeed(&begin, "secret\n");
    for (whose, mut command) in [("theirs", pair.ours()), ("ours", pair.theirs())] {
        let disk = pair.folder(whose).join("disk");
        let words = ["reencrypt", "-q", "--resume-only", "--force-offline-reencrypt", text(&disk)];
        let output = with_stdin(command.args(words), "secret\n");
        assert!(output.status.success(), "{}", all(&output));
    }
    pair.each_opens_the_others("disk", "secret\n", true);
    pair.agree(&["reencrypt", "-q", "--resume-only", "--force-offline-reencrypt", "disk"], "secret\n");
}

#[test]
fn plain_data_are_encrypted_and_decrypted_alike() {
    let pair = Pair::new();
    let plain = bytes(seed("plain_data_are_encrypted_and_decrypted_alike"), 8 << 20);
    pair.file("disk", &plain);
    let encrypt = ["reencrypt", "-q", "--encrypt", "--header", "header", "disk", "--force-offline-reencrypt"];
    pair.succeed(&[&encrypt[..], &CHEAP].concat(), "secret\n");
    for (whose, mut command) in [("theirs", pair.ours()), ("ours", pair.theirs())] {
        let path = |name: &str| pair.folder(whose).join(name);
        let (header, disk) = (path("header"), path("disk"));
        assert!(std::fs::read(&disk).unwrap() != plain);
        let words = [
            "reencrypt",
            "-q",
            "--decrypt",
            "--force-offline-reencrypt",
            "--header",
            text(&header),
            text(&disk),
        ];
        let output = with_stdin(command.args(words), "secret\n");
        assert!(output.status.success(), "{}", all(&output));
        assert!(std::fs::read(&disk).unwrap() == plain, "of {whose}");
    }
}

#[test]
fn a_bitlocker_volume_is_encrypted_in_batch_mode_and_a_whole_disk_refused_in_both() {
    let pair = Pair::new();
    let mut disk = bytes(seed("a_bitlocker_volume_is_encrypted_in_batch_mode"), 2 << 20);
    disk[..11].copy_from_slice(b"\xeb\x58\x90-FVE-FS-");
    pair.file("disk", &disk);
    let encrypt = |header| ["reencrypt", "-q", "--encrypt", "--header", header, "disk"];
    pair.succeed(&[&encrypt("header")[..], &CHEAP].concat(), "secret\n");

    // An MBR with one partition.
    disk[..512].fill(0);
    disk[446..462].copy_from_slice(b"\x80\0\0\0\x83\0\0\0\0\x04\0\0\0\x04\0\0");
    disk[510..512].copy_from_slice(b"\x55\xaa");
    pair.file("disk", &disk);
    let refused = pair.agree(&[&encrypt("new")[..], &CHEAP].concat(), "secret\n");
    assert!(!refused.ours.status.success(), "{}", all(&refused.ours));
    assert!(all(&refused.ours).contains("contains a partition table"), "{}", all(&refused.ours));
    for whose in ["theirs", "ours"] {
        assert!(std::fs::read(pair.folder(whose).join("disk")).unwrap() == disk, "of {whose}");
        assert!(!pair.folder(whose).join("new").exists(), "of {whose}");
    }
}

#[test]
fn sectors_larger_than_the_file_systems_blocks_are_refused_in_both() {
    let pair = Pair::new();
    pair.image("disk", 64 << 20);
    for whose in ["theirs", "ours"] {
        let disk = pair.folder(whose).join("disk");
        run(tool("mkfs.ext4").args(["-q", "-b", "1024"]).arg(disk).arg("24M"));
    }
    let encrypt =
        ["reencrypt", "-q", "--encrypt", "--reduce-device-size", "16M", "disk", "--force-offline-reencrypt"];
    let larger = [&encrypt[..], &["--sector-size", "4096"], &CHEAP].concat();
    assert!(!pair.agree(&larger, "secret\n").ours.status.success());
    pair.succeed(&[&encrypt[..], &CHEAP].concat(), "secret\n");
    for whose in ["theirs", "ours"] {
        let dumped = run(tool("cryptsetup").arg("luksDump").arg(pair.folder(whose).join("disk")));
        assert!(dumped.contains("sector: 512"), "of {whose}: {dumped}");
    }
    // The sectors of a closed volume become larger on demand only.
    let pair = Pair::new();
    pair.image("disk", 24 << 20);
    let format = ["luksFormat", "-q", "--type", "luks2", "--sector-size", "512", "disk"];
    pair.succeed(&[&format[..], &CHEAP].concat(), "secret\n");
    let words = [&["reencrypt", "-q", "disk", "--sector-size", "4096"][..], &CHEAP].concat();
    assert!(!pair.agree(&words, "secret\n").ours.status.success());
}

#[test]
fn the_same_command_again_resumes_in_both() {
    for options in [&["--sector-size", "512"][..], &["--cipher", "serpent-xts-plain64"], &["--keep-key"]] {
        let pair = formatted();
        let begin = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--init-only"];
        pair.succeed(&[&begin[..], &CHEAP].concat(), "secret\n");
        let again = pair.agree(&begin, "secret\n");
        assert!(!again.ours.status.success(), "a start is not made twice: {}", all(&again.ours));
        for mode in ["--encrypt", "--decrypt"] {
            let words = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", mode];
            let other = pair.run(&words, "secret\n");
            assert!(!other.ours.status.success(), "{mode}: {}", all(&other.ours));
            assert!(!other.theirs.status.success(), "{mode}: {}", all(&other.theirs));
        }
        let words = ["reencrypt", "-q", "disk", "--force-offline-reencrypt"];
        pair.succeed(&[&words[..], options].concat(), "secret\n");
        for whose in ["ours", "theirs"] {
            let dump = pair.theirs().arg("luksDump").arg(pair.folder(whose).join("disk")).output().unwrap();
            assert!(!all(&dump).contains("online-reencrypt"), "{whose}: {}", all(&dump));
        }
        pair.each_opens_the_others("disk", "secret\n", true);
    }
}

#[test]
fn an_encryption_resumes_with_the_same_command() {
    let pair = Pair::new();
    let plain = bytes(seed("an_encryption_resumes_with_the_same_command"), 8 << 20);
    pair.file("disk", &plain);
    let encrypt = ["reencrypt", "-q", "--encrypt", "--header", "header", "disk", "--force-offline-reencrypt"];
    pair.succeed(&[&encrypt[..], &["--init-only"], &CHEAP].concat(), "secret\n");
    pair.succeed(&[&encrypt[..], &CHEAP].concat(), "secret\n");
    for whose in ["ours", "theirs"] {
        assert!(std::fs::read(pair.folder(whose).join("disk")).unwrap() != plain, "{whose}");
        let dump = pair.theirs().arg("luksDump").arg(pair.folder(whose).join("header")).output().unwrap();
        assert!(!all(&dump).contains("online-reencrypt"), "{whose}: {}", all(&dump));
    }
}

#[test]
fn each_keyslot_has_a_line_of_stdin_in_both() {
    let pair = formatted();
    let add = [&["luksAddKey", "-q", "disk"][..], &CHEAP].concat();
    pair.succeed(&add, "secret\nsecond\n");
    // Two keyslots of one passphrase need two lines.
    pair.succeed(&add, "secret\nsecret\n");
    let words = [&["reencrypt", "-q", "disk", "--force-offline-reencrypt"][..], &CHEAP].concat();
    for lines in ["secret\nsecond\n", "secret\nsecond\nwrong\n", "second\nsecret\nsecret\n"] {
        let said = pair.run(&words, lines);
        assert!(!said.ours.status.success(), "{lines:?}: {}", all(&said.ours));
        assert!(!said.theirs.status.success(), "{lines:?}: {}", all(&said.theirs));
    }
    pair.succeed(&words, "secret\nsecond\nsecret\n");
    for passphrase in ["secret\n", "second\n"] {
        pair.each_opens_the_others("disk", passphrase, true);
    }
    let dump = pair.theirs().arg("luksDump").arg(pair.folder("ours").join("disk")).output().unwrap();
    assert_eq!(all(&dump).matches(": luks2").count(), 3, "{}", all(&dump));
}

#[test]
fn an_encryption_begins_behind_an_offset_in_both() {
    let offset = 8 << 20;
    let pair = Pair::new();
    let plain = bytes(seed("an_encryption_begins_behind_an_offset_in_both"), 12 << 20);
    pair.file("disk", &plain);
    let encrypt = ["reencrypt", "-q", "--encrypt", "--force-offline-reencrypt", "--offset", "16384", "disk"];
    pair.succeed(&[&encrypt[..], &["--header", "header"], &CHEAP].concat(), "secret\n");
    for (whose, mut command) in [("theirs", pair.ours()), ("ours", pair.theirs())] {
        let path = |name: &str| pair.folder(whose).join(name);
        let encrypted = std::fs::read(path("disk")).unwrap();
        assert!(encrypted[..offset] == plain[..offset], "of {whose}: what lies in front stays");
        let same = encrypted[offset..].chunks(512).zip(plain[offset..].chunks(512)).filter(|(a, b)| a == b);
        assert_eq!(same.count(), 0, "of {whose}: all behind it is encrypted");
        let (header, disk) = (path("header"), path("disk"));
        let words = ["open", "--test-passphrase", "--header", text(&header), text(&disk)];
        let opened = with_stdin(command.args(words), "secret\n");
        assert!(opened.status.success(), "of {whose}: {}", all(&opened));
    }
    let pair = Pair::new();
    pair.file("disk", &bytes(1, 24 << 20));
    // At most twice the offset is taken from the device.
    let offset = ["--reduce-device-size", "20M"];
    pair.succeed(&[&encrypt[..], &offset, &["--init-only"], &CHEAP].concat(), "secret\n");
    let segments = |whose: &str| {
        let disk = pair.folder(whose).join("disk");
        let dump = pair.theirs().args(["luksDump", "--dump-json-metadata"]).arg(disk).output().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&dump.stdout).unwrap();
        // The backups' numbers are each program's own.
        let all = json["segments"].as_object().unwrap().values();
        all.map(ToString::to_string).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(segments("ours"), segments("theirs"));
}

#[test]
fn data_that_stay_are_not_protected_by_their_source_in_both() {
    for option in ["datashift", "datashift-checksum", "datashift-journal"] {
        let pair = formatted();
        let words = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--resilience", option];
        let said = pair.run(&[&words[..], &CHEAP].concat(), "secret\n");
        assert!(!said.ours.status.success(), "{option}: {}", all(&said.ours));
        assert!(!said.theirs.status.success(), "{option}: {}", all(&said.theirs));
        pair.succeed(&[&words[..4], &["--init-only"], &CHEAP].concat(), "secret\n");
        let said = pair.run(&words, "secret\n");
        assert!(!said.ours.status.success(), "resumed, {option}: {}", all(&said.ours));
    }
}

#[test]
fn the_new_volume_key_may_be_given_in_a_file() {
    let pair = formatted();
    let key = bytes(seed("the_new_volume_key_may_be_given_in_a_file"), 32);
    pair.file("key", &key);
    let disk = ["reencrypt", "-q", "disk", "--force-offline-reencrypt", "--new-volume-key-file", "key"];
    // An option of 2.8, which the real program here does not have.
    let ours = |options: &[&str]| {
        let words = [&disk[..], options, &CHEAP].concat();
        with_stdin(pair.ours().args(words), "secret\n")
    };
    for (options, why) in [
        (&[][..], "must be paired with --new-key-size"),
        (&["--new-key-size", "256", "--keep-key"], "cannot be"),
        (&["--new-key-size", "256", "--volume-key-file", "key"], "is not supported"),
        (&["--new-key-size", "512"], "a key of 256 bits"),
    ] {
        let refused = ours(options);
        assert!(!refused.status.success() && all(&refused).contains(why), "{options:?}: {}", all(&refused));
    }
    let done = ours(&["--cipher", "aes-xts-plain64", "--new-key-size", "256"]);
    assert!(done.status.success(), "{}", all(&done));
    let ours = pair.folder("ours");
    let dump = ["-q", "luksDump", "--dump-volume-key", "--volume-key-file", "out", "disk"];
    let dumped = with_stdin(pair.theirs().current_dir(&ours).args(dump), "secret\n");
    assert!(dumped.status.success(), "{}", all(&dumped));
    assert!(std::fs::read(ours.join("out")).unwrap() == key);
}

#[test]
fn data_behind_something_else_are_not_decrypted_over_it() {
    let pair = Pair::new();
    let user = bytes(seed("data_behind_something_else_are_not_decrypted_over_it"), 16 << 20);
    pair.file("disk", &[&user[..], &vec![0; 4 << 20]].concat());
    let format = ["luksFormat", "-q", "--header", "header", "--offset", "32768", "disk"];
    pair.succeed(&[&format[..], &CHEAP].concat(), "secret\n");
    let decrypt = ["reencrypt", "-q", "--decrypt", "--header", "header", "--force-offline-reencrypt", "disk"];
    let said = pair.agree(&decrypt, "secret\n");
    assert!(!said.ours.status.success(), "{}", all(&said.ours));
    for whose in ["ours", "theirs"] {
        assert!(std::fs::read(pair.folder(whose).join("disk")).unwrap().starts_with(&user), "{whose}");
    }
}
