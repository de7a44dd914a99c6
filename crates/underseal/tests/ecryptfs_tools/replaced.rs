//! Names that another program replaces or removes in a tool's last moment: what is there by then
//! stays, and the tool says so.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs};
use crate::support::volume::underseal;
use crate::support::{Scratch, output, tool};

/// For how long a call of the tool is held up: the other program is done long before.
const DELAY: &str = "1500000";

/// A lower tree of files, and of a symlink called `link`.
fn tree(scratch: &Scratch, options: &[&str]) -> PathBuf {
    scratch.file("pass", b"the test's passphrase\n");
    fs::create_dir(scratch.path("plain")).unwrap();
    fs::write(scratch.path("plain/a"), b"the old version").unwrap();
    fs::write(scratch.path("plain/new"), b"the new version").unwrap();
    symlink("target", scratch.path("plain/link")).unwrap();
    assert_done(&ecryptfs(scratch, "import", &[&["plain", "lower"], options].concat()));
    scratch.path("lower")
}

/// A tool that is held up, or killed, at a call.
fn traced(scratch: &Scratch, call: &str, inject: &str, words: &[&str]) -> Command {
    let mut traced = tool("strace");
    traced.current_dir(scratch.folder()).args(["-f", "-o", "trace", "-e", &format!("trace={call}"), "-e"]);
    traced.arg(format!("inject={call}:{inject}")).arg(env!("CARGO_BIN_EXE_underseal"));
    traced.args(["ecryptfs", "-q"]).args(words);
    traced
}

/// Runs a tool that is held up at a call, and meanwhile another program.
fn while_held_up(
    scratch: &Scratch,
    call: &str,
    inject: &str,
    words: &[&str],
    other: impl FnOnce(),
) -> Output {
    let mut traced = traced(scratch, call, inject, words);
    let held = traced.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (trace, started) = (scratch.path("trace"), Instant::now());
    // The call is in the trace from its beginning on.
    while !fs::read_to_string(&trace).is_ok_and(|trace| trace.contains(&format!("{call}("))) {
        assert!(started.elapsed() < Duration::from_secs(60), "{call} was never reached");
        thread::sleep(Duration::from_millis(10));
    }
    other();
    held.wait_with_output().unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn cat(scratch: &Scratch, name: &str) -> Vec<u8> {
    ecryptfs(scratch, "cat", &["lower", name]).stdout
}

fn convert(scratch: &Scratch, words: &[&str]) -> Output {
    output(underseal().current_dir(scratch.folder()).args(["ecryptfs", "convert", "-q"]).args(words))
}

const CONVERT: [&str; 4] = ["convert", "lower", "--header", "xattr"];

#[test]
fn a_file_that_is_saved_in_a_conversions_last_moment_stays() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    fs::rename(lower.join("new"), scratch.path("new")).unwrap();
    let ran = while_held_up(&scratch, "renameat2", &format!("delay_enter={DELAY}"), &CONVERT, || {
        fs::rename(scratch.path("new"), lower.join("a")).unwrap();
    });
    assert_refused(&ran, 4, &["lower/a", "another file was put in its place"]);
    assert_eq!(cat(&scratch, "a"), b"the new version");
    assert_eq!(names(&lower), ["a", "link"]);
    assert_done(&convert(&scratch, &CONVERT[1..]));
    assert_eq!(cat(&scratch, "a"), b"the new version");
    assert_eq!(names(&lower), ["a", "link"]);
}

/// The new file is overwritten under its name before the tool sees what came out from there.
#[test]
fn files_that_are_saved_twice_in_a_conversions_last_moment_are_both_there() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    fs::rename(lower.join("new"), scratch.path("new")).unwrap();
    fs::copy(scratch.path("new"), scratch.path("newer")).unwrap();
    let delay = format!("delay_enter={DELAY}:delay_exit={DELAY}:when=1");
    let ran = while_held_up(&scratch, "renameat2", &delay, &CONVERT, || {
        fs::rename(scratch.path("new"), lower.join("a")).unwrap();
        let (newer, started) = (fs::metadata(lower.join("a")).unwrap().ino(), Instant::now());
        while fs::metadata(lower.join("a")).unwrap().ino() == newer {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing took its place");
            thread::sleep(Duration::from_millis(10));
        }
        fs::rename(scratch.path("newer"), lower.join("a")).unwrap();
    });
    assert_refused(&ran, 4, &["lower/a", "other files were put in its place", ".underseal-"]);
    let found = names(&lower);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(cat(&scratch, "a"), b"the new version");
    assert_eq!(cat(&scratch, &found[0]), b"the new version");
}

#[test]
fn a_file_that_is_removed_in_a_conversions_last_moment_does_not_come_back() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    fs::remove_file(lower.join("new")).unwrap();
    let ran = while_held_up(&scratch, "renameat2", &format!("delay_enter={DELAY}"), &CONVERT, || {
        fs::remove_file(lower.join("a")).unwrap();
    });
    assert_done(&ran);
    assert_eq!(names(&lower), ["link"]);
}

#[test]
fn attributes_that_a_file_gets_in_a_conversions_last_moment_stay() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    fs::remove_file(lower.join("new")).unwrap();
    let ran = while_held_up(&scratch, "renameat2", &format!("delay_enter={DELAY}"), &CONVERT, || {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(lower.join("a"), "user.mine", b"1", flags).unwrap();
    });
    assert_refused(&ran, 4, &["lower/a", "were changed meanwhile"]);
    assert_eq!(rustix::fs::getxattr(lower.join("a"), "user.mine", &mut [0; 9][..]).unwrap(), 1);
    assert_eq!(names(&lower), ["a", "link"]);
}

/// The two files have exchanged their names: the old one is left over, but for what was written to
/// it since.
#[test]
fn an_old_file_under_a_temporary_name_is_removed_unless_it_was_changed() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    fs::remove_file(lower.join("new")).unwrap();
    for (is_changed, place) in [(false, "xattr"), (true, "file")] {
        let words = ["convert", "lower", "--header", place];
        assert!(!output(&mut traced(&scratch, "unlinkat", "signal=KILL:when=1", &words)).status.success());
        let left = names(&lower);
        assert!(left.len() == 3 && left[0].starts_with(".underseal-"), "{left:?}");
        let rename = ["lower", "-o", "ecryptfs_enable_filename_crypto"];
        let refused = ecryptfs(&scratch, "rename-tree", &rename);
        assert_refused(&refused, 4, &["convert the tree again first"]);
        let old = lower.join(&left[0]);
        assert!(old.exists() && lower.join("a").exists());
        if is_changed {
            let file = fs::File::options().write(true).open(&old).unwrap();
            file.set_modified(std::time::SystemTime::now()).unwrap();
            assert_refused(&convert(&scratch, &words[1..]), 7, &["lower/a", "compare the two"]);
            assert!(old.exists());
            break;
        }
        assert_eq!(cat(&scratch, "a"), b"the old version");
        // The other way, where the file that is in place is another one's old one in turn.
        assert_done(&convert(&scratch, &["lower", "--header", "file"]));
        assert_done(&ecryptfs(&scratch, "rename-tree", &["lower", "--plain"]));
        assert_eq!((names(&lower).len(), cat(&scratch, "a")), (2, b"the old version".to_vec()));
        assert_done(&convert(&scratch, &["lower", "--header", "xattr"]));
    }
}

/// A further name of a new file was about to take its place.
#[test]
fn a_further_name_under_a_temporary_name_does_not_count_as_a_change() {
    for call in ["renameat2", "unlinkat"] {
        let scratch = Scratch::new();
        let lower = tree(&scratch, &[]);
        fs::remove_file(lower.join("new")).unwrap();
        fs::hard_link(lower.join("a"), lower.join("b")).unwrap();
        assert!(!output(&mut traced(&scratch, call, "signal=KILL:when=2", &CONVERT)).status.success());
        assert_eq!(names(&lower).len(), 4, "{call}");
        assert_done(&convert(&scratch, &["lower", "--header", "file"]));
        for name in ["a", "b"] {
            assert_eq!(cat(&scratch, name), b"the old version");
        }
        assert_done(&convert(&scratch, &CONVERT[1..]));
        assert_eq!(names(&lower), ["a", "b", "link"], "{call}");
    }
}

/// A file of a user's own, which has the name, or once was a conversion's.
#[test]
fn a_users_own_file_with_a_temporary_name_stays() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    fs::hard_link(lower.join("a"), lower.join("b")).unwrap();
    assert_done(&convert(&scratch, &CONVERT[1..]));
    // A file of several names keeps the mark until the last one is in place.
    fs::remove_file(lower.join("b")).unwrap();
    fs::rename(lower.join("a"), lower.join(".underseal-7")).unwrap();
    for place in ["xattr", "file", "file"] {
        assert_done(&convert(&scratch, &["lower", "--header", place]));
        assert_eq!(cat(&scratch, ".underseal-7"), b"the old version", "{place}");
    }
}

#[test]
fn a_mark_that_cannot_be_read_is_an_error_and_not_none() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    fs::remove_file(lower.join("new")).unwrap();
    fs::hard_link(lower.join("a"), lower.join("b")).unwrap();
    let mut failures = 0;
    for number in 1.. {
        let copy = scratch.path(&format!("copy{number}"));
        assert_done(&output(tool("cp").arg("-a").arg(&lower).arg(&copy)));
        let words = ["convert", copy.to_str().unwrap(), "--header", "xattr"];
        let ran = output(&mut traced(&scratch, "fgetxattr", &format!("error=EIO:when={number}"), &words));
        if !fs::read_to_string(scratch.path("trace")).unwrap().contains("INJECTED") {
            break;
        }
        assert!(!ran.status.success(), "call {number}");
        failures += 1;
        assert_done(&convert(&scratch, &words[1..]));
        let [a, b] = ["a", "b"].map(|name| fs::metadata(copy.join(name)).unwrap().ino());
        assert_eq!(a, b, "call {number}: two names of one file");
    }
    assert!(failures > 3, "{failures}");
}

const ENCRYPTED: &str = "ecryptfs_enable_filename_crypto";

/// A file is saved under a symlink's name while the symlink gets another name, or another target.
#[test]
fn a_file_that_is_saved_over_a_symlink_while_it_is_renamed_stays() {
    for (made, renamed) in
        [(&["-o", ENCRYPTED][..], &["--plain"][..]), (&[], &["-o", ENCRYPTED]), (&["-o", ENCRYPTED], &[])]
    {
        let scratch = Scratch::new();
        let lower = tree(&scratch, made);
        scratch.file("precious", b"not the tool's");
        let is_symlink = |name: &&String| lower.join(name).is_symlink();
        let mut link = lower.join(names(&lower).iter().find(is_symlink).unwrap());
        let mut words = vec!["rename-tree", "lower", "--passphrase-file", "pass"];
        if renamed.is_empty() {
            // The name stays.
            fs::rename(&link, lower.join("link")).unwrap();
            link = lower.join("link");
            words.push("--plain");
        }
        words.extend(renamed);
        let delay = format!("delay_exit={DELAY}:when=1");
        let ran = while_held_up(&scratch, "symlinkat", &delay, &words, || {
            fs::rename(scratch.path("precious"), &link).unwrap();
        });
        assert_refused(&ran, 7, &["another file was put in its place"]);
        assert_eq!(fs::read(&link).unwrap(), b"not the tool's", "{renamed:?}");
        assert!(names(&lower).iter().find(is_symlink).is_none(), "the symlink is gone");
        assert_eq!(names(&lower).len(), 3);
    }
}

/// A file with another inode under the name that is about to change.
#[test]
fn a_file_that_replaces_another_one_while_that_is_renamed_keeps_its_name() {
    let scratch = Scratch::new();
    let lower = tree(&scratch, &[]);
    for name in ["link", "new"] {
        fs::remove_file(lower.join(name)).unwrap();
    }
    scratch.file("precious", b"not the tool's");
    let words = ["rename-tree", "lower", "-o", ENCRYPTED, "--passphrase-file", "pass"];
    let ran = while_held_up(&scratch, "renameat2", &format!("delay_enter={DELAY}:when=1"), &words, || {
        fs::rename(scratch.path("precious"), lower.join("a")).unwrap();
    });
    assert_refused(&ran, 4, &["another file was put in its place"]);
    assert_eq!(fs::read(lower.join("a")).unwrap(), b"not the tool's");
    assert_eq!(names(&lower), ["a"]);
}
