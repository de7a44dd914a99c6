//! Headers that are moved: by a run that is killed at each of its calls, and taken up by another;
//! by two at a time; names that lead to one file.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs};
use crate::support::volume::underseal;
use crate::support::{Scratch, output, tool};

/// The calls of a conversion that change what is there, or make it safe.
const CALLS: [&str; 8] =
    ["openat", "fsetxattr", "copy_file_range", "fsync", "linkat", "renameat2", "unlinkat", "fremovexattr"];

fn convert(lower: &Path, place: &str) -> Command {
    let mut command = underseal();
    command.args(["ecryptfs", "convert", "-q", "--header", place]).arg(lower);
    command
}

/// A small lower tree: a few files in two folders, one of them with three names.
fn tree(scratch: &Scratch) -> PathBuf {
    scratch.file("pass", b"the test's passphrase\n");
    let plain = scratch.path("plain");
    fs::create_dir_all(plain.join("folder")).unwrap();
    fs::write(plain.join("empty"), b"").unwrap();
    fs::write(plain.join("a"), vec![1; 9000]).unwrap();
    fs::write(plain.join("folder/b"), vec![2; 100_000]).unwrap();
    fs::write(plain.join("m"), b"of three names").unwrap();
    fs::hard_link(plain.join("m"), plain.join("folder/n")).unwrap();
    fs::hard_link(plain.join("m"), plain.join("z")).unwrap();
    assert_done(&ecryptfs(scratch, "import", &["plain", "lower"]));
    scratch.path("lower")
}

fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(names(&path));
        }
        all.insert(path);
    }
    all
}

fn assert_one_file(lower: &Path, what: &str) {
    let inodes: BTreeSet<_> =
        ["m", "folder/n", "z"].iter().map(|name| fs::metadata(lower.join(name)).unwrap().ino()).collect();
    assert_eq!(inodes.len(), 1, "{what}: three names of one file");
}

#[test]
fn a_conversion_that_is_killed_at_any_call_is_taken_up_by_the_next() {
    let scratch = Scratch::new();
    let lower = tree(&scratch);
    let before = names(&lower);
    let mut places = ["xattr", "file"].iter().cycle();
    let mut kills = 0;
    for call in CALLS {
        for number in 1.. {
            let place = places.next().unwrap();
            let what = format!("{place}: killed at {call} number {number}");
            let mut traced = tool("strace");
            traced.args(["-f", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e"]);
            // The program's libraries are opened first.
            let step = if call == "openat" { 12 } else { 1 };
            traced.arg(format!("inject={call}:signal=KILL:when={}", number * step));
            let command = convert(&lower, place);
            let killed = output(traced.arg(command.get_program()).args(command.get_args()));
            // Each name leads to one whole file, in one form or the other.
            assert!(names(&lower).is_superset(&before), "{what}");
            assert_exports_but_for_what_is_left(&scratch, &what);
            assert_done(&output(&mut convert(&lower, place)));
            assert_eq!(names(&lower), before, "{what}");
            assert_one_file(&lower, &what);
            if killed.status.success() {
                break;
            }
            kills += 1;
        }
    }
    assert_exports_but_for_what_is_left(&scratch, "at the end");
    assert!(kills > 20, "only {kills}");
}

fn output_of(output: &std::process::Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))
}

/// Files that had not taken their place are ciphertext, with or without a header.
fn assert_exports_but_for_what_is_left(scratch: &Scratch, what: &str) {
    let back = scratch.path("back");
    let said = output_of(&ecryptfs(scratch, "export", &["lower", "back"]));
    for name in ["empty", "a", "folder/b", "m", "folder/n", "z"] {
        let (found, expected) = (fs::read(back.join(name)), fs::read(scratch.path("plain").join(name)));
        let len = found.as_ref().map(Vec::len).map_err(ToString::to_string);
        assert!(found.is_ok_and(|found| found == expected.unwrap()), "{what}: {name}: {len:?}: {said}");
    }
    fs::remove_dir_all(back).unwrap();
}

#[test]
fn two_conversions_at_a_time_leave_each_name_with_one_file() {
    let scratch = Scratch::new();
    let lower = tree(&scratch);
    let before = names(&lower);
    for round in 0..10 {
        let place = ["xattr", "file"][round % 2];
        let roots = [lower.join("folder"), lower.clone(), lower.join("m"), lower.join("a")];
        let all: Vec<_> = roots
            .iter()
            .map(|root| convert(root, place).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
            .collect();
        for mut one in all {
            // A run that finds a file in use fails at that file.
            one.wait().unwrap();
        }
        assert_eq!(names(&lower), before, "round {round}");
        assert_exports_but_for_what_is_left(&scratch, &format!("round {round}"));
        assert_done(&output(&mut convert(&lower, place)));
        assert_eq!(names(&lower), before, "round {round}");
    }
}

#[test]
fn a_further_name_whose_file_was_changed_since_is_refused_and_kept() {
    let scratch = Scratch::new();
    let lower = tree(&scratch);
    // The first name is replaced, and no other.
    let mut traced = tool("strace");
    traced.args(["-f", "-o", "/dev/null", "-e", "trace=linkat", "-e", "inject=linkat:signal=KILL:when=1"]);
    let command = convert(&lower, "xattr");
    output(traced.arg(command.get_program()).args(command.get_args()));
    let by_inode = |name: &str| fs::metadata(lower.join(name)).unwrap().ino();
    let inodes = [by_inode("m"), by_inode("folder/n"), by_inode("z")];
    let old = *inodes.iter().find(|one| inodes.iter().filter(|other| other == one).count() == 2).unwrap();
    let name = ["m", "folder/n", "z"].into_iter().find(|name| by_inode(name) == old).unwrap();
    let file = fs::File::options().write(true).open(lower.join(name)).unwrap();
    file.set_modified(std::time::SystemTime::now()).unwrap();
    let refused = output(&mut convert(&lower, "xattr"));
    assert_refused(&refused, 7, &["compare the two"]);
    assert_eq!(by_inode(name), old);
}

/// A user who may write to a file may write a note on it: that a conversion has made another file,
/// the user's own one or a third user's, from it.
#[test]
fn a_note_does_not_lead_to_a_file_of_another_user() {
    let scratch = Scratch::new();
    let lower = tree(&scratch);
    let [own, theirs] = ["a", "folder/b"].map(|name| lower.join(name));
    std::os::unix::fs::chown(&own, Some(65_534), Some(65_534)).unwrap();
    let length = fs::metadata(&theirs).unwrap();
    for (noted, led) in [(&theirs, &own), (&own, &theirs)] {
        let old = fs::metadata(noted).unwrap();
        let time = old.modified().unwrap();
        fs::File::options().write(true).open(led).unwrap().set_modified(time).unwrap();
        let new = fs::metadata(led).unwrap();
        let path = led.strip_prefix(&lower).unwrap().display().to_string();
        let (seconds, nanoseconds) = (old.mtime(), old.mtime_nsec());
        let note = format!("{} {} {} {seconds} {nanoseconds} {path}", new.dev(), new.ino(), old.len());
        rustix::fs::setxattr(
            noted,
            "user.underseal.converted",
            note.as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
    }
    assert_eq!(fs::metadata(&theirs).unwrap().len(), length.len());
    // Into headers, where the walk comes to the noted file before it has replaced the other one.
    let done = output(&mut convert(&lower, "file"));
    assert!(done.status.success(), "{}", output_of(&done));
    let [own, theirs] = [own, theirs].map(|path| fs::metadata(path).unwrap());
    assert_ne!(own.ino(), theirs.ino());
    assert_eq!((own.uid(), theirs.uid()), (65_534, length.uid()));
    assert_eq!((own.nlink(), theirs.nlink()), (1, 1));
    assert_eq!(theirs.len(), length.len());
}

#[test]
fn a_file_with_names_outside_of_the_tree_is_told_of_and_stays_one() {
    let scratch = Scratch::new();
    let lower = tree(&scratch);
    let inode = || fs::metadata(lower.join("m")).unwrap().ino();
    let before = inode();
    let words = ["folder/n", "2 more of its names are not in what is converted"];
    assert_refused(&output(&mut convert(&lower.join("folder"), "xattr")), 7, &words);
    assert_refused(&output(&mut convert(&lower.join("m"), "xattr")), 6, &["2 more of its names"]);
    assert_eq!(inode(), before);
    assert_one_file(&lower, "it was left");
    let header = |name: &str| {
        let mut value = [0; 8192];
        rustix::fs::getxattr(lower.join(name), "user.ecryptfs", &mut value[..]).is_ok()
    };
    assert!(header("folder/b") && !header("m") && !header("a"), "the others of the folder were converted");
    assert_done(&output(&mut convert(&lower, "xattr")));
    assert_one_file(&lower, "the whole tree");
    assert!(header("m") && header("a") && inode() != before);
    assert_exports_but_for_what_is_left(&scratch, "in the end");
}
