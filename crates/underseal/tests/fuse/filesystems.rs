//! Filesystems on the file, as the kernel makes and uses them: volume, mount, loop device, mount.

use std::path::Path;

use crate::fuse::mounted::{Mounted, client};
use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::trees::make_tree;
use crate::support::volume::Volume;
use crate::support::{Scratch, run, seed};

/// A kind of filesystem and its programs.
struct Kind {
    name: &'static str,
    size: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const EXT4: Kind = Kind {
    name: "ext4",
    size: "96M",
    make: &["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    check: &["e2fsck", "-fn"],
};

// No xfs is smaller than 300 MiB.
const XFS: Kind = Kind { name: "xfs", size: "336M", make: &["mkfs.xfs", "-q"], check: &["xfs_repair", "-n"] };

const BTRFS: Kind =
    Kind { name: "btrfs", size: "160M", make: &["mkfs.btrfs", "-q"], check: &["btrfs", "check"] };

/// Through the page cache, in the 512-byte blocks that losetup gives by default: parts of the
/// volume's sectors.
const CACHED: &[&str] = &[];
/// Past the page cache, in whole sectors.
const DIRECT: &[&str] = &["--direct-io=on", "--sector-size", "4096"];

#[test]
fn an_ext4_keeps_its_files_and_stays_sound() {
    filesystem(&EXT4, CACHED, &[]);
}

#[test]
fn an_ext4_past_the_page_cache_keeps_its_files_and_stays_sound() {
    filesystem(&EXT4, DIRECT, &[]);
}

#[test]
fn an_ext4_on_a_file_without_a_cache_keeps_its_files_and_stays_sound() {
    filesystem(&EXT4, CACHED, &["--fuse-no-cache"]);
}

#[test]
fn an_xfs_keeps_its_files_and_stays_sound() {
    filesystem(&XFS, CACHED, &[]);
}

#[test]
fn a_btrfs_keeps_its_files_and_stays_sound() {
    filesystem(&BTRFS, CACHED, &[]);
}

#[test]
fn a_btrfs_past_the_page_cache_keeps_its_files_and_stays_sound() {
    filesystem(&BTRFS, DIRECT, &[]);
}

fn filesystem(kind: &Kind, attach: &[&str], open: &[&str]) {
    if let Some(reason) = cannot_mount().or_else(|| unknown(kind)) {
        return skip(kind.name, reason);
    }
    let scratch = Scratch::new();
    let tree = make_tree(&scratch, seed(kind.name));
    let volume = Volume::at(&scratch, "image").format(kind.size, &["--sector-size", "4096"]);
    let mountpoint = scratch.path("mnt");

    let mounted = Mounted::start(&scratch, &volume, open);
    let device = Loop::attach(mounted.path(), attach);
    tooled(kind.make, device.device());
    let mount = Mount::new(device.device(), &mountpoint, &[]);
    run(client("cp").args(["-r", "--"]).arg(&tree).arg(mount.directory()));
    // Space that is freed and used again.
    run(client("cp").args(["-r", "--"]).arg(&tree).arg(mount.directory().join("second")));
    run(client("rm").arg("-r").arg(mount.directory().join("tree")));
    run(client("cp").args(["-r", "--"]).arg(&tree).arg(mount.directory()));
    drop(mount);
    tooled(kind.check, device.device());
    // Again, by the same server: nothing stale is seen.
    let mount = Mount::new(device.device(), &mountpoint, &[]);
    same(&tree, mount.directory());
    drop((mount, device));
    mounted.stop();

    // Everything was closed; another server finds it all.
    let mounted = Mounted::start(&scratch, &volume, open);
    let device = Loop::attach(mounted.path(), attach);
    tooled(kind.check, device.device());
    let mount = Mount::new(device.device(), &mountpoint, &["-o", "ro"]);
    same(&tree, mount.directory());
    drop((mount, device));
    mounted.stop();
}

fn same(tree: &Path, directory: &Path) {
    for copy in ["tree", "second"] {
        run(client("diff").arg("--recursive").arg(tree).arg(directory.join(copy)));
    }
}

fn unknown(kind: &Kind) -> Option<&'static str> {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = known.lines().any(|line| line.split_whitespace().next_back() == Some(kind.name));
    // A module that is not loaded yet is not listed.
    let loaded = || tool_succeeds("modprobe", kind.name);
    (!known && !loaded()).then_some("this kernel does not know the file system")
}

fn tool_succeeds(program: &str, argument: &str) -> bool {
    client(program).arg(argument).output().is_ok_and(|ran| ran.status.success())
}

fn tooled(command: &[&str], device: &Path) {
    run(client(command[0]).args(&command[1..]).arg(device));
}
