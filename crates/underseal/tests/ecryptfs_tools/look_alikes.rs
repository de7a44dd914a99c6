//! Users' files in trees with plain names that are called as encrypted names, or as files that hold
//! long ones.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::ecryptfs_kernel::tree::assert_same_tree;
use crate::ecryptfs_tools::{assert_done, assert_exports, assert_refused, ecryptfs, stderr};
use crate::support::volume::underseal;
use crate::support::{Scratch, output, tool};

const ENCRYPTED: &str = "ecryptfs_enable_filename_crypto,long_names";

fn name_file() -> String {
    format!("UNDERSEAL_LONG_NAME.{}.name", "a".repeat(64))
}

/// A plain folder with files called as name files are, one of them in the form of a new one.
fn tree(scratch: &Scratch) {
    scratch.file("pass", b"the test's passphrase\n");
    scratch.file("new", b"another passphrase\n");
    let plain = scratch.path("plain/folder");
    fs::create_dir_all(&plain).unwrap();
    fs::write(plain.join("other"), b"y").unwrap();
    fs::write(plain.join(name_file()), b"bytes").unwrap();
    fs::write(plain.join(name_file() + ".0123456789abcdef"), b"").unwrap();
}

#[track_caller]
fn as_before(scratch: &Scratch, passphrases: &[&str]) {
    let back = scratch.path("back");
    let mut export = underseal();
    export.current_dir(scratch.folder()).args(["ecryptfs", "export", "-q", "lower", "back"]);
    for passphrase in passphrases {
        export.args(["--passphrase-file", passphrase]);
    }
    assert_done(&output(&mut export));
    assert_same_tree(&back, &scratch.path("plain"), "exported");
    fs::remove_dir_all(back).unwrap();
}

#[test]
fn a_file_called_as_a_name_file_is_a_file_for_every_tool() {
    for options in ["ecryptfs_cipher=aes", "ecryptfs_xattr_metadata"] {
        let scratch = Scratch::new();
        tree(&scratch);
        assert_done(&ecryptfs(&scratch, "import", &["plain", "lower", "-o", options]));
        as_before(&scratch, &["pass"]);
        let listed = ecryptfs(&scratch, "ls", &["lower"]);
        assert!(String::from_utf8_lossy(&listed.stdout).contains(&name_file()));
        let info =
            output(underseal().current_dir(scratch.folder()).args(["ecryptfs", "info", "lower", "--json"]));
        assert!(String::from_utf8_lossy(&info.stdout).contains("\"files\": 3"), "{info:?}");
        let args = ["ecryptfs", "check", "lower", "--passphrase-file", "pass"];
        let checked = output(underseal().current_dir(scratch.folder()).args(args));
        assert_done(&checked);
        assert!(!stderr(&checked).contains("left over"), "{}", stderr(&checked));
        let new = ["lower", "--new-passphrase-file", "new"];
        assert_done(&ecryptfs(&scratch, "add-key", &new));
        as_before(&scratch, &["new"]);
        assert_done(&ecryptfs(&scratch, "rewrap", &new));
        as_before(&scratch, &["new"]);
        for place in ["xattr", "file"] {
            let args = ["ecryptfs", "convert", "-q", "lower", "--header", place];
            assert_done(&output(underseal().current_dir(scratch.folder()).args(args)));
            let lower = scratch.path("lower/folder").join(name_file());
            assert_eq!(fs::metadata(lower).unwrap().len(), if place == "xattr" { 4096 } else { 12288 });
            as_before(&scratch, &["new"]);
        }
        for rename in [&["-o", ENCRYPTED][..], &["--plain"]] {
            assert_done(&ecryptfs(&scratch, "rename-tree", &[&["lower"][..], rename].concat()));
            as_before(&scratch, &["pass", "new"]);
        }
    }
}

/// A plain folder that has a lower one in it: encrypted names, long ones, and a target.
fn with_a_lower_folder(scratch: &Scratch) -> PathBuf {
    tree(scratch);
    let inner = scratch.path("inner");
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("short"), b"short").unwrap();
    fs::write(inner.join("l".repeat(200)), b"long").unwrap();
    symlink("short", inner.join("link")).unwrap();
    let args = ["inner", "plain/copy", "-o", ENCRYPTED];
    assert_done(&ecryptfs(scratch, "import", &args));
    scratch.path("plain/copy")
}

fn import(scratch: &Scratch, plain: &str) -> String {
    let imported = ecryptfs(scratch, "import", &[plain, "lower"]);
    assert_done(&imported);
    stderr(&imported)
}

#[test]
fn plain_names_that_look_encrypted_come_back_where_that_is_said() {
    let scratch = Scratch::new();
    let copy = with_a_lower_folder(&scratch);
    let said = import(&scratch, "plain");
    assert!(said.contains("looks like an encrypted one") && said.contains("--plain-names"), "{said}");
    // Three names, one of them long, and a target.
    assert!(said.contains("4 names and targets"), "{said}");
    assert_done(&ecryptfs(&scratch, "export", &["lower", "back", "--plain-names"]));
    assert_same_tree(&scratch.path("back"), &scratch.path("plain"), "exported");
    let listed = ecryptfs(&scratch, "ls", &["lower", "--plain-names"]);
    for entry in fs::read_dir(copy).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains(&name), "{name}");
        let cat = ecryptfs(&scratch, "cat", &["lower", &format!("copy/{name}"), "--plain-names"]);
        assert!(name.ends_with(".name") || !cat.stdout.is_empty() || !cat.status.success(), "{name}");
    }
    assert_done(&ecryptfs(&scratch, "check", &["lower", "--plain-names"]));
    let new = ["lower", "--new-passphrase-file", "new", "--plain-names"];
    assert_done(&ecryptfs(&scratch, "rewrap", &new));
    // Without it nothing is lost in silence.
    assert_refused(&ecryptfs(&scratch, "check", &["lower"]), 7, &["another one, or a part"]);
}

#[test]
fn an_archive_with_names_that_look_encrypted_is_warned_of() {
    let scratch = Scratch::new();
    with_a_lower_folder(&scratch);
    let plain = scratch.path("plain");
    assert_done(&output(tool("tar").arg("-C").arg(&plain).arg("-cf").arg(scratch.path("tar")).arg(".")));
    let said = import(&scratch, "tar");
    assert!(said.contains("looks like an encrypted one") && said.contains("4 names and targets"), "{said}");
    assert_done(&ecryptfs(&scratch, "export", &["lower", "back", "--plain-names"]));
    assert_same_tree(&scratch.path("back"), Path::new(&plain), "exported");
}

#[test]
fn where_names_are_encrypted_all_names_come_back() {
    let scratch = Scratch::new();
    with_a_lower_folder(&scratch);
    let imported = ecryptfs(&scratch, "import", &["plain", "lower", "-o", ENCRYPTED]);
    assert_done(&imported);
    assert!(!stderr(&imported).contains("looks like"), "{}", stderr(&imported));
    assert_exports(&scratch);
    let both = ["lower", "back", "--plain-names", "-o", ENCRYPTED];
    assert_refused(&ecryptfs(&scratch, "export", &both), 2, &["plain and encrypted at the same time"]);
    let rename = ["lower", "--plain", "--plain-names"];
    assert_refused(&ecryptfs(&scratch, "rename-tree", &rename), 2, &["without --plain-names"]);
}
