//! Names of 144 to 255 bytes, and the files beside them below.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, RenameFlags, mknodat, openat, renameat_with, statvfs};
use rustix::io::Errno;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::support::mounts::{Frozen, Loop, Mount, cannot_mount, skip};
use crate::support::{run, tool};

const OPTIONS: &str = "ecryptfs_enable_filename_crypto,long_names";
const LONG: &str = "UNDERSEAL_LONG_NAME.";

fn long(first: char) -> String {
    format!("{first}{}", "n".repeat(199))
}

/// Long lower names, and the files beside them.
fn below(folder: &Folder) -> (BTreeSet<String>, BTreeSet<String>) {
    let names = fs::read_dir(&folder.lower).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let long = names.filter(|name| name.starts_with(LONG));
    let (beside, names): (Vec<_>, Vec<_>) = long.partition(|name| name.ends_with(".name"));
    (names.into_iter().collect(), beside.iter().map(|name| name.replace(".name", "")).collect())
}

/// Each long name has its file beside it, and no file is left over.
#[track_caller]
fn assert_beside(folder: &Folder, count: usize) {
    let (names, beside) = below(folder);
    assert_eq!(names, beside);
    assert_eq!(names.len(), count);
}

fn shown(folder: &Folder) -> BTreeSet<String> {
    fs::read_dir(&folder.plain).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn long_names_are_made_moved_exchanged_and_removed() {
    if unable("long_names_are_made_moved_exchanged_and_removed") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount(OPTIONS);
    assert_eq!(statvfs(&folder.plain).unwrap().f_namemax, 255);
    let at = |name: &str| folder.at(name);
    let [a, b, c, d, l, p] = ['a', 'b', 'c', 'd', 'l', 'p'].map(long);
    fs::write(at(&a), b"first").unwrap();
    fs::write(at(&b), b"the second").unwrap();
    fs::write(at("short"), b"short").unwrap();
    fs::hard_link(at(&a), at(&c)).unwrap();
    fs::create_dir(at(&d)).unwrap();
    symlink("short", at(&l)).unwrap();
    mknodat(CWD, at(&p), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    fs::write(at(&"x".repeat(255)), b"the longest").unwrap();
    let refused = fs::write(at(&"x".repeat(256)), b"too long").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    assert_beside(&folder, 7);
    assert_eq!(fs::read(at(&l)).unwrap(), b"short");
    assert!(fs::metadata(at(&p)).unwrap().file_type().is_fifo());
    assert_eq!(fs::metadata(at(&a)).unwrap().nlink(), 2);

    let rename = |from: &str, to: &str, flags| renameat_with(CWD, at(from), CWD, at(to), flags);
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("none", &long('z'), RenameFlags::empty()), Err(Errno::NOENT));
    assert_beside(&folder, 7);
    rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at(&a)).unwrap(), b"the second");
    rename(&a, "short", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at("short")).unwrap(), b"the second");
    assert_eq!(fs::read(at(&a)).unwrap(), b"short");
    // Two names of one file: nothing happens.
    rename(&b, &c, RenameFlags::empty()).unwrap();
    assert_beside(&folder, 7);
    rename(&a, &b, RenameFlags::empty()).unwrap();
    assert_beside(&folder, 6);
    rename(&b, "from long", RenameFlags::NOREPLACE).unwrap();
    assert_beside(&folder, 5);
    rename("from long", &long('e'), RenameFlags::NOREPLACE).unwrap();
    assert_beside(&folder, 6);
    fs::write(at(&d).join(long('i')), b"inside").unwrap();
    rename(&d, &long('f'), RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(at(&long('f')).join(long('i'))).unwrap(), b"inside");
    // A temporary file has no name, and then gets one.
    let open =
        openat(CWD, &folder.plain, OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600)).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&open));
    rustix::fs::linkat(CWD, path, CWD, at(&long('t')), rustix::fs::AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(open);
    assert_beside(&folder, 7);

    mount.unmount();
    let mount = folder.mount(OPTIONS);
    let expected = [c, l, p, "x".repeat(255), "short".into(), long('e'), long('f'), long('t')];
    assert_eq!(shown(&folder), expected.iter().cloned().collect());
    for name in &expected {
        let about = fs::symlink_metadata(at(name)).unwrap();
        if about.is_dir() { fs::remove_dir_all(at(name)) } else { fs::remove_file(at(name)) }.unwrap();
    }
    mount.unmount();
    assert_eq!(fs::read_dir(&folder.lower).unwrap().count(), 0);
}

#[test]
fn without_the_option_long_names_are_not_shown_and_stay() {
    if unable("without_the_option_long_names_are_not_shown_and_stay") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount(OPTIONS);
    fs::write(folder.at(&long('a')), b"long").unwrap();
    fs::write(folder.at("short"), b"short").unwrap();
    mount.unmount();
    let mount = folder.mount("ecryptfs_enable_filename_crypto");
    assert_eq!(shown(&folder), ["short".into()].into());
    for refused in [
        fs::read(folder.at(&long('a'))).unwrap_err(),
        fs::write(folder.at(&long('b')), b"new").unwrap_err(),
        fs::rename(folder.at("short"), folder.at(&long('b'))).unwrap_err(),
    ] {
        assert_eq!(refused.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    }
    mount.unmount();
    let mount = folder.mount(OPTIONS);
    assert_eq!(fs::read(folder.at(&long('a'))).unwrap(), b"long");
    mount.unmount();
}

#[test]
fn a_folder_of_many_long_names_is_listed_and_removed() {
    if unable("a_folder_of_many_long_names_is_listed_and_removed") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount(OPTIONS);
    let names: BTreeSet<String> = (0..1000).map(|n| format!("{n:0200}")).collect();
    std::thread::scope(|scope| {
        for part in names.iter().cloned().collect::<Vec<_>>().chunks(250) {
            let (folder, part) = (&folder, part.to_vec());
            scope.spawn(move || {
                for name in part {
                    fs::write(folder.at(&name), name.as_bytes()).unwrap();
                }
            });
        }
    });
    assert_eq!(shown(&folder), names);
    mount.unmount();
    let mount = folder.mount(OPTIONS);
    assert_eq!(shown(&folder), names);
    for name in &names {
        assert_eq!(fs::read_to_string(folder.at(name)).unwrap(), *name);
        fs::remove_file(folder.at(name)).unwrap();
    }
    mount.unmount();
    assert_eq!(fs::read_dir(&folder.lower).unwrap().count(), 0);
}

#[test]
fn what_a_crash_leaves_over_means_nothing() {
    if unable("what_a_crash_leaves_over_means_nothing") {
        return;
    }
    let folder = Folder::new();
    let mount = folder.mount(OPTIONS);
    for name in ['a', 'b'].map(long) {
        fs::write(folder.at(&name), name.as_bytes()).unwrap();
    }
    fs::create_dir(folder.at("folder")).unwrap();
    fs::write(folder.at("folder").join(long('i')), b"inside").unwrap();
    fs::create_dir(folder.at("empty")).unwrap();
    mount.unmount();
    // A file that was not made after the one beside it, or removed before.
    let (names, _) = below(&folder);
    let mut names = names.iter();
    let (gone, damaged) = (names.next().unwrap(), names.next().unwrap());
    fs::remove_file(folder.below(gone)).unwrap();
    for entry in fs::read_dir(&folder.lower).unwrap().map(|e| e.unwrap().path()).filter(|path| path.is_dir())
    {
        for inside in fs::read_dir(entry).unwrap().map(|e| e.unwrap().path()) {
            if !inside.to_str().unwrap().ends_with(".name") {
                fs::remove_file(inside).unwrap();
            }
        }
    }
    // A name file that a power cut has left empty.
    fs::write(folder.below(&format!("{damaged}.name")), b"").unwrap();
    let mount = folder.mount(OPTIONS);
    assert_eq!(shown(&folder), ["folder".into(), "empty".into()].into());
    // Still there by its name; and that is found again.
    let there = ['a', 'b'].map(long).into_iter().find(|name| folder.at(name).exists()).unwrap();
    assert_eq!(fs::read_to_string(folder.at(&there)).unwrap(), there);
    fs::rename(folder.at(&there), folder.at("again")).unwrap();
    fs::rename(folder.at("again"), folder.at(&there)).unwrap();
    assert!(shown(&folder).contains(&there));
    // Empty folders can be removed and replaced.
    fs::write(folder.at("file"), b"").unwrap();
    assert!(fs::remove_file(folder.at("folder")).is_err());
    fs::rename(folder.at("empty"), folder.at("folder")).unwrap();
    fs::remove_dir(folder.at("folder")).unwrap();
    fs::create_dir(folder.at("full")).unwrap();
    fs::write(folder.at("full").join(long('i')), b"inside").unwrap();
    let refused = fs::remove_dir(folder.at("full")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    assert_eq!(fs::read(folder.at("full").join(long('i'))).unwrap(), b"inside");
    // The name that was left over is free.
    let free = ['a', 'b'].map(long).into_iter().find(|name| *name != there).unwrap();
    fs::write(folder.at(&free), b"new").unwrap();
    assert!(shown(&folder).contains(&free));
    assert_beside(&folder, 2);
    mount.unmount();
}

/// The disk takes no new files for a while: clients that make files of long names wait for it, and
/// for each other, and others do not.
#[test]
fn long_names_that_are_being_made_keep_no_other_request_waiting() {
    let test = "long_names_that_are_being_made_keep_no_other_request_waiting";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    let mut folder = Folder::new();
    let device = Loop::attach(&folder.scratch.sparse("disk", 64 << 20), &[]);
    run(tool("mkfs.ext4").arg("-q").arg(device.device()));
    let disk = Mount::new(device.device(), &folder.scratch.path("below"), &[]);
    folder.lower = disk.directory().join("lower");
    fs::create_dir(&folder.lower).unwrap();
    let mount = folder.mount_on_threads(OPTIONS, 2);
    let makers: Vec<_> = (0..6).map(|number| folder.at(&format!("maker {number}"))).collect();
    makers.iter().for_each(|maker| fs::create_dir(maker).unwrap());
    fs::create_dir(folder.at("other")).unwrap();
    fs::write(folder.at("other/file"), b"read meanwhile").unwrap();
    let frozen = Frozen::of(disk.directory());
    thread::scope(|scope| {
        let (sender, made) = channel();
        for (number, maker) in makers.iter().enumerate() {
            let sender = sender.clone();
            scope.spawn(move || {
                let name = maker.join(long('m'));
                let made = match number % 3 {
                    0 => fs::write(name, b"made"),
                    1 => fs::create_dir(name),
                    _ => symlink("to", name),
                };
                made.unwrap();
                let _ = sender.send(());
            });
        }
        // The requests have reached the server.
        thread::sleep(Duration::from_millis(500));
        let (sender, read) = channel();
        let file = folder.at("other/file");
        scope.spawn(move || sender.send(fs::read(file)));
        let read = read.recv_timeout(Duration::from_secs(20));
        let waiting = made.try_recv().is_err();
        drop(frozen);
        assert_eq!(read.expect("it waits for the disk").unwrap(), b"read meanwhile");
        assert!(waiting, "the disk took new files");
    });
    makers.iter().for_each(|maker| assert!(fs::symlink_metadata(maker.join(long('m'))).is_ok()));
    mount.unmount();
}
