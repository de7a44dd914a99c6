//! Files that a command makes: no other user of their folder can put a link in their place.

use std::fs;
use std::process::{Command, Output};

use crate::command::common::{CHEAP, Place};
use crate::support::tool;

/// Runs a command under strace with these options, and returns its output.
fn traced(place: &Place, options: &[&str], args: &[&str]) -> Output {
    let mut traced: Command = tool("strace");
    traced.args(["-f", "-o", "calls"]).args(options);
    traced.arg(env!("CARGO_BIN_EXE_underseal")).args(args).current_dir(place.path(""));
    traced.output().unwrap_or_else(|e| panic!("strace is needed for the tests: {e}"))
}

/// Returns the system calls by which a command opens a file by its name.
fn opens(place: &Place, args: &[&str], name: &str) -> Vec<String> {
    let ran = traced(place, &["-e", "trace=?open,?creat,openat,openat2"], args);
    assert!(ran.status.success(), "{args:?}: {ran:?}");
    let (calls, wanted) = (place.read("calls"), format!("\"{name}\""));
    let calls = String::from_utf8_lossy(&calls);
    calls.lines().filter(|call| call.contains(&wanted)).map(str::to_owned).collect()
}

/// Runs a check with the commands that make a file `new`.
fn with_each(check: impl Fn(&Place, &[&str])) {
    let place = Place::with_volume();
    place.run(&["header", "backup", "disk", "backup"]).succeeds();
    fs::File::create(place.path("data")).unwrap().set_len(20 << 20).unwrap();
    let format = [&["format", "-q", "--passphrase-file", "pass"], &CHEAP[..]].concat();
    let encrypt =
        [&["reencrypt", "-q", "--encrypt", "plain", "--passphrase-file", "pass"], &CHEAP[..]].concat();
    let cases: [&[&str]; 6] = [
        &[&format[..], &["--size", "20M", "new"]].concat(),
        &[&format[..], &["data", "--header", "new"]].concat(),
        &["format", "-q", "--type", "plain", "--size", "1M", "new"],
        &["integrity", "format", "-q", "--size", "8M", "new"],
        &["header", "restore", "disk", "backup", "--header", "new"],
        &[&encrypt[..], &["--header", "new"]].concat(),
    ];
    for case in cases {
        fs::write(place.path("plain"), vec![1; 1 << 20]).unwrap();
        check(&place, case);
    }
}

#[test]
fn a_new_file_is_opened_once_as_it_is_made() {
    with_each(|place, case| {
        let opened = opens(place, case, "new");
        assert!(!opened.is_empty() && opened[0].contains("O_EXCL"), "{case:?}: {opened:#?}");
        // A reencryption watches the file's name.
        assert!(opened.len() == 1 || case.contains(&"reencrypt"), "{case:?}: {opened:#?}");
        fs::remove_file(place.path("new")).unwrap();
    });
}

#[test]
fn a_new_file_whose_name_cannot_be_synced_is_removed() {
    with_each(|place, case| {
        let faults = ["-e", "trace=fsync,fdatasync", "-e", "inject=fsync:error=EIO:when=1"];
        let ran = traced(place, &faults, case);
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && said.contains("Input/output error"), "{case:?}: {ran:?}");
        assert!(!place.path("new").exists(), "{case:?}: {said}");
    });
}

#[test]
fn where_no_folder_can_be_synced_the_file_system_is() {
    let place = Place::new();
    let format = ["format", "-q", "--type", "plain", "--size", "1M", "new"];
    let fault = ["-e", "trace=fsync,syncfs", "-e", "inject=fsync:error=EINVAL:when=1"];
    let ran = traced(&place, &fault, &format);
    let calls = place.read("calls");
    let calls = String::from_utf8_lossy(&calls);
    assert!(ran.status.success() && calls.contains("syncfs("), "{ran:?}\n{calls}");
}
