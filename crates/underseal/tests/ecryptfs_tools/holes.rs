//! Extents that are not there, and files of nothing but zeros: what a mount says of them the tools
//! say, too.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};

use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs, imported, lower_file};
use crate::support::mounts::skip;
use crate::support::volume::underseal;
use crate::support::{Scratch, output, run, tool};

/// Takes the second extent out of a lower file of five.
fn punch(lower: &Path) {
    let file = File::options().write(true).open(lower).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if fallocate(&file, punch, 8192 + 4096, 4096).is_err() {
        file.write_all_at(&[0; 4096], 8192 + 4096).unwrap();
    }
}

#[test]
fn an_extent_that_is_missing_is_an_error_or_zeros() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    punch(&lower_file(&scratch, "file20000"));
    let plain = fs::read(scratch.path("plain/file20000")).unwrap();
    let mut with_zeros = plain.clone();
    with_zeros[4096..8192].fill(0);

    assert_refused(&ecryptfs(&scratch, "check", &["lower"]), 7, &["file20000", "missing", "extent 1"]);
    assert_refused(&ecryptfs(&scratch, "check", &["lower/file20000"]), 5, &["1 of its extents are missing"]);
    let cat = ecryptfs(&scratch, "cat", &["lower/file20000"]);
    assert_refused(&cat, 5, &["lower/file20000: extent 1 is missing", "--no-strict"]);
    assert!(cat.stdout.is_empty());
    let cat = ecryptfs(&scratch, "cat", &["lower/file20000", "--no-strict"]);
    assert_done(&cat);
    assert!(cat.stdout == with_zeros);

    assert_refused(&ecryptfs(&scratch, "export", &["lower", "back"]), 7, &["file20000: extent 1 is missing"]);
    // The damaged file is missing in the copy.
    assert!(!scratch.path("back/file20000").exists());
    assert_eq!(fs::read(scratch.path("back/file300001")).unwrap().len(), 300_001);
    fs::remove_dir_all(scratch.path("back")).unwrap();
    assert_done(&ecryptfs(&scratch, "export", &["lower", "back", "--no-strict"]));
    assert!(fs::read(scratch.path("back/file20000")).unwrap() == with_zeros);
    fs::remove_dir_all(scratch.path("back")).unwrap();
    cut(&lower_file(&scratch, "file300001"));
    assert_done(&ecryptfs(&scratch, "export", &["lower", "back", "--no-strict"]));
    let found = fs::read(scratch.path("back/file300001")).unwrap();
    assert!(found.len() == 300_001 && found[300_000] == 0);
}

fn cut(lower: &Path) {
    File::options().write(true).open(lower).unwrap().set_len(8192 + 3 * 4096).unwrap();
}

/// Whole extents in the middle and at the end of a lower file take no room in its copy.
#[test]
fn a_conversion_keeps_holes() {
    const LEN: usize = 12 << 20;
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    fs::create_dir(scratch.path("plain")).unwrap();
    fs::write(scratch.path("plain/file"), crate::support::bytes(1, LEN)).unwrap();
    assert_done(&ecryptfs(&scratch, "import", &["plain", "lower"]));
    let path = lower_file(&scratch, "file");
    let file = File::options().write(true).open(&path).unwrap();
    for (from, to) in [(1 << 20, 6 << 20), (8 << 20, 8192 + LEN as u64)] {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if fallocate(&file, punch, from, to - from).is_err() {
            return skip("a_conversion_keeps_holes", "the filesystem has no holes");
        }
    }
    drop(file);
    let (before, bytes) = (fs::metadata(&path).unwrap().blocks(), fs::read(&path).unwrap());
    for (place, header) in [("xattr", 0), ("file", 8192)] {
        run(underseal().args(["ecryptfs", "convert", "-q", "--header", place]).arg(&path));
        let (after, found) = (fs::metadata(&path).unwrap().blocks(), fs::read(&path).unwrap());
        assert!(found[header..] == bytes[8192..], "{place}: {} bytes", found.len());
        assert!(after <= before, "{place}: {after} blocks, and {before} before");
    }
}

#[test]
fn in_an_archive_the_other_files_are_whole() {
    let scratch = Scratch::new();
    imported(&scratch, "");
    punch(&lower_file(&scratch, "file20000"));
    let archive = ecryptfs(&scratch, "export", &["lower", "tree.tar", "--tar"]);
    assert_refused(&archive, 7, &["file20000", "extent 1 is missing", "zeros are in the archive"]);
    fs::create_dir(scratch.path("back")).unwrap();
    let mut tar = tool("tar");
    tar.args(["-x", "--no-same-owner", "-f"]).arg(scratch.path("tree.tar"));
    let unpacked = output(tar.arg("-C").arg(scratch.path("back")));
    assert!(unpacked.status.success(), "{unpacked:?}");
    for name in ["file1", "file4096", "file8192", "file131072", "file300001", "folder/in folder/deep"] {
        let read = |tree: &str| fs::read(scratch.path(tree).join(name)).unwrap();
        assert!(read("back") == read("plain"), "{name}");
    }
    let found = fs::read(scratch.path("back/file20000")).unwrap();
    assert!(found.len() == 20_000 && found.iter().all(|&byte| byte == 0));
}

#[test]
fn a_file_of_zeros_is_an_empty_file_for_all() {
    for options in [&[][..], &["-o", "ecryptfs_passthrough"]] {
        let scratch = Scratch::new();
        imported(&scratch, "");
        fs::write(scratch.path("lower/zeros"), [0; 20_000]).unwrap();
        File::create(scratch.path("lower/sparse")).unwrap().set_len(1 << 20).unwrap();
        let with = |verb: &str, args: &[&str]| ecryptfs(&scratch, verb, &[args, options].concat());
        // With `ecryptfs_passthrough` files of zeros count as plain files.
        let expected = |len: usize| if options.is_empty() { 0 } else { len };
        assert_done(&with("export", &["lower", "back"]));
        for (name, len) in [("zeros", 20_000), ("sparse", 1 << 20)] {
            let found = fs::read(scratch.path("back").join(name)).unwrap();
            assert!(found.len() == expected(len) && found.iter().all(|&byte| byte == 0), "{name}");
        }
        let listed = String::from_utf8(with("ls", &["lower"]).stdout).unwrap();
        let line = listed.lines().find(|line| line.ends_with(" zeros")).unwrap();
        assert_eq!(line.split_whitespace().nth(1), Some(expected(20_000).to_string().as_str()));
        let checked = with("check", &["lower", "--json"]);
        assert_done(&checked);
        assert!(String::from_utf8(checked.stdout).unwrap().contains("nothing but zeros: an empty file"));
        if options.is_empty() {
            let cat = with("cat", &["lower/zeros"]);
            assert_done(&cat);
            assert!(cat.stdout.is_empty());
        }
    }
}
