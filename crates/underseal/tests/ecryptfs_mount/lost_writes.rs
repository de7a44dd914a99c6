//! A lower disk that loses bytes after they were written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use super::mounted::Folder;
use crate::support::mounts::{cannot_mount, skip};
use crate::support::thin_disk::ThinDisk;

const MIB: usize = 1 << 20;

#[test]
fn a_truncate_leaves_the_error_of_a_lost_write_to_the_fsync_after_it() {
    if let Some(reason) = cannot_mount() {
        return skip("a_truncate_leaves_the_error", reason);
    }
    let mut folder = Folder::new();
    let disk = ThinDisk::new(&folder.scratch);
    folder.lower = disk.tree.directory().join("lower");
    fs::create_dir(&folder.lower).unwrap();
    let mounted = folder.mount("");
    let path = folder.plain.join("file");
    let file = File::create_new(&path).unwrap();
    file.write_all_at(&vec![1; MIB], 0).unwrap();
    file.sync_all().unwrap();
    // In the middle of an extent.
    let cut = 4 * MIB as u64 - 100;
    disk.is_full_during(|| {
        file.write_all_at(&vec![2; 4 * MIB], MIB as u64).unwrap();
        disk.sync();
        // The size's own block has its room.
        File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
    });
    assert_eq!(fs::metadata(&path).unwrap().len(), cut);
    let failed = file.sync_all().unwrap_err();
    assert!([Errno::NOSPC, Errno::IO].contains(&Errno::from_io_error(&failed).unwrap()), "{failed}");
    file.sync_all().unwrap();
    drop(file);
    drop(mounted);
    drop(disk);
}
