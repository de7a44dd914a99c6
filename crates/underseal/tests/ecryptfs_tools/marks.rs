//! Marks of conversions that are not a conversion's: written by users who may write to a lower
//! file, or carried to another one.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::ecryptfs_tools::{assert_done, ecryptfs};
use crate::support::volume::underseal;
use crate::support::{Scratch, output};

const CONVERTED: &str = "user.underseal.converted";
const CONVERTING: &str = "user.underseal.converting";

fn mark(path: &Path, name: &str, value: &str) {
    setxattr(path, name, value.as_bytes(), XattrFlags::empty()).unwrap();
}

/// Two files of one owner, mode, time and length, in two folders.
fn two_files(scratch: &Scratch) -> [PathBuf; 2] {
    scratch.file("pass", b"the test's passphrase\n");
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_500_000_000);
    for (name, contents) in [("open/o", "bytes of o"), ("closed/p", "bytes of p")] {
        let path = scratch.path("plain").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    }
    assert_done(&ecryptfs(scratch, "import", &["plain", "lower"]));
    ["open/o", "closed/p"].map(|name| scratch.path("lower").join(name))
}

/// Marks a file as one that a conversion has replaced by another one.
fn forge(file: &Path, other: &Path, inside: &str) {
    let (old, new) = (fs::metadata(file).unwrap(), fs::metadata(other).unwrap());
    let (dev, ino, seconds, nanoseconds) = (old.dev(), old.ino(), old.mtime(), old.mtime_nsec());
    let numbers = format!("{} {} {dev} {ino} {} {seconds} {nanoseconds}", new.dev(), new.ino(), old.len());
    mark(file, CONVERTED, &format!("{numbers} {inside}"));
}

#[track_caller]
fn assert_two_files(scratch: &Scratch, files: &[PathBuf; 2]) {
    let convert = ["ecryptfs", "convert", "-q", "lower", "--header", "xattr"];
    assert_done(&output(underseal().current_dir(scratch.folder()).args(convert)));
    let inodes = files.each_ref().map(|file| fs::metadata(file).unwrap().ino());
    assert_ne!(inodes[0], inodes[1], "a mark made one file of two");
    assert_done(&ecryptfs(scratch, "export", &["lower", "back"]));
    for name in ["open/o", "closed/p"] {
        let read = |root: &str| fs::read(scratch.path(root).join(name)).unwrap();
        assert_eq!(read("back"), read("plain"), "{name}");
    }
}

/// A user who may write to one of them only.
#[test]
fn a_mark_on_one_file_alone_makes_it_no_name_of_another_one() {
    for marked in [0, 1] {
        let scratch = Scratch::new();
        let files = two_files(&scratch);
        forge(&files[marked], &files[1 - marked], ["closed/p", "open/o"][marked]);
        assert_two_files(&scratch, &files);
    }
}

/// A user who may write to both.
#[test]
fn marks_on_two_files_of_other_contents_make_no_file_of_them() {
    for marked in [0, 1] {
        let scratch = Scratch::new();
        let files = two_files(&scratch);
        let (file, other) = (&files[marked], &files[1 - marked]);
        forge(file, other, ["closed/p", "open/o"][marked]);
        let (old, new) = (fs::metadata(file).unwrap(), fs::metadata(other).unwrap());
        mark(other, CONVERTING, &format!("7 {} {} {} 1500000000 0 2", new.ino(), old.ino(), old.len()));
        assert_two_files(&scratch, &files);
    }
}

#[test]
fn copies_have_no_marks() {
    let scratch = Scratch::new();
    let files = two_files(&scratch);
    let has = |path: PathBuf| getxattr(path, CONVERTED, &mut [0; 100][..]).is_ok();
    mark(&files[0], CONVERTED, "a mark");
    assert_done(&ecryptfs(&scratch, "export", &["lower", "back"]));
    assert!(has(files[0].clone()) && !has(scratch.path("back/open/o")));
    mark(&scratch.path("plain/open/o"), CONVERTED, "a mark");
    assert_done(&ecryptfs(&scratch, "import", &["plain", "again"]));
    assert!(!has(scratch.path("again/open/o")));
}

#[test]
fn a_mount_neither_shows_marks_nor_takes_them() {
    if unable("a_mount_neither_shows_marks_nor_takes_them") {
        return;
    }
    for options in ["", "ecryptfs_xattr_metadata"] {
        let folder = Folder::new();
        let mount = folder.mount(options);
        let file = folder.at("file");
        fs::write(&file, b"contents").unwrap();
        for name in [CONVERTED, CONVERTING, "user.underseal.another"] {
            let set = || setxattr(&file, name, b"forged", XattrFlags::empty());
            assert_eq!(set(), Err(Errno::PERM), "{name}");
            mark(&folder.below("file"), name, "below");
            assert_eq!(set(), Err(Errno::PERM), "{name}");
            assert_eq!(removexattr(&file, name), Err(Errno::PERM));
            assert_eq!(getxattr(&file, name, &mut [0; 100][..]), Err(Errno::NODATA));
            assert!(getxattr(folder.below("file"), name, &mut [0; 100][..]).is_ok());
        }
        mark(&file, "user.undersea", "a user's own");
        let mut list = vec![0; 1000];
        let len = listxattr(&file, &mut list[..]).unwrap();
        assert_eq!(&list[..len], b"user.undersea\0");
        mount.unmount();
    }
}
