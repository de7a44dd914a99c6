//! Names of a tree under another key: runs that are killed, and what is in the way.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::ecryptfs_tools::{assert_refused, stderr};
use crate::support::volume::underseal;
use crate::support::{Scratch, output, run, tool};

/// `underseal ecryptfs VERB` in a folder.
fn ecryptfs(scratch: &Scratch, words: &str) -> Command {
    let mut command = underseal();
    command.current_dir(scratch.folder()).args(["ecryptfs"]).args(words.split(' '));
    command
}

/// A lower tree with a file and a symlink, whose names have the key of the passphrase `old`.
fn tree() -> Scratch {
    let scratch = Scratch::new();
    scratch.file("old", b"old\n");
    scratch.file("new", b"new\n");
    fs::create_dir(scratch.path("plain")).unwrap();
    fs::write(scratch.path("plain/file"), "contents").unwrap();
    symlink("target", scratch.path("plain/link")).unwrap();
    run(&mut ecryptfs(
        &scratch,
        "import plain lower -o ecryptfs_enable_filename_crypto --passphrase-file old -q",
    ));
    scratch
}

/// The path of the tree's only symlink.
fn link(scratch: &Scratch) -> std::path::PathBuf {
    let entries = fs::read_dir(scratch.path("lower")).unwrap().map(|entry| entry.unwrap());
    entries.into_iter().find(|entry| entry.file_type().unwrap().is_symlink()).unwrap().path()
}

/// Kills a run at each call that changes a name, and asserts that the next run completes it.
fn kills_each(prepare: impl Fn() -> Scratch, rename: &str) -> usize {
    let mut kills = 0;
    for call in ["symlinkat", "renameat2", "unlinkat"] {
        for number in 1.. {
            let scratch = prepare();
            let what = format!("killed at {call} number {number}");
            let mut traced = tool("strace");
            traced.args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e"]);
            traced.arg(format!("inject={call}:signal=KILL:when={number}"));
            let command = ecryptfs(&scratch, rename);
            traced.current_dir(scratch.folder()).arg(command.get_program()).args(command.get_args());
            let killed = output(&mut traced);
            let again = output(&mut ecryptfs(&scratch, rename));
            assert!(again.status.success(), "{what}: {}", stderr(&again));
            assert_eq!(fs::read_dir(scratch.path("lower")).unwrap().count(), 2, "{what}");
            run(&mut ecryptfs(&scratch, "export lower back --passphrase-file old --passphrase-file new -q"));
            assert_eq!(fs::read_link(scratch.path("back/link")).unwrap(), Path::new("target"), "{what}");
            assert_eq!(fs::read(scratch.path("back/file")).unwrap(), b"contents", "{what}");
            if killed.status.success() {
                break;
            }
            kills += 1;
        }
    }
    kills
}

#[test]
fn a_run_that_was_killed_is_completed_by_the_next_one() {
    let rename = "rename-tree lower --passphrase-file old --new-passphrase-file new";
    assert!(kills_each(tree, rename) >= 3);
    // A symlink whose name stays and whose target changes.
    let with_plain_names = || {
        let scratch = tree();
        fs::rename(link(&scratch), scratch.path("lower/link")).unwrap();
        scratch
    };
    assert!(kills_each(with_plain_names, "rename-tree lower --plain --passphrase-file old") >= 3);
}

#[test]
fn a_symlink_is_not_put_over_another_one() {
    let scratch = tree();
    let before = link(&scratch);
    symlink("elsewhere", scratch.path("lower/link")).unwrap();
    let refused = output(&mut ecryptfs(&scratch, "rename-tree lower --plain --passphrase-file old"));
    assert_refused(&refused, 7, &["File exists"]);
    assert_eq!(fs::read_link(scratch.path("lower/link")).unwrap(), Path::new("elsewhere"));
    assert!(before.is_symlink());
}

#[test]
fn names_get_the_key_of_a_new_passphrase_whatever_the_options_say() {
    let encrypted = |scratch: &Scratch, with: &str| {
        let words = format!("name --encode file -o ecryptfs_enable_filename_crypto --passphrase-file {with}");
        run(&mut ecryptfs(scratch, &words))
    };
    for options in ["", " -o ecryptfs_enable_filename_crypto"] {
        let scratch = tree();
        let rename = "rename-tree lower -q --passphrase-file old --new-passphrase-file new";
        run(&mut ecryptfs(&scratch, &format!("{rename}{options}")));
        run(&mut ecryptfs(&scratch, "rewrap lower -q --passphrase-file old --new-passphrase-file new"));
        // The old one is thrown away.
        run(&mut ecryptfs(&scratch, "export lower back --passphrase-file new -q"));
        assert_eq!(fs::read(scratch.path("back/file")).unwrap(), b"contents", "{options}");
        assert_eq!(fs::read_link(scratch.path("back/link")).unwrap(), Path::new("target"), "{options}");
    }
    // With the option alone the present passphrase's key stays.
    let scratch = tree();
    run(&mut ecryptfs(
        &scratch,
        "rename-tree lower -q --passphrase-file old -o ecryptfs_enable_filename_crypto",
    ));
    assert!(scratch.path("lower").join(encrypted(&scratch, "old").trim()).exists());
}

#[test]
fn two_keys_for_the_names_are_refused() {
    let scratch = tree();
    let before = link(&scratch);
    let keys = "--passphrase-file old --new-passphrase-file new";
    for (words, why) in [
        ("-o ecryptfs_fnek_sig=0011223344556677", "ecryptfs_fnek_sig=0011223344556677 name two keys"),
        ("--plain", "cannot be used with"),
    ] {
        let refused = output(&mut ecryptfs(&scratch, &format!("rename-tree lower {keys} {words}")));
        assert_refused(&refused, 2, &[why]);
        assert!(before.is_symlink(), "nothing is renamed");
    }
}
