//! Keys that open a tree.

use std::fs;
use std::path::Path;

use crate::ecryptfs_tools::{
    assert_done, assert_exports, assert_refused, ecryptfs, imported, lower_file, stderr,
};
use crate::support::volume::underseal;
use crate::support::{Scratch, output, run};

/// Of "the test's passphrase".
const OLD: &str = "ada73b7137ee903a";

fn swap(scratch: &Scratch) {
    fs::copy(scratch.path("new"), scratch.path("pass")).unwrap();
}

/// All bytes of the lower files behind their headers.
fn contents(folder: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let files = names.iter().filter(|path| path.is_file() && !path.is_symlink());
    files.map(|path| fs::read(path).unwrap()[8192..].to_vec()).collect()
}

#[test]
fn a_new_passphrase_takes_the_place_of_the_old_one() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    scratch.file("new", b"another one\n");
    let before = contents(&scratch.path("lower"));
    for _ in 0..2 {
        assert_done(&ecryptfs(&scratch, "rewrap", &["lower", "--new-passphrase-file", "new"]));
    }
    assert!(contents(&scratch.path("lower")) == before, "no contents were written");
    assert_refused(&ecryptfs(&scratch, "export", &["lower", "back"]), 3, &["lower/file1: none of the keys"]);
    fs::remove_dir_all(scratch.path("back")).unwrap();
    swap(&scratch);
    assert_exports(&scratch);
}

#[test]
fn an_interrupted_rewrap_is_taken_up_again() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    scratch.file("new", b"another one\n");
    // Half of the tree has it already.
    for file in ["file0", "file4096", "folder"] {
        let part = format!("lower/{file}");
        assert_done(&ecryptfs(&scratch, "rewrap", &[&part, "--new-passphrase-file", "new"]));
    }
    assert_done(&ecryptfs(&scratch, "rewrap", &["lower", "--new-passphrase-file", "new"]));
    swap(&scratch);
    assert_exports(&scratch);
}

#[test]
fn keys_are_added_and_removed_but_never_the_last() {
    let scratch = Scratch::new();
    imported(&scratch, "ecryptfs_xattr_metadata");
    scratch.file("new", b"another one\n");
    assert_refused(&ecryptfs(&scratch, "remove-key", &["lower", OLD]), 2, &["only key"]);
    assert_done(&ecryptfs(&scratch, "add-key", &["lower", "--new-passphrase-file", "new"]));
    assert_exports(&scratch);
    // Removing a key needs another key of the file, which is then the one that opens it.
    assert_refused(&ecryptfs(&scratch, "remove-key", &["lower", OLD]), 3, &["none of the keys"]);
    swap(&scratch);
    assert_exports(&scratch);
    assert_done(&ecryptfs(&scratch, "remove-key", &["lower", OLD]));
    assert_exports(&scratch);
    let info = run(underseal().args(["ecryptfs", "info", "--json"]).arg(scratch.path("lower")));
    assert!(!info.contains(OLD), "{info}");
}

#[test]
fn a_header_holds_as_many_keys_as_a_sector_can_be_sure_of() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    let file = lower_file(&scratch, "file15");
    let mut refused = None;
    for nth in 0..10 {
        scratch.file("new", format!("passphrase {nth}").as_bytes());
        let added = ecryptfs(&scratch, "add-key", &["lower/file15", "--new-passphrase-file", "new"]);
        if !added.status.success() {
            refused = Some((nth, added));
            break;
        }
    }
    let (nth, refused) = refused.expect("a sector has an end");
    assert!(nth > 5, "{}", stderr(&refused));
    assert_refused(&refused, 6, &["lower/file15", "sector"]);
    assert_eq!(fs::read(&file).unwrap().len(), 12288);
    assert_exports(&scratch);
}

#[test]
fn a_wrong_passphrase_and_a_wrong_signature_are_named() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    scratch.file("pass", b"wrong");
    assert_refused(&ecryptfs(&scratch, "cat", &["lower/file15"]), 3, &["lower/file15", OLD]);
    let options = format!("ecryptfs_sig={OLD}");
    assert_refused(&ecryptfs(&scratch, "export", &["lower", "back", "-o", &options]), 3, &[OLD, "try:"]);
    assert!(!scratch.path("back").exists());
    scratch.file("pass", &[b'x'; 65]);
    assert_refused(&ecryptfs(&scratch, "cat", &["lower/file15"]), 2, &["1 to 64 bytes"]);
}

#[test]
fn a_passphrase_may_come_wrapped_or_by_an_option() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    scratch.file("login", b"login\n");
    for version in [&[][..], &["--version-1"]] {
        let _ = fs::remove_file(scratch.path("wrapped"));
        assert_done(&ecryptfs(
            &scratch,
            "wrap",
            &[&["wrapped", "--new-passphrase-file", "login"], version].concat(),
        ));
        let mut unwrap = underseal();
        unwrap.current_dir(scratch.folder()).args([
            "ecryptfs",
            "unwrap",
            "wrapped",
            "--passphrase-file",
            "login",
        ]);
        assert_eq!(run(&mut unwrap), "the test's passphrase\n");
        let mut cat = underseal();
        cat.current_dir(scratch.folder()).args(["ecryptfs", "cat", "lower/file15", "--wrapped", "wrapped"]);
        let cat = output(cat.args(["--passphrase-file", "login"]));
        assert_done(&cat);
        assert_eq!(cat.stdout, fs::read(scratch.path("plain/file15")).unwrap());
        // The passphrase in `pass` is not the login passphrase, which `unwrap` needs.
        assert_refused(
            &ecryptfs(&scratch, "unwrap", &["wrapped"]),
            3,
            &["wrapped", "the wrapping passphrase is wrong"],
        );
    }
    scratch.file("named", b"passphrase_passwd=the test's passphrase\n");
    let mut cat = underseal();
    cat.current_dir(scratch.folder()).args(["ecryptfs", "cat", "lower/file15"]);
    assert_done(&output(cat.args(["-o", "key=passphrase:passphrase_passwd_file=named"])));
}

#[test]
fn a_salt_that_only_headers_know_is_found() {
    let scratch = Scratch::new();
    imported(&scratch, "key=passphrase:passphrase_salt=0102030405060708");
    assert_exports(&scratch);
}
