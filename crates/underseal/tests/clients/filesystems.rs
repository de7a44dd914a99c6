//! Filesystems on a served volume, as the kernel makes and uses them: volume, server, nbdfuse, loop
//! device, mount.

use std::fs;
use std::path::Path;

use crate::support::mounts::{Loop, Mount, NbdFuse, cannot_mount, skip};
use crate::support::trees::make_tree;
use crate::support::volume::Volume;
use crate::support::{Scratch, Server, run, seed, tool};

/// A kind of filesystem and its programs.
struct Kind {
    name: &'static str,
    /// The volume's sectors; the server takes no smaller requests, and the loop device must know.
    sector: &'static str,
    size: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const EXT4: Kind = Kind {
    name: "ext4",
    sector: "4096",
    size: "96M",
    make: &["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    check: &["e2fsck", "-fn"],
};

const XFS: Kind = Kind {
    name: "xfs",
    sector: "512",
    // No xfs is smaller than 300 MiB.
    size: "336M",
    make: &["mkfs.xfs", "-q"],
    check: &["xfs_repair", "-n"],
};

#[test]
fn an_ext4_on_a_volume_keeps_its_files_and_stays_sound() {
    filesystem(&EXT4);
}

#[test]
fn an_xfs_on_a_volume_keeps_its_files_and_stays_sound() {
    filesystem(&XFS);
}

fn filesystem(kind: &Kind) {
    if let Some(reason) = cannot_mount() {
        return skip(kind.name, reason);
    }
    let scratch = Scratch::new();
    let tree = make_tree(&scratch, seed(kind.name));
    let volume = Volume::at(&scratch, "image").format(kind.size, &["--sector-size", kind.sector]);
    let mountpoint = scratch.path("mnt");

    with_device(&scratch, &volume, kind, |device| {
        tooled(kind.make, device);
        let mount = Mount::new(device, &mountpoint, &[]);
        run(tool("cp").args(["-r", "--"]).arg(&tree).arg(mount.directory()));
        // Space that is freed and used again.
        run(tool("cp").args(["-r", "--"]).arg(&tree).arg(mount.directory().join("second")));
        fs::remove_dir_all(mount.directory().join("tree")).unwrap();
        run(tool("cp").args(["-r", "--"]).arg(&tree).arg(mount.directory()));
        drop(mount);
        tooled(kind.check, device);
    });

    // Everything was closed; another server finds it all.
    with_device(&scratch, &volume, kind, |device| {
        tooled(kind.check, device);
        let mount = Mount::new(device, &mountpoint, &["-o", "ro"]);
        for copy in ["tree", "second"] {
            run(tool("diff").arg("--recursive").arg(&tree).arg(mount.directory().join(copy)));
        }
    });
}

/// Serves the volume and gives it out as a block device.
fn with_device(scratch: &Scratch, volume: &Volume, kind: &Kind, work: impl FnOnce(&Path)) {
    let server = Server::start(volume, &[]);
    let file = NbdFuse::mount(&scratch.path("fuse/volume"), &[], &[server.uri()]);
    let device = Loop::attach(file.file(), &["--sector-size", kind.sector]);
    work(device.device());
    drop(device);
    file.unmount();
    let log = server.stop();
    assert!(!log.contains("ERROR"), "{log}");
}

fn tooled(command: &[&str], device: &Path) {
    run(tool(command[0]).args(&command[1..]).arg(device));
}
