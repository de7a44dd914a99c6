//! Files that other programs and users change while a tool waits for them, and marks and modes that
//! are not the tool's own.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, Timespec, Timestamps, XattrFlags, flock, futimens, setxattr};

use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs};
use crate::support::mounts::skip;
use crate::support::volume::underseal;
use crate::support::{Scratch, output, tool};

/// Less than a tool waits for a file that is in use.
const WAITS: Duration = Duration::from_millis(400);

/// A lower tree of a file.
fn tree(scratch: &Scratch, contents: &[u8]) -> std::path::PathBuf {
    scratch.file("pass", b"the test's passphrase\n");
    fs::create_dir_all(scratch.path("plain")).unwrap();
    fs::write(scratch.path("plain/a"), contents).unwrap();
    assert_done(&ecryptfs(scratch, "import", &["plain", "lower"]));
    scratch.path("lower/a")
}

fn tool_on(scratch: &Scratch, words: &[&str]) -> Command {
    let mut command = underseal();
    command.current_dir(scratch.folder()).arg("ecryptfs").args(words);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a tool that waits for a file, which changes meanwhile.
fn while_it_waits(file: &Path, mut command: Command, change: impl FnOnce(&File)) -> Output {
    let held = File::open(file).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let waits = command.spawn().unwrap();
    thread::sleep(WAITS);
    change(&held);
    drop(held);
    waits.wait_with_output().unwrap()
}

#[test]
fn a_file_that_is_replaced_while_a_tool_waits_for_it_is_not_changed_in_its_place() {
    let scratch = Scratch::new();
    let file = tree(&scratch, b"contents");
    scratch.file("new", b"another passphrase\n");
    let command =
        tool_on(&scratch, &["rewrap", "lower", "--passphrase-file", "pass", "--new-passphrase-file", "new"]);
    let ran = while_it_waits(&file, command, |_| {
        fs::copy(&file, scratch.path("lower/b")).unwrap();
        fs::rename(scratch.path("lower/b"), &file).unwrap();
    });
    assert_refused(&ran, 4, &["another file was put in its place"]);
}

#[test]
fn a_conversion_keeps_the_attributes_that_a_file_got_while_it_waited() {
    let scratch = Scratch::new();
    let file = tree(&scratch, b"contents");
    let command = tool_on(&scratch, &["convert", "lower", "--header", "xattr"]);
    let ran = while_it_waits(&file, command, |held| {
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        futimens(held, &Timestamps { last_access: time, last_modification: time }).unwrap();
    });
    assert_done(&ran);
    let about = fs::metadata(&file).unwrap();
    assert_eq!((about.mode() & 0o7777, about.mtime()), (0o600, 1_000_000_000));
}

#[test]
fn a_copy_of_a_file_that_a_killed_conversion_has_marked_is_a_file_of_its_own() {
    let scratch = Scratch::new();
    let file = tree(&scratch, b"contents");
    fs::hard_link(&file, scratch.path("lower/b")).unwrap();
    let mut killed = tool("strace");
    killed.args(["-f", "-o", "/dev/null", "-e", "trace=renameat2", "-e"]);
    killed.args(["inject=renameat2:signal=KILL:when=2"]).arg(env!("CARGO_BIN_EXE_underseal"));
    killed.args(["ecryptfs", "convert", "-q", "--header", "xattr"]).arg(scratch.path("lower"));
    assert!(!output(&mut killed).status.success(), "the conversion was done");
    let (one, two) = (fs::metadata(&file).unwrap(), fs::metadata(scratch.path("lower/b")).unwrap());
    assert_ne!(one.ino(), two.ino(), "one of two names was in place");
    for (name, copy) in [("a", "copy of a"), ("b", "copy of b")] {
        let lower = scratch.path("lower");
        assert_done(&output(tool("cp").arg("-a").arg(lower.join(name)).arg(lower.join(copy))));
    }
    assert_done(&output(&mut tool_on(&scratch, &["convert", "lower", "--header", "xattr"])));
    let inode = |name: &str| fs::metadata(scratch.path("lower").join(name)).unwrap().ino();
    assert_eq!(inode("a"), inode("b"));
    assert!(inode("copy of a") != inode("a") && inode("copy of b") != inode("a"), "a copy became a name");
    assert_done(&ecryptfs(&scratch, "check", &["lower"]));
}

#[test]
fn a_file_that_a_killed_conversion_has_left_gets_no_other_name() {
    let scratch = Scratch::new();
    let file = tree(&scratch, b"contents");
    let left = scratch.path("lower/.underseal-1");
    fs::copy(&file, &left).unwrap();
    let number = fs::metadata(&left).unwrap().ino();
    let mark = format!("1 {number} {} 0 0 0", fs::metadata(&file).unwrap().ino());
    setxattr(&left, "user.underseal.converting", mark.as_bytes(), XattrFlags::empty()).unwrap();
    let names = ["lower", "-o", "ecryptfs_enable_filename_crypto"];
    assert_refused(&ecryptfs(&scratch, "rename-tree", &names), 7, &["convert the tree again first"]);
    assert!(left.exists());
}

/// A file of another user's, whose program is not to run as the user who copies it.
#[test]
fn a_strangers_set_user_id_program_is_none_in_the_copy() {
    let test = "a_strangers_set_user_id_program_is_none_in_the_copy";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "becoming another user needs root");
    }
    let scratch = Scratch::new();
    let file = tree(&scratch, b"a program");
    chown(&file, Some(61_234), Some(61_234)).unwrap();
    let program = scratch.path("underseal");
    fs::copy(env!("CARGO_BIN_EXE_underseal"), &program).unwrap();
    fs::create_dir(scratch.path("out")).unwrap();
    for (path, mode) in [
        (scratch.folder(), 0o755),
        (&scratch.path("out"), 0o777),
        (&scratch.path("lower"), 0o777),
        (&file, 0o6755),
    ] {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(scratch.path("pass"), Permissions::from_mode(0o644)).unwrap();
    let as_stranger = |words: &[&str]| {
        let mut command = tool("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command.env("UNDERSEAL_RUNTIME_DIR", scratch.path("out")).current_dir(scratch.folder());
        output(command.arg("ecryptfs").args(words))
    };
    assert_done(&as_stranger(&["export", "lower", "out/tree", "--passphrase-file", "pass"]));
    let about = fs::metadata(scratch.path("out/tree/a")).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (65534, 0o755));
    let ran = as_stranger(&["convert", "lower", "--header", "xattr"]);
    assert_refused(&ran, 1, &["it belongs to another user"]);
    let about = fs::metadata(&file).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (61_234, 0o6755));
    // root keeps both.
    assert_done(&ecryptfs(&scratch, "export", &["lower", "kept"]));
    let about = fs::metadata(scratch.path("kept/a")).unwrap();
    assert_eq!((about.uid(), about.mode() & 0o7777), (61_234, 0o6755));
}
