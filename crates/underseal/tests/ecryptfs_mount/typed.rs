//! A passphrase that was mistyped makes no key: it is compared with what is there, and typed again
//! where nothing is.

use std::fs;
use std::path::Path;
use std::process::Output;

use underseal_ecryptfs::{AuthToken, Signature};

use crate::ecryptfs_mount::mounted::{Folder, PASSPHRASE, unable, underseal, unmount_stale};
use crate::support::output;
use crate::support::terminal::Terminal;

fn signature(passphrase: &str) -> Signature {
    AuthToken::from_passphrase(passphrase.as_bytes(), AuthToken::DEFAULT_SALT).unwrap().signature()
}

fn of_names(passphrase: &str) -> Signature {
    AuthToken::from_passphrase(passphrase.as_bytes(), AuthToken::NAME_SALT).unwrap().signature()
}

#[track_caller]
fn assert_refused(output: &Output, words: &[&str]) {
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    for word in words {
        assert!(said.contains(word), "no {word:?} in {said}");
    }
}

/// A lower folder with a file under the tests' passphrase, and a file with another.
fn with_a_typo(options: &str) -> Folder {
    let folder = Folder::new();
    folder.scratch.file("typo", b"a passphrase of the tets");
    let mount = folder.mount(options);
    fs::create_dir_all(folder.at("in/deep")).unwrap();
    fs::write(folder.at("in/deep/file"), b"x").unwrap();
    mount.unmount();
    folder
}

#[test]
fn a_passphrase_that_opens_nothing_is_refused_unless_it_is_meant() {
    if unable("a_passphrase_that_opens_nothing_is_refused_unless_it_is_meant") {
        return;
    }
    for options in ["", "ecryptfs_xattr_metadata", "ecryptfs_enable_filename_crypto"] {
        let folder = with_a_typo(options);
        let (ours, typo) = (signature(PASSPHRASE).to_string(), signature("a passphrase of the tets"));
        let meant = format!("ecryptfs_sig={typo}");
        assert_refused(&folder.refused(options, &["typo"]), &[&ours, &meant]);
        assert_eq!(fs::read_dir(&folder.plain).unwrap().count(), 0, "nothing is mounted");
        // Names have a key of their own, which is not meant by that.
        if options != "ecryptfs_enable_filename_crypto" {
            folder.mount_with(&format!("{options},{meant}"), &["typo"]).unmount();
        }
        // A correct one of two passphrases is enough; names are encrypted with the first.
        folder.mount_with(options, &["passphrase", "typo"]).unmount();
        folder.mount(options).unmount();
    }
}

#[test]
fn in_a_tree_of_several_keys_each_is_known() {
    if unable("in_a_tree_of_several_keys_each_is_known") {
        return;
    }
    let folder = with_a_typo("");
    folder.scratch.file("second", b"another one");
    let mount = folder.mount_with(&format!("ecryptfs_sig={}", signature("another one")), &["second"]);
    fs::write(folder.at("second"), b"y").unwrap();
    mount.unmount();
    fs::write(folder.below("plain"), b"not encrypted").unwrap();
    fs::write(folder.below("zeros"), [0; 9000]).unwrap();
    for passphrase in ["passphrase", "second"] {
        folder.mount_with("", &[passphrase]).unmount();
    }
    assert_refused(&folder.refused("", &["typo"]), &["try:"]);
    assert_refused(&folder.refused("ro", &["typo"]), &["try:"]);
    // The encrypted view decrypts nothing, so any passphrase is accepted.
    folder.mount_with("ecryptfs_encrypted_view", &["typo"]).unmount();
}

#[test]
fn names_under_another_key_are_told_of() {
    if unable("names_under_another_key_are_told_of") {
        return;
    }
    let names = of_names(PASSPHRASE).to_string();
    let folder = with_a_typo(&format!("ecryptfs_fnek_sig={names}"));
    let own = signature(PASSPHRASE).to_string();
    // By default names have the key of contents, under which nothing here would be seen.
    let refused = folder.refused("ecryptfs_enable_filename_crypto", &["passphrase"]);
    assert_refused(&refused, &[&names, &own, &format!("-o ecryptfs_fnek_sig={names}")]);
    let mount = folder.mount(&format!("ecryptfs_fnek_sig={names}"));
    assert_eq!(fs::read(folder.at("in/deep/file")).unwrap(), b"x");
    mount.unmount();
    folder.mount(&format!("ecryptfs_fnek_sig={own}")).unmount();
    // Without files the passphrase is compared with the names alone.
    fs::remove_dir_all(&folder.lower).unwrap();
    fs::create_dir(&folder.lower).unwrap();
    let mount = folder.mount("ecryptfs_enable_filename_crypto");
    fs::create_dir(folder.at("empty")).unwrap();
    mount.unmount();
    assert_refused(&folder.refused("ecryptfs_enable_filename_crypto", &["typo"]), &[&own]);
}

#[test]
fn where_nothing_is_the_key_is_shown() {
    if unable("where_nothing_is_the_key_is_shown") {
        return;
    }
    let folder = Folder::new();
    let mount = |quiet: &[&str]| {
        let mut command = underseal();
        command.current_dir(folder.scratch.folder()).args(quiet);
        command.args(["ecryptfs", "mount", "lower", "plain", "--daemon", "--passphrase-file", "passphrase"]);
        let mounted = output(&mut command);
        unmount(&folder.plain);
        assert!(mounted.status.success(), "{mounted:?}");
        String::from_utf8(mounted.stdout).unwrap()
    };
    let line = format!("new files are for the key {}\n", signature(PASSPHRASE));
    assert!(mount(&[]).contains(&line));
    assert_eq!(mount(&["-q"]), "");
}

/// Waits until it is gone.
fn unmount(plain: &Path) {
    crate::support::tools::wait_until("it is unmounted", std::time::Duration::from_secs(60), || {
        output(underseal().args(["ecryptfs", "umount"]).arg(plain)).status.success()
    });
}

const MOUNT: [&str; 5] = ["ecryptfs", "mount", "--daemon", "lower", "plain"];

#[test]
fn in_an_empty_folder_it_is_typed_twice() {
    if unable("in_an_empty_folder_it_is_typed_twice") {
        return;
    }
    let folder = Folder::new();
    let here = folder.scratch.folder();
    let mut terminal = Terminal::run(here, &MOUNT);
    terminal.sees("Passphrase for lower: ").types("secret\n").sees("The same again: ").types("secrte\n");
    let (code, shown) = terminal.ends();
    assert!(code == Some(2) && shown.contains("the two passphrases differ"), "{code:?} {shown}");

    let mut terminal = Terminal::run(here, &MOUNT);
    terminal.sees("Passphrase for lower: ").types("secret\n").sees("The same again: ").types("secret\n");
    terminal.sees(&format!("new files are for the key {}", signature("secret"))).sees("is mounted on");
    assert_eq!(terminal.ends().0, Some(0));
    fs::write(folder.at("file"), b"x").unwrap();
    unmount(&folder.plain);

    // Now there is something: it is asked for once, and again when it opens nothing.
    let mut terminal = Terminal::run(here, &MOUNT);
    terminal.sees("Passphrase for lower: ").types("secrte\n").sees("files there are for the key");
    terminal.sees("Passphrase for lower: ").types("secret\n").sees("is mounted on");
    let (code, shown) = terminal.ends();
    assert!(code == Some(0) && !shown.contains("again") && !shown.contains("secre"), "{code:?} {shown}");
    assert_eq!(fs::read(folder.at("file")).unwrap(), b"x");
    unmount(&folder.plain);

    let mut terminal = Terminal::run(here, &MOUNT);
    for _ in 0..3 {
        terminal.sees("Passphrase for lower: ").types("wrong\n");
    }
    let (code, shown) = terminal.ends();
    assert!(code == Some(3) && shown.contains("-o ecryptfs_sig="), "{code:?} {shown}");
    unmount_stale(&folder.plain);
}
