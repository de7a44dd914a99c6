//! Files that two mounts of one lower folder use at a time, and open files whose lower names
//! change.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, fsetxattr, ftruncate};

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::ecryptfs_mount::users::unable_as_root;
use crate::support::mounts::Mount;
use crate::support::tools::{PATIENCE, wait_until};

/// A folder, and another one that mounts what is in its folder `sub`.
fn outer_and_inner() -> (Folder, Folder) {
    let (outer, mut inner) = (Folder::new(), Folder::new());
    fs::create_dir(outer.below("sub")).unwrap();
    inner.lower = outer.below("sub");
    (outer, inner)
}

/// Opens a file, which another mount may have open.
fn patiently(how: &OpenOptions, path: &Path) -> io::Result<File> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match how.open(path) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy && Instant::now() < end => {
                std::thread::sleep(Duration::from_micros(300));
            }
            opened => return opened,
        }
    }
}

fn append(path: &Path, line: &str) -> io::Result<()> {
    patiently(File::options().append(true).create(true), path)?.write_all(line.as_bytes())
}

fn read(path: &Path) -> String {
    let mut text = String::new();
    patiently(File::options().read(true), path).unwrap().read_to_string(&mut text).unwrap();
    text
}

#[test]
fn what_another_mount_wrote_is_appended_to_and_read_by_the_next_open() {
    if unable("what_another_mount_wrote_is_appended_to_and_read_by_the_next_open") {
        return;
    }
    let (outer, inner) = outer_and_inner();
    let (mount, other) = (outer.mount(""), inner.mount(""));
    let (one, two) = (outer.at("sub/file"), inner.at("file"));
    let mut expected = String::new();
    for number in 0..10 {
        for (path, next) in [(&one, &two), (&two, &one)] {
            // The kernel knows this size for a second.
            let _ = fs::metadata(next);
            for path in [path, next] {
                let line = format!("{number} through {}\n", path.display());
                append(path, &line).unwrap();
                expected += &line;
            }
            fs::metadata(next).unwrap();
            append(path, "more\n").unwrap();
            expected += "more\n";
            assert_eq!(read(next), expected);
        }
    }
    assert_eq!(read(&one), expected);
    other.unmount_after_errors();
    mount.unmount_after_errors();
}

/// The times of a ramfs tick every few milliseconds, so two writers of a round leave the same ones.
#[test]
fn what_another_mount_wrote_within_a_tick_of_the_lower_times_is_read() {
    if unable_as_root("what_another_mount_wrote_within_a_tick_of_the_lower_times_is_read") {
        return;
    }
    let (outer, inner) = outer_and_inner();
    let coarse = Mount::new(Path::new("none"), &outer.below("sub"), &["-t", "ramfs"]);
    let (mount, other) = (outer.mount(""), inner.mount(""));
    let (one, two) = (outer.at("sub/file"), inner.at("file"));
    let write = |path: &Path, text: &str| {
        let file = patiently(File::options().write(true).create(true), path).unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
    };
    for number in 10..40 {
        write(&one, &format!("{number} of one"));
        read(&one);
        let text = format!("{number} of two");
        write(&two, &text);
        assert_eq!(read(&one), text);
    }
    other.unmount_after_errors();
    mount.unmount_after_errors();
    drop(coarse);
}

#[test]
fn lines_that_programs_append_in_two_mounts_are_all_there() {
    if unable("lines_that_programs_append_in_two_mounts_are_all_there") {
        return;
    }
    let (outer, inner) = outer_and_inner();
    let (mount, other) = (outer.mount(""), inner.mount(""));
    let (one, two) = (outer.at("sub/file"), inner.at("file"));
    fs::write(&one, "").unwrap();
    // The outer one appends and closes, then two of the inner mount append at once.
    let (appended, done) = (Barrier::new(3), Barrier::new(3));
    let mut expected = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (two, appended, done) = (&two, &appended, &done);
            scope.spawn(move || {
                for round in 0..150 {
                    appended.wait();
                    let added = append(two, &format!("inner {thread} {round}\n"));
                    done.wait();
                    added.unwrap();
                }
            });
        }
        for round in 0..150 {
            // The kernel remembers the size for a second.
            let _ = fs::metadata(&two);
            append(&one, &format!("outer {round}\n")).unwrap();
            appended.wait();
            done.wait();
            expected.extend([
                format!("outer {round}"),
                format!("inner 0 {round}"),
                format!("inner 1 {round}"),
            ]);
        }
    });
    // Each at its own pace.
    std::thread::scope(|scope| {
        for (name, path) in [("one", &one), ("two", &two)] {
            scope.spawn(move || {
                for round in 0..300 {
                    append(path, &format!("{name} {round}\n")).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
            expected.extend((0..300).map(|round| format!("{name} {round}")));
        }
    });
    let text = read(&one);
    let mut found: Vec<&str> = text.lines().collect();
    found.sort_unstable();
    expected.sort_unstable();
    let lost: Vec<_> = expected.iter().filter(|line| found.binary_search(&line.as_str()).is_err()).collect();
    assert!(
        lost.is_empty() && found.len() == expected.len(),
        "{} lines lost, {:?}",
        lost.len(),
        lost.first()
    );
    other.unmount_after_errors();
    mount.unmount_after_errors();
}

/// Plain files have no lock: both mounts have the file open for writing.
#[test]
fn lines_that_two_mounts_append_to_a_plain_file_are_all_there() {
    if unable("lines_that_two_mounts_append_to_a_plain_file_are_all_there") {
        return;
    }
    let (outer, inner) = outer_and_inner();
    let (mount, other) = (outer.mount("ecryptfs_passthrough"), inner.mount("ecryptfs_passthrough"));
    fs::write(inner.below("file"), "a plain file\n").unwrap();
    let open = |path: &Path| File::options().append(true).open(path).unwrap();
    let mut logs = [open(&outer.at("sub/file")), open(&inner.at("file")), open(&inner.below("file"))];
    let mut expected = String::from("a plain file\n");
    for round in 0..30 {
        for (number, log) in logs.iter_mut().enumerate() {
            let line = format!("{number} {round}\n");
            log.write_all(line.as_bytes()).unwrap();
            expected += &line;
        }
    }
    drop(logs);
    assert_eq!(read(&inner.below("file")), expected);
    wait_for_release(&inner.below("file"));
    assert_eq!(read(&outer.at("sub/file")), expected);
    other.unmount();
    mount.unmount();
}

/// A program that knows no locks, as the kernel's eCryptfs.
#[test]
fn a_file_that_grew_below_while_it_was_being_read_is_appended_to_at_its_end() {
    if unable("a_file_that_grew_below_while_it_was_being_read_is_appended_to_at_its_end") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for pause in [0, 500] {
        let (path, below) = (folder.at("file"), folder.below("file"));
        fs::write(&path, "A".repeat(10)).unwrap();
        wait_for_release(&path);
        let short = fs::read(&below).unwrap();
        append(&path, &"B".repeat(10)).unwrap();
        wait_for_release(&path);
        let long = fs::read(&below).unwrap();
        fs::write(&below, short).unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        let reader = File::open(&path).unwrap();
        assert_eq!(reader.metadata().unwrap().len(), 10);
        fs::write(&below, long).unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        append(&path, "C").unwrap();
        drop(reader);
        assert_eq!(read(&path), format!("{}{}C", "A".repeat(10), "B".repeat(10)), "{pause}");
        fs::remove_file(&path).unwrap();
    }
    mount.unmount();
}

/// Waits until the mount has closed its lower file.
pub(crate) fn wait_for_release(path: &Path) {
    std::thread::sleep(Duration::from_millis(100));
    drop(File::open(path).unwrap());
}

#[test]
fn calls_by_descriptor_go_on_when_the_files_lower_name_changes() {
    if unable("calls_by_descriptor_go_on_when_the_files_lower_name_changes") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for how in ["replaced", "removed", "moved"] {
        let path = folder.at(how);
        fs::write(&path, "x".repeat(100)).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let (below, other) = (folder.below(how), folder.lower.join("other"));
        match how {
            "replaced" => {
                fs::copy(&below, &other).unwrap();
                fs::rename(&other, &below).unwrap();
            }
            "removed" => fs::remove_file(&below).unwrap(),
            _ => fs::rename(&below, &other).unwrap(),
        }
        change_by_descriptor(&file, how);
        let _ = fs::remove_file(&other);
    }
    mount.unmount();
}

fn change_by_descriptor(file: &File, how: &str) {
    file.write_at(b"1", 0).unwrap_or_else(|e| panic!("{how}: write: {e}"));
    file.sync_all().unwrap_or_else(|e| panic!("{how}: fsync: {e}"));
    ftruncate(file, 10).unwrap_or_else(|e| panic!("{how}: ftruncate: {e}"));
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap_or_else(|e| panic!("{how}: fchmod: {e}"));
    file.set_modified(std::time::UNIX_EPOCH).unwrap_or_else(|e| panic!("{how}: futimens: {e}"));
    fsetxattr(file.as_fd(), "user.a", b"1", XattrFlags::empty())
        .unwrap_or_else(|e| panic!("{how}: fsetxattr: {e}"));
    let now = file.metadata().unwrap();
    assert_eq!((now.len(), now.mode() & 0o777), (10, 0o640), "{how}");
}

/// The kernel forgets a folder before the files in it that have other names, too.
#[test]
fn a_name_in_a_folder_that_was_forgotten_is_removed_and_moved() {
    if unable_as_root("a_name_in_a_folder_that_was_forgotten_is_removed_and_moved") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    for moved in [false, true] {
        for name in ["a", "b"] {
            fs::create_dir(folder.at(name)).unwrap();
        }
        fs::write(folder.at("a/file"), "x".repeat(100)).unwrap();
        fs::hard_link(folder.at("a/file"), folder.at("b/file")).unwrap();
        let held = File::open(folder.at("a/file")).unwrap();
        fs::metadata(folder.at("b/file")).unwrap();
        fs::write("/proc/sys/vm/drop_caches", "2\n").unwrap();
        fs::metadata(folder.at("b/file")).unwrap();
        match moved {
            true => fs::rename(folder.at("b/file"), folder.at("b/other")).unwrap(),
            false => fs::remove_file(folder.at("b/file")).unwrap(),
        }
        for mode in [0o600, 0o640] {
            held.set_permissions(fs::Permissions::from_mode(mode)).unwrap();
        }
        drop(held);
        fs::set_permissions(folder.at("a/file"), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(fs::metadata(folder.below("a/file")).unwrap().mode() & 0o777, 0o644);
        for name in ["a", "b"] {
            fs::remove_dir_all(folder.at(name)).unwrap();
        }
    }
    mount.unmount();
}

#[test]
fn a_link_is_to_the_file_that_another_mount_has_saved() {
    if unable("a_link_is_to_the_file_that_another_mount_has_saved") {
        return;
    }
    let (outer, inner) = outer_and_inner();
    let (mount, other) = (outer.mount(""), inner.mount(""));
    let save = |text: &str| {
        fs::write(outer.at("sub/new"), text).unwrap();
        fs::rename(outer.at("sub/new"), outer.at("sub/file")).unwrap();
    };
    for with_backup in [false, true] {
        save("old");
        let text = read(&inner.at("file"));
        assert_eq!(text, "old");
        if with_backup {
            fs::hard_link(outer.at("sub/file"), outer.at("sub/backup")).unwrap();
        }
        fs::metadata(inner.at("file")).unwrap();
        save("new");
        fs::hard_link(inner.at("file"), inner.at("link")).unwrap();
        assert_eq!(read(&inner.at("link")), "new", "{with_backup}");
        for name in ["file", "link"] {
            fs::remove_file(inner.at(name)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1100));
    }
    other.unmount_after_errors();
    mount.unmount_after_errors();
}

/// The file has lost a name and has another size: the kernel looks once.
#[test]
fn a_file_that_changed_in_two_ways_below_can_be_opened() {
    if unable("a_file_that_changed_in_two_ways_below_can_be_opened") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("a"), "four").unwrap();
    fs::hard_link(folder.at("a"), folder.at("b")).unwrap();
    wait_for_release(&folder.at("a"));
    for name in ["a", "b"] {
        fs::metadata(folder.at(name)).unwrap();
    }
    // The size is at the header's front.
    let lower = File::options().write(true).open(folder.below("a")).unwrap();
    lower.write_at(&3u64.to_be_bytes(), 0).unwrap();
    fs::remove_file(folder.below("b")).unwrap();
    assert_eq!(fs::read_to_string(folder.at("a")).unwrap(), "fou");
    mount.unmount();
}

#[test]
fn a_reader_has_the_file_as_others_have_when_its_writer_has_gone() {
    if unable("a_reader_has_the_file_as_others_have_when_its_writer_has_gone") {
        return;
    }
    let (outer, inner) = outer_and_inner();
    let (mount, other) = (outer.mount(""), inner.mount(""));
    let (one, two) = (outer.at("sub/file"), inner.at("file"));
    append(&one, "first\n").unwrap();
    let mut reader = patiently(File::options().read(true), &one).unwrap();
    append(&one, "second\n").unwrap();
    assert_eq!(read(&two), "first\nsecond\n", "the other mount reads while this one does");
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "first\nsecond\n");
    // A writer comes again, and has the file alone.
    let writer = patiently(File::options().append(true), &one).unwrap();
    assert_eq!(File::open(&two).unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop((writer, reader));
    other.unmount_after_errors();
    mount.unmount_after_errors();
}

#[test]
fn a_plain_file_is_read_as_it_grows_below_when_its_writer_has_gone() {
    if unable("a_plain_file_is_read_as_it_grows_below_when_its_writer_has_gone") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount("ecryptfs_passthrough");
    let (path, below) = (folder.at("log"), folder.below("log"));
    fs::write(&below, "first\n").unwrap();
    let mut reader = File::open(&path).unwrap();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    drop(File::options().append(true).open(&path).unwrap());
    for line in ["second\n", "third\n"] {
        // The kernel knows a size for a second.
        std::thread::sleep(Duration::from_millis(1100));
        File::options().append(true).open(&below).unwrap().write_all(line.as_bytes()).unwrap();
        let expected = fs::read_to_string(&below).unwrap();
        wait_until("the kernel looks at the size", PATIENCE, || {
            reader.metadata().unwrap().len() == expected.len() as u64
        });
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, expected);
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }
    drop(reader);
    mount.unmount();
}

/// A race: one mount locks the file for writing as often as it can, while a reader of the other one
/// becomes a writer, or does not.
#[test]
fn a_file_that_a_mount_has_open_is_never_another_ones_to_write() {
    const TRIES: u32 = 600;
    if unable("a_file_that_a_mount_has_open_is_never_another_ones_to_write") {
        return;
    }
    let (outer, inner) = outer_and_inner();
    let (mount, other) = (outer.mount(""), inner.mount(""));
    let (one, two) = (outer.at("sub/file"), inner.at("file"));
    append(&one, "bytes").unwrap();
    // The number of the try whose reader is open, or 0.
    let (reading, ends) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let mut stolen = 0;
            while !ends.load(SeqCst) {
                let before = reading.load(SeqCst);
                let opened = File::options().write(true).open(&one);
                stolen += u32::from(opened.is_ok() && before > 0 && reading.load(SeqCst) == before);
            }
            stolen
        });
        for number in 1..=TRIES {
            let reader = patiently(File::options().read(true), &two).unwrap();
            reading.store(number, SeqCst);
            let writer = File::options().write(true).open(&two);
            std::thread::sleep(Duration::from_millis(1));
            reading.store(0, SeqCst);
            drop((writer, reader));
        }
        ends.store(true, SeqCst);
        assert_eq!(thief.join().unwrap(), 0);
    });
    other.unmount_after_errors();
    mount.unmount_after_errors();
}
