//! fdatasync makes sizes durable, wherever they are kept. Nothing is left to chance: the lower
//! filesystem writes its metadata on a sync only, and the disk's contents are checked right after
//! it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use underseal_ecryptfs::tools::LowerFile;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::ecryptfs_power::stacked::{Stack, StackedTree};
use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::{run, tool};

/// A change of the size, within the last extent or beyond it, with the new size. The file has 100
/// bytes before.
type Change = (&'static str, u64, fn(&File));

const CHANGES: [Change; 5] = [
    ("appended", 200, |file| file.write_all_at(&[2; 100], 100).unwrap()),
    ("cut", 50, |file| file.set_len(50).unwrap()),
    ("grown", 3000, |file| file.set_len(3000).unwrap()),
    ("reserved", 4000, |file| fallocate(file, FallocateFlags::empty(), 0, 4000).unwrap()),
    ("grown by an extent", 5000, |file| file.set_len(5000).unwrap()),
];

#[test]
fn fdatasync_makes_sizes_durable() {
    let test = "fdatasync_makes_sizes_durable";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    if unable(test) {
        return;
    }
    for options in ["", "ecryptfs_xattr_metadata"] {
        let mut folder = Folder::new();
        let disk = folder.scratch.sparse("disk", 48 << 20);
        let device = Loop::attach(&disk, &[]);
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        run(tool("mkfs.ext4").args(["-q", "-E", lazy]).arg(device.device()));
        let below = Mount::new(device.device(), &folder.scratch.path("below"), &["-o", "commit=300"]);
        folder.lower = below.directory().join("lower");
        fs::create_dir(&folder.lower).unwrap();
        let mount = folder.mount(options);
        for (name, size, change) in CHANGES {
            for opened_again in [false, true] {
                let name = format!("{name}{}", if opened_again { ", opened again" } else { "" });
                let mut file = File::create_new(folder.at(&name)).unwrap();
                file.write_all_at(&[1; 100], 0).unwrap();
                file.sync_all().unwrap();
                file.sync_data().unwrap();
                change(&file);
                if opened_again {
                    drop(file);
                    file = File::options().write(true).open(folder.at(&name)).unwrap();
                }
                file.sync_data().unwrap();
                // A copy of the bytes that the disk has by now.
                let copy = folder.scratch.path("copy");
                run(tool("cp").arg("--sparse=always").arg(&disk).arg(&copy));
                let device = Loop::attach(&copy, &[]);
                let found = Mount::new(device.device(), &folder.scratch.path("found"), &[]);
                let lower = LowerFile::open(&found.directory().join("lower").join(&name)).unwrap();
                assert_eq!(lower.header.size(), size, "{name} {options}");
                drop(lower);
                drop((found, device));
                fs::remove_file(&copy).unwrap();
            }
        }
        mount.unmount();
        drop((below, device));
    }
}

/// A way to make a file shorter, with nothing fsynced, and the plain bytes that may be found then
/// beside the old ones.
type Cut = (&'static str, fn(&Path), &'static [&'static [u8]]);

const LONG: usize = 1_000_000;

const CUTS: [Cut; 2] = [
    ("cut", |path| File::options().write(true).open(path).unwrap().set_len(10).unwrap(), &[&[1; 10]]),
    ("replaced", |path| fs::write(path, [2; 300_000]).unwrap(), &[&[], &[2; 300_000]]),
];

#[test]
fn a_file_that_is_cut_without_fsync_is_the_old_or_the_new_one() {
    cut_without_fsync("a_file_that_is_cut_without_fsync_is_the_old_or_the_new_one", None);
}

/// Cuts files in a mount and no more, and looks at the disk after its journal was committed.
pub(super) fn cut_without_fsync(test: &str, stack: Option<Stack>) {
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    if unable(test) {
        return;
    }
    for options in ["", "ecryptfs_xattr_metadata"] {
        let mut folder = Folder::new();
        let disk = folder.scratch.sparse("disk", 48 << 20);
        let device = Loop::attach(&disk, &[]);
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        run(tool("mkfs.ext4").args(["-q", "-E", lazy]).arg(device.device()));
        let below = StackedTree::mount(&folder.scratch, &device, &["-o", "commit=300"], stack);
        folder.lower = folder.scratch.path("below").join("lower");
        fs::create_dir(&folder.lower).unwrap();
        let other = File::create(below.disk.directory().join("other")).unwrap();
        let mount = folder.mount(options);
        for (name, _, _) in CUTS {
            fs::write(folder.at(name), vec![1; LONG]).unwrap();
        }
        run(tool("sync").arg("-f").arg(below.disk.directory()));
        for (name, cut, _) in CUTS {
            cut(&folder.at(name));
        }
        // The journal is committed: metadata is on the disk, and data are not.
        other.set_len(1).unwrap();
        other.sync_all().unwrap();
        let copy = folder.scratch.path("copy");
        run(tool("cp").arg("--sparse=always").arg(&disk).arg(&copy));
        mount.unmount();
        let mut after = Folder::new();
        let device_after = Loop::attach(&copy, &[]);
        let below_after = StackedTree::mount(&after.scratch, &device_after, &[], stack);
        after.lower = after.scratch.path("below").join("lower");
        let mount = after.mount(options);
        for (name, _, new) in CUTS {
            // The journal has the new size, and not yet the new contents: as for any file that
            // grew.
            if (name, options) == ("replaced", "ecryptfs_xattr_metadata") {
                continue;
            }
            let found = fs::read(after.at(name)).unwrap_or_else(|e| panic!("{name}, {options}: {e}"));
            let known = found == vec![1; LONG] || new.contains(&&*found);
            assert!(known, "{name}, {options}: {} bytes", found.len());
        }
        mount.unmount();
        drop((below_after, device_after));
        drop((other, below, device));
    }
}
