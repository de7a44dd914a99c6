//! Tables that the kernel refuses.

use std::fs;

use crate::support::volume::underseal;
use crate::support::{Scratch, output};
use crate::table::{key, table};

/// Lines, and the words of the refusal. KEY is a key of 32 bytes.
const REFUSED: [(&str, &str); 26] = [
    ("0 8 crypt aes-xts-plain64 KEY 0 disk", "Not enough arguments"),
    ("0 8 nosuch", "unknown target type"),
    ("x 8 zero", "Invalid format"),
    ("0 0 zero", "Zero-length target"),
    ("0 8 zero\n9 8 zero", "Gap in table"),
    ("8 8 crypt aes-xts-plain64 KEY 0 disk 0", "Gap in table"),
    ("0 8 linear disk", "Invalid device sector"),
    ("0 8 crypt rot13-xts-plain64 KEY 0 disk 0", "Error allocating crypto tfm"),
    ("0 8 crypt aes-xts-nosuch KEY 0 disk 0", "Invalid IV mode"),
    ("0 8 crypt aes-cbc KEY 0 disk 0", "IV mechanism required"),
    ("0 8 crypt aes-cbc-essiv KEY 0 disk 0", "Digest algorithm missing for ESSIV mode"),
    ("0 8 crypt aes-xts-plain64 00ff 0 disk 0", "Error decoding and setting key"),
    ("0 8 crypt aes-xts-plain64 0g 0 disk 0", "Error decoding and setting key"),
    ("0 8 crypt aes-xts-plain64 - 0 disk 0", "Error decoding and setting key"),
    ("0 8 crypt aes-xts-plain64 KEY -1 disk 0", "Invalid iv_offset sector"),
    ("0 8 crypt aes-xts-plain64 KEY 1 disk 0 1 sector_size:4096", "Invalid iv_offset sector"),
    ("0 9 crypt aes-xts-plain64 KEY 0 disk 0 1 sector_size:4096", "Device size is not multiple"),
    ("0 64 crypt aes-xts-plain64 KEY 0 disk 0 1 sector_size:131072", "Invalid feature value for sector_size"),
    ("0 8 crypt aes-xts-plain64 KEY 0 disk 3 1 sector_size:4096", "Cannot calculate initial queue limits"),
    ("0 8 crypt aes-xts-plain64 KEY 0 disk 0 2 allow_discards", "not enough arguments for features"),
    ("0 8 crypt aes-xts-plain64 KEY 0 disk 0 1 nosuch", "Invalid feature arguments"),
    ("0 8 crypt aes-xts-plain64 KEY 0 disk 0 1 integrity:0:none", "Invalid integrity arguments"),
    (
        "0 4 zero\n4 8 crypt aes-xts-plain64 KEY 0 disk 0 1 sector_size:4096",
        "not aligned to h/w logical block",
    ),
    // The disk has 16 sectors.
    ("0 17 crypt aes-xts-plain64 KEY 0 disk 0", "too small for target: start=0, len=17, dev_size=16"),
    ("0 8 crypt aes-xts-plain64 KEY 0 disk 9", "too small for target"),
    ("0 8 linear disk 18446744073709551615", "too small for target"),
];

#[test]
fn what_the_kernel_refuses_is_refused_in_its_words_with_status_2_and_nothing_is_written() {
    let scratch = Scratch::new();
    let disk = vec![0x5a; 8192];
    scratch.file("disk", &disk);
    scratch.file("plain", &[1; 512]);
    for (line, words) in REFUSED {
        let line = line.replace("KEY", &key(32));
        for (what, options) in [
            ("check", &[][..]),
            ("encrypt", &["-i", "plain"]),
            ("decrypt", &["-o", "out"]),
            ("open", &["--nbd", "unix:s"]),
        ] {
            let ran = output(table(&scratch, what, &line).args(options));
            let err = String::from_utf8_lossy(&ran.stderr);
            assert_eq!(ran.status.code(), Some(2), "{what} {line}: {err}");
            assert!(err.contains(words), "{what} {line}: {err}");
            assert!(!err.contains(&key(32)), "the key is told: {err}");
            assert!(ran.stdout.is_empty() && !scratch.path("out").exists(), "{what} {line}");
        }
        assert!(fs::read(scratch.path("disk")).unwrap() == disk, "{line}: something was written");
    }
}

#[test]
fn a_device_that_is_not_there_is_no_table_to_open() {
    let scratch = Scratch::new();
    scratch.file("plain", &[1; 512]);
    let line = format!("0 8 crypt aes-xts-plain64 {} 0 nosuch 0", key(32));
    let ran = output(table(&scratch, "encrypt", &line).args(["-i", "plain"]));
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("Device lookup failed"));
    assert!(!scratch.path("nosuch").exists());
    // `check` may look at a table of another machine.
    let ran = output(&mut table(&scratch, "check", &line));
    assert!(ran.status.success());
    assert!(String::from_utf8_lossy(&ran.stderr).contains("Device lookup failed"));
}

#[test]
fn more_bytes_than_the_table_has_room_for_are_refused_before_any_is_written() {
    let scratch = Scratch::new();
    scratch.sparse("disk", 8192);
    scratch.file("plain", &[1; 4608]);
    let line = format!("0 8 crypt aes-xts-plain64 {} 0 disk 0", key(32));
    let ran = output(table(&scratch, "encrypt", &line).args(["-i", "plain"]));
    assert_eq!(ran.status.code(), Some(2), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(fs::read(scratch.path("disk")).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn the_devices_and_the_table_are_never_the_other_end_of_a_copy() {
    let scratch = Scratch::new();
    scratch.sparse("disk", 8192);
    let line = format!("0 8 crypt aes-xts-plain64 {} 0 disk 0", key(32));
    for (what, options) in
        [("encrypt", ["-i", "disk"]), ("decrypt", ["-o", "disk"]), ("decrypt", ["-o", "table"])]
    {
        let ran = output(table(&scratch, what, &line).args(options));
        assert_eq!(ran.status.code(), Some(2), "{what} {options:?}");
    }
    assert_eq!(fs::read_to_string(scratch.path("table")).unwrap(), line);
}

#[test]
fn a_key_is_no_argument() {
    let ran = output(underseal().args(["table", "check", "0 8 zero"]));
    assert_eq!(ran.status.code(), Some(2));
}

#[test]
fn weak_choices_work_and_are_warned_of_once() {
    let scratch = Scratch::new();
    scratch.sparse("disk", 131_072);
    let equal = "11".repeat(64);
    for (line, words) in [
        (format!("0 8 crypt aes-ecb {} 0 disk 0", key(32)), "ecb"),
        ("0 8 crypt cipher_null-ecb - 0 disk 0".into(), "null"),
        (format!("0 8 crypt aes-cbc-plain {} 0 disk 0", key(32)), "plain"),
        (format!("0 8 crypt aes-xts-plain64 {equal} 0 disk 0"), "halves"),
        (format!("0 128 crypt aes-xts-plain64 {} 0 disk 0 1 sector_size:65536", key(64)), "65536"),
    ] {
        let ran = output(&mut table(&scratch, "check", &line));
        let err = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{line}: {err}");
        assert!(err.contains(words), "{line}: {err}");
        let mut lines: Vec<&str> = err.lines().map(|l| l.split_once(" WARN").map_or(l, |l| l.1)).collect();
        let all = lines.len();
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), all, "a warning came twice: {err}");
        assert!(!err.contains(&equal), "the key is told: {err}");
    }
}

#[test]
fn check_prints_the_status_and_the_key_only_when_asked() {
    let scratch = Scratch::new();
    scratch.sparse("disk", 8192);
    let (hidden, key) = ("0".repeat(128), key(64));
    let given = format!("0  8 crypt aes-xts-plain64 {key} 8 disk 0 2 sector_size:4096 allow_discards\n");
    let printed =
        |key: &str| format!("0 8 crypt aes-xts-plain64 {key} 8 disk 0 2 allow_discards sector_size:4096\n");
    let check = |options: &[&str]| crate::table::run(table(&scratch, "check", &given).args(options));
    assert_eq!(check(&[]), printed(&hidden));
    assert_eq!(check(&["--show-keys"]), printed(&key));
}
