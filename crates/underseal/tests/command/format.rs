//! `format` and `info`, against cryptsetup and QEMU in both directions.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use serde_json::Value;

use crate::command::common::{CHEAP, PASSPHRASE, Place};

#[test]
fn a_new_image_is_sparse_and_for_its_owner_only() {
    let place = Place::new();
    let said =
        place.run(&[&["format", "disk", "--size", "1G", "--passphrase-file", "pass"], &CHEAP[..]].concat());
    let about = std::fs::metadata(place.path("disk")).unwrap();
    assert_eq!((about.len(), about.mode() & 0o777), (1 << 30, 0o600));
    assert!(about.blocks() * 512 < 64 << 20, "sparse");
    let said = said.succeeds();
    assert!(said.contains("1008 MiB") && said.contains("try: underseal open disk"), "{said}");
    let quiet =
        [&["format", "more", "--size", "32M", "--passphrase-file", "pass", "-q"], &CHEAP[..]].concat();
    assert_eq!(place.run(&quiet).succeeds(), "");
}

#[test]
fn cryptsetup_opens_what_is_made_here_and_reads_the_same_header() {
    let uuid = "6f0e0d3c-1234-4abc-8def-000102030405";
    let table: [&[&str]; 8] = [
        &[],
        &["--sector-size", "512", "--label", "a label", "--subsystem", "sub", "--uuid", uuid],
        &[
            "--pbkdf",
            "argon2id",
            "--pbkdf-memory",
            "64",
            "--pbkdf-force-iterations",
            "4",
            "--pbkdf-parallel",
            "2",
        ],
        &["--pbkdf", "argon2i", "--pbkdf-memory", "32", "--pbkdf-force-iterations", "4", "--hash", "sha512"],
        &["--cipher", "aes-cbc-essiv:sha256", "--key-size", "128"],
        &["--type", "luks1"],
        &["--type", "luks1", "--cipher", "aes-cbc-essiv:sha256", "--hash", "sha1", "--uuid", uuid],
        &["--header", "head"],
    ];
    for args in table {
        let place = Place::new();
        let cheap = if args.contains(&"--pbkdf") { &[][..] } else { &CHEAP[..] };
        let all = [&["format", "disk", "--size", "32M", "--passphrase-file", "pass"], cheap, args].concat();
        place.run(&all).succeeds();
        let header = if args.contains(&"--header") { "head" } else { "disk" };

        // cryptsetup uses all bytes of a passphrase file, newline included, except on standard
        // input.
        std::fs::write(place.path("exact"), PASSPHRASE).unwrap();
        place.tool("cryptsetup", &["open", "--test-passphrase", "--key-file", "exact", header]);
        let info: Value = serde_json::from_str(&place.run(&["info", header, "--json"]).succeeds()).unwrap();
        assert_eq!(place.tool("cryptsetup", &["luksUUID", header]).trim(), info["uuid"].as_str().unwrap());
        if args.contains(&"--uuid") {
            assert_eq!(info["uuid"], uuid);
        }
        let dump = place.tool("cryptsetup", &["luksDump", header]);
        if args.contains(&"luks1") {
            agrees_with_luks1_dump(&info, &dump);
        } else {
            agrees_with_luks2_dump(&info, &dump);
            let theirs = place.tool("cryptsetup", &["luksDump", "--dump-json-metadata", header]);
            let ours = place.run(&["info", header, "--raw-metadata"]).succeeds();
            let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(parse(&ours), parse(&theirs), "{args:?}");
        }
        if header == "head" {
            let image = place.read("disk");
            assert!(image.iter().all(|&byte| byte == 0), "the image holds no header");
            assert_eq!(place.unlock("read", "disk", &["--header", "head"]).bytes.len(), 32 << 20);
        }
    }
}

/// The text behind `name:` in luksDump, at its n-th occurrence.
fn field<'a>(dump: &'a str, name: &str, nth: usize) -> &'a str {
    let mut lines = dump.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    lines.nth(nth).unwrap_or_else(|| panic!("no {name} in {dump}")).trim()
}

fn agrees_with_luks2_dump(info: &Value, dump: &str) {
    let (segment, slot) = (&info["segments"][0], &info["keyslots"][0]);
    let optional = |name| match field(dump, name, 0) {
        text if text.starts_with("(no ") => "",
        text => text,
    };
    assert_eq!(info["format"], "luks2");
    assert_eq!(info["label"], optional("Label"));
    assert_eq!(info["subsystem"], optional("Subsystem"));
    assert_eq!(format!("{} [bytes]", info["metadata_size"]), field(dump, "Metadata area", 0));
    assert_eq!(format!("{} [bytes]", info["keyslots_size"]), field(dump, "Keyslots area", 0));
    assert_eq!(format!("{} [bytes]", segment["offset"]), field(dump, "offset", 0));
    assert_eq!(segment["cipher"], field(dump, "cipher", 0));
    assert_eq!(format!("{} [bytes]", segment["sector_size"]), field(dump, "sector", 0));
    assert_eq!(format!("{} bits", slot["key_bits"]), field(dump, "Key", 0));
    assert_eq!(slot["kdf"]["type"], field(dump, "PBKDF", 0));
    match slot["kdf"]["memory_kib"].as_u64() {
        Some(memory) => {
            assert_eq!(memory.to_string(), field(dump, "Memory", 0));
            assert_eq!(slot["kdf"]["iterations"].to_string(), field(dump, "Time cost", 0));
            assert_eq!(slot["kdf"]["lanes"].to_string(), field(dump, "Threads", 0));
        }
        None => assert_eq!(slot["kdf"]["iterations"].to_string(), field(dump, "Iterations", 0)),
    }
    assert_eq!(slot["af_hash"], field(dump, "AF hash", 0));
    assert_eq!(format!("{} [bytes]", slot["area_offset"]), field(dump, "Area offset", 0));
}

fn agrees_with_luks1_dump(info: &Value, dump: &str) {
    let (segment, slot) = (&info["segments"][0], &info["keyslots"][0]);
    assert_eq!(info["format"], "luks1");
    let cipher = format!("{}-{}", field(dump, "Cipher name", 0), field(dump, "Cipher mode", 0));
    assert_eq!(segment["cipher"], cipher);
    assert_eq!((segment["offset"].as_u64().unwrap() / 512).to_string(), field(dump, "Payload offset", 0));
    assert_eq!(slot["key_bits"].to_string(), field(dump, "MK bits", 0));
    assert_eq!(slot["kdf"]["hash"], field(dump, "Hash spec", 0));
    assert_eq!(slot["kdf"]["iterations"].to_string(), field(dump, "Iterations", 0));
    assert_eq!(
        slot["area_offset"].as_u64().unwrap() / 512,
        field(dump, "Key material offset", 0).parse::<u64>().unwrap()
    );
}

#[test]
fn what_cryptsetup_makes_opens_here() {
    for args in [&["--type", "luks2", "--sector-size", "4096"][..], &["--type", "luks1"]] {
        let place = Place::new();
        File::create(place.path("disk")).unwrap().set_len(32 << 20).unwrap();
        std::fs::write(place.path("exact"), PASSPHRASE).unwrap();
        let common =
            ["luksFormat", "-q", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "disk", "exact"];
        place.tool("cryptsetup", &[&common, args].concat());
        place.noise("noise", 100_000);
        place.unlock("write", "disk", &["-i", "noise", "--offset", "12345"]).succeeds();
        let back = place.unlock("read", "disk", &["--offset", "12345", "--length", "100000"]);
        assert!(back.bytes == place.read("noise"));
        place.tool("cryptsetup", &["open", "--test-passphrase", "--key-file", "exact", "disk"]);
    }
}

#[test]
fn qemu_and_underseal_read_each_others_luks1_volumes() {
    let place = Place::new();
    std::fs::write(place.path("exact"), PASSPHRASE).unwrap();
    let secret = "secret,id=key,file=exact";
    let theirs =
        ["create", "-q", "--object", secret, "-f", "luks", "-o", "key-secret=key,iter-time=10", "disk", "8M"];
    place.tool("qemu-img", &theirs);
    place.noise("noise", 8 << 20);
    // Written here, read there.
    place.unlock("write", "disk", &["-i", "noise"]).succeeds();
    let image = "driver=luks,key-secret=key,file.filename=disk";
    place.tool("qemu-img", &["convert", "--object", secret, "--image-opts", image, "-O", "raw", "theirs"]);
    assert!(place.read("theirs") == place.read("noise"));
    // Written there, read here.
    let write = "write -P 0x5a 1M 3M";
    place.tool("qemu-io", &["--object", secret, "--image-opts", image, "-c", write]);
    let back = place.unlock("read", "disk", &[]).bytes;
    assert!(back[1 << 20..4 << 20].iter().all(|&byte| byte == 0x5a));
    assert!(back[4 << 20..] == place.read("noise")[4 << 20..]);
}

#[test]
fn data_is_overwritten_by_force_only() {
    let place = Place::new();
    let signatures: [(u64, &[u8], &str); 6] = [
        (3, b"-FVE-FS-", "a BitLocker volume"),
        (88, b"CS\x01\0\0\0", "a CoreStorage (FileVault 2) volume"),
        (0x438, b"\x53\xef", "ext4"),
        (512, b"EFI PART", "GPT"),
        (0, b"XFSB", "XFS"),
        (777_777, b"x", "data"),
    ];
    for (at, bytes, name) in signatures {
        let file = File::create(place.path("disk")).unwrap();
        file.set_len(32 << 20).unwrap();
        file.write_all_at(bytes, at).unwrap();
        let format = [&["format", "disk", "--passphrase-file", "pass"], &CHEAP[..]].concat();
        let refused = place.run(&format);
        refused.fails(2, name);
        assert!(refused.stderr.contains("--force"));
        place.run(&[&format[..], &["--force"]].concat()).succeeds();
        place.run(&["info", "disk"]).succeeds();
    }
    // A volume is protected as a filesystem is; and its size stays unless both options are given.
    place
        .run(
            &[&["format", "disk", "--passphrase-file", "pass", "--force", "--size", "64M"], &CHEAP[..]]
                .concat(),
        )
        .succeeds();
    assert_eq!(std::fs::metadata(place.path("disk")).unwrap().len(), 64 << 20);
}

#[test]
fn a_format_that_fails_leaves_image_and_folder_as_they_were() {
    let place = Place::new();
    place.format("keep", &["--size", "32M"]);
    std::fs::write(place.path("empty"), "").unwrap();
    let before = place.read("keep");
    let cut = |args: &[&str], code: i32, words: &str| {
        let ran = place.run(&[&["format", "keep", "--force", "-q"], &CHEAP[..], args].concat());
        ran.fails(code, words);
        assert!(place.read("keep") == before, "{args:?}");
        ran.stderr
    };
    cut(&["--size", "20M", "--passphrase-file", "nosuch"], 1, "nosuch");
    cut(&["--size", "20M", "--passphrase-file", "empty"], 2, "empty");
    cut(&["--size", "20M", "--passphrase-file", "pass", "--header", "nosuch/head"], 1, "nosuch/head");
    let said = cut(&["--size", "1M", "--passphrase-file", "pass"], 2, "leave no data");
    assert!(said.contains("try: a larger --size"), "{said}");
    for cipher in ["aes-cbc-tcw", "aes-xts-random", "aes-pcbc-lmk"] {
        cut(&["--size", "20M", "--passphrase-file", "pass", "--cipher", cipher], 2, cipher);
        cut(&["--passphrase-file", "pass", "--cipher", cipher, "--type", "luks1"], 2, cipher);
    }
    cut(
        &["--passphrase-file", "pass", "--cipher", "aes-cbc-lmk", "--sector-size", "4096"],
        2,
        "512 bytes only",
    );

    for args in [
        &["--size", "1G", "--passphrase-file", "nosuch"][..],
        &["--size", "1M", "--passphrase-file", "pass"],
        &["--size", "1G", "--passphrase-file", "pass", "--header", "head", "--cipher", "aes-cbc-tcw"],
    ] {
        assert_ne!(place.run(&[&["format", "new", "-q"], &CHEAP[..], args].concat()).code, Some(0));
        assert!(!place.path("new").exists() && !place.path("head").exists(), "{args:?}");
    }
    place.run(&["read", "keep", "--passphrase-file", "pass", "-o", "plain"]).succeeds();
}

#[test]
fn an_empty_file_is_made_as_large_as_asked_for() {
    let place = Place::new();
    std::fs::write(place.path("disk"), "").unwrap();
    place.run(&["format", "disk", "--passphrase-file", "pass"]).fails(2, "is empty");
    place.format("disk", &["--size", "32M"]);
    assert_eq!(std::fs::metadata(place.path("disk")).unwrap().len(), 32 << 20);
}

#[test]
fn a_plain_volume_is_only_a_file_of_its_size() {
    let place = Place::new();
    let said = place.run(&["format", "disk", "--type", "plain", "--size", "4M"]).succeeds();
    assert!(said.contains("--type plain"), "{said}");
    assert!(place.read("disk") == vec![0; 4 << 20]);
}

#[test]
fn info_says_which_cpu_path_runs_the_ciphers() {
    let place = Place::with_volume();
    let info = |args: &[&str]| {
        let mut command = place.command(&[&["info", "disk"], args].concat());
        crate::command::common::Ran::from(command.env("UNDERSEAL_CPU", "portable").output().unwrap())
            .succeeds()
    };
    assert!(info(&[]).ends_with("\nCPU path:       portable\n"));
    let json: Value = serde_json::from_str(&info(&["--json"])).unwrap();
    assert_eq!((&json["cpu_path"], &json["json_version"]), (&"portable".into(), &1.into()));
}
