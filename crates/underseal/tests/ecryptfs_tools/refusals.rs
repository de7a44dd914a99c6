//! Errors of an entry name its lower path, and the other entries are processed.

use std::fs;
use std::path::Path;

use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs, imported, lower_file};
use crate::support::mounts::skip;
use crate::support::volume::underseal;
use crate::support::{Scratch, output, run, tool};

#[test]
fn a_damaged_file_is_skipped_and_the_others_come_out() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    type Damage<'a> = &'a dyn Fn(&Path);
    // Five entries are damaged and six fail: `file4097` has a second name, `folder/link`.
    let damage: [(&str, Damage<'_>); 5] = [
        ("file4096: there is no eCryptfs header", &|lower| change(&lower.join("file4096"), 12, 0xff)),
        ("file4097: the file is cut", &|lower| cut(&lower.join("file4097"), 12288)),
        ("file15: the header is cut", &|lower| cut(&lower.join("file15"), 18)),
        ("file20000: a wrapped key of 112 bytes", &|lower| change(&lower.join("file20000"), 27, 0x60)),
        ("plain.txt: there is no eCryptfs header", &|lower| {
            fs::write(lower.join("plain.txt"), b"hello").unwrap()
        }),
    ];
    for (_, damage) in &damage {
        damage(&scratch.path("lower"));
    }
    let exported = ecryptfs(&scratch, "export", &["lower", "back"]);
    assert_refused(&exported, 7, &damage.map(|(words, _)| words));
    for whole in ["file1", "file8192", "file131072", "file300001", "folder/in folder/deep"] {
        let read = |tree: &str| fs::read(scratch.path(tree).join(whole)).unwrap();
        assert!(read("back") == read("plain"), "{whole}");
    }
    assert!(!scratch.path("back").join("file4097").exists());
    let archive = ecryptfs(&scratch, "export", &["lower", "tree.tar", "--tar"]);
    assert_refused(&archive, 7, &["file4097", "6 entries failed"]);
    // `check` finds the same, but a plain file is only reported.
    assert_refused(&ecryptfs(&scratch, "check", &["lower"]), 7, &["file4097: the file is cut", "file15"]);
    fs::remove_dir_all(scratch.path("back")).unwrap();
    let passed = ecryptfs(&scratch, "export", &["lower", "back", "-o", "ecryptfs_passthrough"]);
    assert_refused(&passed, 7, &["file4097"]);
    assert_eq!(fs::read(scratch.path("back/plain.txt")).unwrap(), b"hello");
}

#[test]
fn a_file_that_was_cut_after_a_whole_extent_is_repaired_and_another_is_not() {
    for options in ["", "ecryptfs_xattr_metadata"] {
        let scratch = Scratch::new();
        imported(&scratch, options);
        let start = if options.is_empty() { 8192 } else { 0 };
        cut(&lower_file(&scratch, "file300001"), start + 8 * 4096);
        cut(&lower_file(&scratch, "file20000"), start + 4096 + 100);
        assert_refused(&ecryptfs(&scratch, "check", &["lower"]), 7, &["file300001: the file is cut"]);
        let repaired = ecryptfs(&scratch, "check", &["lower", "--repair"]);
        assert_refused(&repaired, 7, &["file20000: the file is cut", "one entry failed"]);
        assert_refused(&ecryptfs(&scratch, "export", &["lower", "back"]), 7, &["file20000"]);
        let read = |tree: &str| fs::read(scratch.path(tree).join("file300001")).unwrap();
        assert!(read("back") == read("plain")[..8 * 4096], "{options}");
    }
}

#[test]
fn a_changed_last_extent_is_noticed_by_what_should_be_zeros() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    change(&lower_file(&scratch, "file4097"), 8192 + 4096 + 5, 0x55);
    let mut check = underseal();
    check.current_dir(scratch.folder()).args(["ecryptfs", "check", "lower", "--passphrase-file", "pass"]);
    assert_refused(&output(&mut check), 7, &["file4097", "damaged"]);
}

#[test]
fn hostile_names_lead_nowhere() {
    let scratch = Scratch::new();
    imported(&scratch, "ecryptfs_enable_filename_crypto");
    let lower = scratch.path("lower");
    // Two lower names decrypt to one plain name: one comes out, the other is refused, and the
    // link's target is not touched.
    let outside = scratch.path("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, lower.join("folder")).unwrap();
    fs::write(lower.join("ECRYPTFS_FNEK_ENCRYPTED.FWb"), b"x").unwrap();
    fs::write(lower.join("line\nfeed"), b"x").unwrap();
    let exported = ecryptfs(&scratch, "export", &["lower", "back"]);
    assert_refused(&exported, 7, &["ECRYPTFS_FNEK_ENCRYPTED.FWb: a damaged encrypted name", "line?feed"]);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // Names of another key.
    assert_done(&ecryptfs(&scratch, "import", &["plain", "other", "-o", "ecryptfs_enable_filename_crypto"]));
    scratch.file("pass", b"wrong");
    let listed = ecryptfs(&scratch, "ls", &["other"]);
    assert_refused(&listed, 3, &["other/ECRYPTFS_FNEK_ENCRYPTED.", "which is not at hand"]);
}

#[test]
fn a_name_that_is_too_long_is_skipped() {
    let scratch = Scratch::new();
    scratch.file("pass", b"pass");
    let plain = scratch.path("plain");
    fs::create_dir(&plain).unwrap();
    fs::write(plain.join("n".repeat(144)), b"x").unwrap();
    fs::write(plain.join("short"), b"x").unwrap();
    let options = ["plain", "lower", "-o", "ecryptfs_enable_filename_crypto"];
    assert_refused(&ecryptfs(&scratch, "import", &options), 7, &["144 bytes", "143"]);
    assert_eq!(fs::read_dir(scratch.path("lower")).unwrap().count(), 1);
}

#[test]
fn names_are_decoded_and_encoded_one_by_one() {
    let scratch = Scratch::new();
    imported(&scratch, "ecryptfs_enable_filename_crypto");
    let options = ["--encode", "file15", "-o", "ecryptfs_enable_filename_crypto"];
    let encoded = ecryptfs(&scratch, "name", &options);
    assert_done(&encoded);
    let lower = String::from_utf8(encoded.stdout).unwrap();
    assert!(lower_file(&scratch, lower.trim()).exists());
    let decoded = ecryptfs(&scratch, "name", &[lower.trim()]);
    assert_eq!(decoded.stdout, b"file15\n");
    let long = "n".repeat(144);
    let options = ["--encode", &long, "-o", "ecryptfs_enable_filename_crypto"];
    assert_refused(&ecryptfs(&scratch, "name", &options), 2, &["144 bytes"]);
}

#[test]
fn what_is_not_there_is_said() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    assert_refused(&ecryptfs(&scratch, "export", &["nowhere", "back"]), 1, &["nowhere"]);
    assert_refused(&ecryptfs(&scratch, "cat", &["lower", "no/such"]), 2, &["no/such"]);
    assert_refused(&ecryptfs(&scratch, "cat", &["lower", "../pass"]), 2, &[".."]);
    assert_refused(&ecryptfs(&scratch, "cat", &["lower", "relative/deep"]), 2, &["there is no deep in"]);
    assert_refused(&ecryptfs(&scratch, "cat", &["lower", "relative"]), 2, &["relative: it is no file"]);
    assert_done(&ecryptfs(&scratch, "cat", &["lower", "folder/in folder/deep"]));
    assert_refused(&ecryptfs(&scratch, "cat", &["pass"]), 5, &["pass: there is no eCryptfs header"]);
    assert_refused(&ecryptfs(&scratch, "ls", &["lower", "-o", "ecryptfs_sigs=1"]), 2, &["ecryptfs_sigs"]);
    let shown = ecryptfs(&scratch, "ls", &["lower"]);
    assert_done(&shown);
    assert!(shown.stdout.windows(6).any(|window| window == "file15".as_bytes()));
    assert!(!scratch.path("back").exists());
}

#[test]
fn a_destination_in_the_folder_that_is_read_is_refused() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    std::os::unix::fs::symlink("plain/folder", scratch.path("link")).unwrap();
    let words =
        |source| ["is in the folder that is read".to_owned(), format!("a destination outside of {source}")];
    for to in ["plain/new", "plain", "plain/folder/new", "link/new", "lower/../plain/new"] {
        let refused = ecryptfs(&scratch, "import", &["plain", to]);
        assert_refused(&refused, 2, &words("plain").each_ref().map(String::as_str));
    }
    for export in
        [&["lower", "lower/back"][..], &["lower", "lower/folder/back"], &["lower", "lower/tree.tar", "--tar"]]
    {
        let refused = ecryptfs(&scratch, "export", export);
        assert_refused(&refused, 2, &words("lower").each_ref().map(String::as_str));
    }
    for name in ["plain/new", "plain/folder/new", "lower/back", "lower/folder/back", "lower/tree.tar"] {
        assert!(!scratch.path(name).exists(), "{name} was made");
    }
    // A name that only begins alike.
    assert_done(&ecryptfs(&scratch, "import", &["plain", "plain-lower"]));
}

#[test]
fn a_tree_is_not_reached_through_a_link_of_another_user() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    fs::create_dir(scratch.path("user")).unwrap();
    let link = scratch.path("user/link");
    std::os::unix::fs::symlink("..", &link).unwrap();
    assert_done(&ecryptfs(&scratch, "check", &["user/link/lower"]));
    match std::os::unix::fs::lchown(&link, Some(61_234), None) {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            return skip("a_tree_is_not_reached_through_a_link", "giving links away needs root");
        }
        given => given.unwrap(),
    }
    for (verb, args) in [
        ("check", &["user/link/lower"][..]),
        ("check", &["user/link/lower/file15"]),
        ("export", &["user/link/lower", "back"]),
        ("export", &["lower", "user/link/back"]),
        ("export", &["lower", "user/link/back", "--tar"]),
        ("import", &["user/link/plain", "back"]),
        ("import", &["plain", "user/link/back"]),
        ("import", &["user/link/", "back"]),
        ("rename-tree", &["user/link/lower", "--plain"]),
        ("rewrap", &["user/link/lower", "--new-passphrase-file", "pass"]),
    ] {
        let refused = ecryptfs(&scratch, verb, args);
        assert_refused(&refused, 1, &["is a link of another user (uid 61234)", "\ntry: the path that"]);
        assert!(!scratch.path("back").exists(), "{verb}");
    }
    let mut convert = underseal();
    convert.current_dir(scratch.folder()).args([
        "ecryptfs",
        "convert",
        "--header",
        "xattr",
        "user/link/lower",
    ]);
    assert_refused(&output(&mut convert), 1, &["is a link of another user (uid 61234)"]);
}

#[test]
fn folders_that_are_nested_too_deeply_are_left_out() {
    let scratch = Scratch::new();
    scratch.file("pass", b"pass");
    fs::create_dir_all(scratch.path("home/user")).unwrap();
    fs::write(scratch.path("home/file"), b"other").unwrap();
    let mut folder = std::os::fd::OwnedFd::from(fs::File::open(scratch.path("home/user")).unwrap());
    for _ in 0..1100 {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        rustix::fs::mkdirat(&folder, "d", rustix::fs::Mode::RWXU).unwrap();
        folder = rustix::fs::openat(&folder, "d", flags, rustix::fs::Mode::empty()).unwrap();
    }
    let words = ["d/d/d: more than 1000 folders are nested", "one entry failed"];
    assert_refused(&ecryptfs(&scratch, "import", &["home", "lower"]), 7, &words);
    fs::copy(scratch.path("lower/file"), scratch.path("home/file")).unwrap();
    for (verb, args) in [("check", &["home"][..]), ("ls", &["home"]), ("export", &["home", "back"])] {
        assert_refused(&ecryptfs(&scratch, verb, args), 7, &words);
    }
    // A survey and new names have recursions of their own.
    let surveyed = output(underseal().current_dir(scratch.folder()).args(["ecryptfs", "info", "home"]));
    assert!(String::from_utf8_lossy(&surveyed.stderr).contains(words[0]), "{surveyed:?}");
    let renamed = ecryptfs(&scratch, "rename-tree", &["home", "--plain"]);
    assert!(String::from_utf8_lossy(&renamed.stderr).contains(words[0]), "{renamed:?}");
    assert_eq!(fs::read(scratch.path("back/file")).unwrap(), b"other");
    // A folder goes by a program that keeps few descriptors open.
    run(tool("rm").arg("-rf").args(["home", "lower", "back"].map(|name| scratch.path(name))));
}

fn change(path: &Path, at: usize, to: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= to;
    fs::write(path, bytes).unwrap();
}

fn cut(path: &Path, len: u64) {
    fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}
