//! Files that a command makes: no other user of their folder can put a link in their place.

use std::process::Command;

use crate::command::common::{CHEAP, Place};
use crate::support::tool;

/// Returns the system calls by which a command opens a file by its name.
fn opens(place: &Place, args: &[&str], name: &str) -> Vec<String> {
    let mut traced: Command = tool("strace");
    traced.args(["-f", "-o", "calls", "-e", "trace=?open,?creat,openat,openat2"]);
    traced.arg(env!("CARGO_BIN_EXE_underseal")).args(args).current_dir(place.path(""));
    let ran = traced.output().unwrap_or_else(|e| panic!("strace is needed for the tests: {e}"));
    assert!(ran.status.success(), "{args:?}: {ran:?}");
    let (calls, wanted) = (place.read("calls"), format!("\"{name}\""));
    let calls = String::from_utf8_lossy(&calls);
    calls.lines().filter(|call| call.contains(&wanted)).map(str::to_owned).collect()
}

#[test]
fn a_new_file_is_opened_once_as_it_is_made() {
    let place = Place::with_volume();
    place.run(&["header", "backup", "disk", "backup"]).succeeds();
    std::fs::File::create(place.path("data")).unwrap().set_len(20 << 20).unwrap();
    let format = [&["format", "-q", "--passphrase-file", "pass"], &CHEAP[..]].concat();
    let cases: [&[&str]; 5] = [
        &[&format[..], &["--size", "20M", "new"]].concat(),
        &[&format[..], &["data", "--header", "new"]].concat(),
        &["format", "-q", "--type", "plain", "--size", "1M", "new"],
        &["integrity", "format", "-q", "--size", "8M", "new"],
        &["header", "restore", "disk", "backup", "--header", "new"],
    ];
    for case in cases {
        let opened = opens(&place, case, "new");
        assert!(opened.len() == 1 && opened[0].contains("O_EXCL"), "{case:?}: {opened:#?}");
        std::fs::remove_file(place.path("new")).unwrap();
    }
}
