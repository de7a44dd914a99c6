//! A disk that fails to write: each open file gets the error once, at its next fsync.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::ecryptfs_power::disk::Disk;
use crate::support::mounts::{Mount, cannot_mount, skip};
use crate::support::{run, tool};

const EIO: Option<i32> = Some(5);
const BLOCK: u64 = 4096;
/// Where the contents begin in the lower file: behind its header.
const FIRST: u64 = 2;

#[test]
fn every_opener_is_told_of_a_loss_once() {
    let test = "every_opener_is_told_of_a_loss_once";
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    if unable(test) {
        return;
    }
    let mut folder = Folder::new();
    let disk = Disk::new(&folder.scratch, 64 << 20, 1);
    let device = disk.attach();
    run(tool("mkfs.ext4").args(["-q", "-b", "4096"]).arg(device.device()));
    let below = Mount::new(device.device(), &folder.scratch.path("below"), &[]);
    folder.lower = below.directory().join("lower");
    fs::create_dir(&folder.lower).unwrap();
    let mount = folder.mount("");
    fs::write(folder.at("file"), [1; 4096]).unwrap();
    run(tool("sync").arg("-f").arg(&folder.lower));
    let bmap = format!("bmap /lower/file {FIRST}");
    let block: u64 = run(tool("debugfs").args(["-R", &bmap]).arg(device.device())).trim().parse().unwrap();

    let open = || File::options().write(true).open(folder.at("file")).unwrap();
    let (first, second, third) = (open(), open(), open());
    second.sync_data().unwrap();
    for round in 0..2 {
        first.write_all_at(&[2 + round; 4096], 0).unwrap();
        disk.fail_writes(block * BLOCK..(block + 1) * BLOCK);
        assert_eq!(first.sync_data().unwrap_err().raw_os_error(), EIO);
        disk.heal();
        // A file that is opened later has lost nothing.
        open().sync_all().unwrap();
        assert_eq!(second.sync_all().unwrap_err().raw_os_error(), EIO, "round {round}");
        assert_eq!(third.sync_data().unwrap_err().raw_os_error(), EIO, "round {round}");
        for file in [&first, &second, &third] {
            file.sync_data().unwrap();
        }
    }
    drop((first, second, third));
    let log = mount.unmount_after_errors();
    assert!(log.contains("/lower/file: fsync: "), "{log}");
    drop((below, device));
}
