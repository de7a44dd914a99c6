//! Copies are open to those users to whom the source was open, whatever a folder has its new files
//! inherit.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use crate::ecryptfs_tools::{assert_done, assert_refused, ecryptfs};
use crate::support::mounts::{Mount, skip};
use crate::support::volume::underseal;
use crate::support::{Scratch, run, tool};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";

/// A list as in an xattr: the owner, the user with this number, the group, the mask, others.
fn list(user: u32, permissions: u16) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries = [(1_u16, 7_u16, NONE), (2, permissions, user), (4, 5, NONE), (16, 7, NONE), (32, 5, NONE)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat());
    }
    bytes
}

/// Opens a folder's new entries to a stranger. Returns false without access control lists.
fn opens_to_a_stranger(folder: &Path) -> bool {
    match setxattr(folder, DEFAULT, &list(61_234, 7), XattrFlags::empty()) {
        Err(Errno::OPNOTSUPP) => {
            skip("access of copies", "the filesystem has no access control lists");
            false
        }
        set => set.map(|()| true).unwrap(),
    }
}

/// The mode and the two lists of an entry.
type EntryAccess = (u32, [Option<Vec<u8>>; 2]);

/// The access to all entries of a tree, but for the root.
fn access(root: &Path) -> BTreeMap<PathBuf, EntryAccess> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = PathBuf::from(path.file_name().unwrap());
            all.extend(access(&path).into_iter().map(|(inside, access)| (name.join(inside), access)));
        }
        all.insert(path.file_name().unwrap().into(), of(&path));
    }
    all
}

fn of(path: &Path) -> EntryAccess {
    let lists = [ACCESS, DEFAULT].map(|name| {
        let mut value = vec![0; 1000];
        let len = getxattr(path, name, &mut value[..]).ok()?;
        value.truncate(len);
        Some(value)
    });
    (fs::metadata(path).unwrap().mode(), lists)
}

/// A plain tree: files with many modes, one with a list of its own.
fn plain(scratch: &Scratch) -> PathBuf {
    scratch.file("pass", b"the test's passphrase\n");
    let plain = scratch.path("plain");
    fs::create_dir_all(plain.join("folder/inner")).unwrap();
    for (name, mode) in
        [("private", 0o600), ("group", 0o640), ("folder/all", 0o666), ("folder/listed", 0o640)]
    {
        fs::write(plain.join(name), vec![7; 5000]).unwrap();
        fs::set_permissions(plain.join(name), Permissions::from_mode(mode)).unwrap();
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        plain.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o660),
        0,
    )
    .unwrap();
    fs::set_permissions(plain.join("folder"), Permissions::from_mode(0o770)).unwrap();
    plain
}

#[test]
fn copies_inherit_no_access_from_the_folder_that_they_are_made_in() {
    let scratch = Scratch::new();
    let plain = plain(&scratch);
    let open = scratch.path("open");
    fs::create_dir(&open).unwrap();
    if !opens_to_a_stranger(&open) {
        return;
    }
    setxattr(plain.join("folder/listed"), ACCESS, &list(61_235, 4), XattrFlags::empty()).unwrap();
    setxattr(plain.join("folder/inner"), DEFAULT, &list(61_235, 5), XattrFlags::empty()).unwrap();
    let expected = access(&plain);

    assert_done(&ecryptfs(&scratch, "import", &["plain", "open/lower"]));
    assert_eq!(access(&open.join("lower")), expected);
    assert_eq!(of(&open.join("lower")), of(&plain));
    assert_done(&ecryptfs(&scratch, "export", &["open/lower", "open/back"]));
    assert_eq!(access(&open.join("back")), expected);
    assert_eq!(of(&open.join("back")), of(&plain));
    // A folder that is there, and is open to the stranger itself.
    fs::create_dir(open.join("there")).unwrap();
    assert_done(&ecryptfs(&scratch, "export", &["open/lower", "open/there"]));
    assert_eq!(access(&open.join("there")), expected);
    assert_eq!(of(&open.join("there")), of(&plain));

    assert_done(&ecryptfs(&scratch, "export", &["open/lower", "open/tree.tar", "--tar"]));
    assert_eq!(of(&open.join("tree.tar")), (0o100_600, [None, None]));
    run(tool("tar").current_dir(scratch.folder()).args(["-C", "plain", "-cf", "tree", "private", "group"]));
    assert_done(&ecryptfs(&scratch, "import", &["tree", "open/archive"]));
    let found = access(&open.join("archive"));
    for name in ["private", "group"] {
        assert_eq!(found[Path::new(name)], expected[Path::new(name)], "{name}");
    }
}

#[test]
fn a_converted_file_is_open_to_those_whom_it_was_open_to() {
    let scratch = Scratch::new();
    let plain = plain(&scratch);
    setxattr(plain.join("folder/listed"), ACCESS, &list(61_235, 4), XattrFlags::empty()).ok();
    assert_done(&ecryptfs(&scratch, "import", &["plain", "lower"]));
    let lower = scratch.path("lower");
    for folder in [lower.clone(), lower.join("folder")] {
        if !opens_to_a_stranger(&folder) {
            return;
        }
    }
    let expected = access(&lower);
    for place in ["xattr", "file"] {
        run(underseal().args(["ecryptfs", "convert", "-q", "--header", place]).arg(&lower));
        assert_eq!(access(&lower), expected, "{place}");
    }
}

/// Makes a program and a device that give privileges to their users.
fn privileged(folder: &Path) {
    let program = folder.join("program");
    fs::write(&program, b"#!/bin/true\n").unwrap();
    // CAP_CHOWN, permitted, version 2.
    let capability = [[0, 0, 0, 2], [1, 0, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    setxattr(&program, CAPABILITY, &capability, XattrFlags::empty()).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
    run(tool("mknod").arg(folder.join("null")).args(["c", "1", "3"]));
}

#[test]
fn privileges_that_a_mount_denies_are_not_copied() {
    if !rustix::process::geteuid().is_root() {
        return skip("privileges of copies", "mounting needs root");
    }
    let scratch = Scratch::new();
    scratch.file("pass", b"the test's passphrase\n");
    let honours = Mount::new(Path::new("none"), &scratch.path("trees"), &["-t", "tmpfs", "-o", "suid,dev"]);
    let trees = scratch.path("trees");
    fs::create_dir_all(trees.join("plain/denied")).unwrap();
    let denies = trees.join("plain/denied");
    let denies = Mount::new(Path::new("none"), &denies, &["-t", "tmpfs", "-o", "nosuid,nodev"]);
    privileged(&trees.join("plain"));
    privileged(denies.directory());
    let has = |folder: PathBuf| {
        let program = folder.join("program");
        let capability = getxattr(&program, CAPABILITY, &mut [0; 20][..]).is_ok();
        (fs::metadata(&program).unwrap().mode() & 0o7777, capability, folder.join("null").exists())
    };
    assert_eq!(has(trees.join("plain/denied")), (0o6755, true, true));
    let kept = (0o6755, true, true);
    let imported = ecryptfs(&scratch, "import", &["trees/plain", "trees/lower"]);
    assert_refused(&imported, 7, &["denied/null: a device is not copied"]);
    assert_eq!(has(trees.join("lower")), kept);
    assert_eq!(has(trees.join("lower/denied")), (0o755, false, false));

    let below = Mount::new(Path::new("none"), &trees.join("lower/denied"), &["-t", "tmpfs", "-o", "nosuid"]);
    run(tool("cp")
        .arg("-a")
        .arg(trees.join("lower/program"))
        .arg(trees.join("lower/null"))
        .arg(below.directory()));
    assert_done(&ecryptfs(&scratch, "export", &["trees/lower", "trees/back"]));
    assert_eq!(has(trees.join("back")), kept);
    assert_eq!(has(trees.join("back/denied")), (0o755, false, true));
    drop(below);
    drop(denies);
    drop(honours);
}
