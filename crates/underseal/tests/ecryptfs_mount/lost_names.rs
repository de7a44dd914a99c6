//! Files that lose a name below, and are found by another one while the kernel still knows the lost
//! name.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};

use crate::ecryptfs_mount::mounted::{Folder, client, unable};
use crate::support::tools::{PATIENCE, output, wait_until};
use crate::support::{run, tool};

/// Writes a file that the kernel knows then, and one to take its place.
fn known(folder: &Folder) {
    fs::write(folder.at("file"), "old").unwrap();
    fs::write(folder.at("new"), "new").unwrap();
    fs::metadata(folder.at("file")).unwrap();
}

/// Saves the file below with a backup.
fn save(folder: &Folder, linked: bool) {
    match linked {
        true => fs::hard_link(folder.below("file"), folder.below("file~")).unwrap(),
        false => fs::rename(folder.below("file"), folder.below("file~")).unwrap(),
    }
    fs::rename(folder.below("new"), folder.below("file")).unwrap();
}

fn write(how: &mut OpenOptions, path: &Path) {
    let mut file = how.open(path).unwrap();
    file.write_all(b", more").unwrap();
    file.sync_all().unwrap();
}

/// Cuts a file by its path.
fn truncate(path: &Path) {
    let done =
        output(client("python3").args(["-c", "import os, sys; os.truncate(sys.argv[1], 1)"]).arg(path));
    assert!(done.status.success(), "{done:?}");
}

/// A way to change a file, and its contents after that.
type Change = (&'static str, fn(&Path), &'static str);

const CHANGES: [Change; 5] = [
    ("append", |path| write(File::options().append(true), path), "new, more"),
    ("rewrite", |path| write(File::options().write(true).truncate(true), path), ", more"),
    ("create", |path| write(File::options().write(true).truncate(true).create(true), path), ", more"),
    ("overwrite", |path| write(File::options().write(true), path), ", more"),
    ("truncate", truncate, "n"),
];

/// Reads the old file by its other name, and changes the file: by its own name, and nothing else.
fn changes_the_file_alone(folder: &Folder, other: &str, (what, change, expected): Change) {
    assert_eq!(fs::read_to_string(folder.at(other)).unwrap(), "old");
    change(&folder.at("file"));
    assert_eq!(fs::read_to_string(folder.at("file")).unwrap(), expected, "{what}");
    assert_eq!(fs::read_to_string(folder.at(other)).unwrap(), "old", "{what}");
}

#[test]
fn a_backup_made_below_is_not_written_in_place_of_the_file() {
    if unable("a_backup_made_below_is_not_written_in_place_of_the_file") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for change in CHANGES {
        for linked in [false, true] {
            known(&folder);
            save(&folder, linked);
            changes_the_file_alone(&folder, "file~", change);
            fs::remove_file(folder.at("file~")).unwrap();
        }
    }
    mount.unmount();
}

/// The kernel knows both names of the file before.
#[test]
fn a_name_replaced_below_is_not_written_to_the_other_name() {
    if unable("a_name_replaced_below_is_not_written_to_the_other_name") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for change in CHANGES {
        known(&folder);
        fs::hard_link(folder.at("file"), folder.at("link")).unwrap();
        fs::rename(folder.below("new"), folder.below("file")).unwrap();
        changes_the_file_alone(&folder, "link", change);
        fs::remove_file(folder.at("link")).unwrap();
    }
    mount.unmount();
}

#[test]
fn names_swapped_below_are_opened_as_they_are_now() {
    if unable("names_swapped_below_are_opened_as_they_are_now") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for change in CHANGES {
        known(&folder);
        fs::metadata(folder.at("new")).unwrap();
        for (from, to) in [("file", "aside"), ("new", "file"), ("aside", "new")] {
            fs::rename(folder.below(from), folder.below(to)).unwrap();
        }
        changes_the_file_alone(&folder, "new", change);
    }
    mount.unmount();
}

#[test]
fn an_open_file_that_lost_its_name_keeps_its_bytes_and_opens_by_the_other_name_later() {
    if unable("an_open_file_that_lost_its_name_keeps_its_bytes_and_opens_by_the_other_name_later") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for (what, change, expected) in CHANGES {
        known(&folder);
        let mut held = File::options().read(true).append(true).open(folder.at("file")).unwrap();
        save(&folder, false);
        let _ = File::open(folder.at("file~"));
        change(&folder.at("file"));
        assert_eq!(fs::read_to_string(folder.at("file")).unwrap(), expected, "{what}");
        let mut text = String::new();
        held.read_to_string(&mut text).unwrap();
        assert_eq!(text, "old", "{what}");
        if what == "append" {
            held.write_all(b"er").unwrap();
            wait_until("the other name opens", PATIENCE, || File::open(folder.at("file~")).is_ok());
            assert_eq!(fs::read_to_string(folder.at("file~")).unwrap(), "older");
        }
    }
    mount.unmount();
}

#[test]
fn a_folder_that_was_moved_below_into_its_own_subfolder_is_found_there() {
    if unable("a_folder_that_was_moved_below_into_its_own_subfolder_is_found_there") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::create_dir_all(folder.at("outer/inner")).unwrap();
    fs::write(folder.at("other"), "other").unwrap();
    // A failure to open it is logged with its path.
    fs::write(folder.below("outer/inner/damaged"), [1; 20_000]).unwrap();
    let inner = File::open(folder.at("outer/inner")).unwrap();
    let inside = Path::new("/proc/self/fd").join(inner.as_raw_fd().to_string());
    fs::rename(folder.below("outer/inner"), folder.below("inner")).unwrap();
    fs::rename(folder.below("outer"), folder.below("inner/outer")).unwrap();
    // The kernel takes it for a loop, as long as it has the folders where they were.
    let _ = fs::metadata(inside.join("outer"));
    assert!(File::open(inside.join("damaged")).is_err());
    assert_eq!(fs::read_to_string(folder.at("other")).unwrap(), "other");
    assert!(fs::metadata(folder.at("inner/outer")).unwrap().is_dir());
    drop(inner);
    mount.unmount_after_errors();
}

#[test]
fn a_pipe_that_was_renamed_below_is_the_same_pipe() {
    if unable("a_pipe_that_was_renamed_below_is_the_same_pipe") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    mknodat(CWD, folder.at("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let open = |how: &mut OpenOptions, name: &str| {
        how.custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(folder.at(name))
    };
    let mut reader = open(File::options().read(true), "pipe").unwrap();
    fs::rename(folder.below("pipe"), folder.below("renamed")).unwrap();
    open(File::options().write(true), "renamed").unwrap().write_all(b"through").unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through");
    drop(reader);
    mount.unmount();
}

/// How many folders lie in each other: more than a thread's stack has frames for.
const DEEP: usize = 12_000;

/// Goes down the folders, from a folder of the mount or below it.
fn descend(start: &Path, step: impl Fn(&OwnedFd)) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    (0..DEEP).fold(openat(CWD, start, flags, Mode::empty()).unwrap(), |folder, _| {
        step(&folder);
        openat(&folder, "d", flags, Mode::empty()).unwrap()
    })
}

#[test]
fn thousands_of_folders_in_each_other_end_no_mount() {
    if unable("thousands_of_folders_in_each_other_end_no_mount") {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.below("other"), "").unwrap();
    fs::create_dir(folder.below("deep")).unwrap();
    let last = descend(&folder.below("deep"), |folder| mkdirat(folder, "d", Mode::RWXU).unwrap());
    // A failure to open it is logged with its path.
    let make = OFlags::WRONLY | OFlags::CREATE;
    File::from(openat(&last, "damaged", make, Mode::RUSR).unwrap()).write_all(&[1; 20_000]).unwrap();
    drop(last);
    // Few descriptors: those of the folders above are opened again.
    for limits in ["true", "ulimit -n 512"] {
        let mount = folder.mount_under(limits);
        let last = descend(&folder.at("deep"), |_| ());
        assert!(openat(&last, "damaged", OFlags::RDONLY, Mode::empty()).is_err(), "{limits}");
        let (inside, flags) = (Path::new("/proc/self/fd").join(last.as_raw_fd().to_string()), OFlags::PATH);
        assert_eq!(fs::read_dir(inside).unwrap().count(), 1, "{limits}");
        assert!(openat(&last, "..", flags, Mode::empty()).is_ok(), "{limits}");
        assert_eq!(fs::metadata(folder.at("other")).unwrap().len(), 0, "{limits}");
        drop(last);
        let log = mount.unmount_after_errors();
        assert!(log.contains("../d/d") && log.contains("d/damaged: open: "), "{limits}: {log}");
    }
    // The folder's own removal would have a descriptor of each.
    run(tool("rm").arg("-r").arg(folder.below("deep")));
}
