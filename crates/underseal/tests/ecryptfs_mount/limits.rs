//! A limit of files' sizes that ends inside of an extent: each extent stays the old or the new one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Resource, Rlimit, prlimit};

use crate::ecryptfs_mount::mounted::{Folder, unable};
use crate::support::{run, tool};

const HEADER: usize = 8192;
const EXTENT: usize = 4096;

/// A folder with a file of three extents, and the lower file's bytes.
fn made() -> (Folder, Vec<u8>) {
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("file"), (0..251).cycle().take(3 * EXTENT).collect::<Vec<u8>>()).unwrap();
    mount.unmount();
    let lower = fs::read(folder.below("file")).unwrap();
    assert_eq!(lower.len(), HEADER + 3 * EXTENT);
    (folder, lower)
}

/// Changes a part of the first extent, whose place is partly behind the limit.
#[track_caller]
fn assert_changes_fail(file: &File) {
    let zeros = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let done: [(&str, io::Result<()>); 4] = [
        ("a write", file.write_all_at(b"0123456789", 100)),
        ("a write at the front", file.write_all_at(b"0123456789", 0)),
        ("zeros", fallocate(file, zeros, 50, 60).map_err(io::Error::from)),
        ("a cut", file.set_len(500)),
    ];
    for (what, done) in done {
        let refused = done.unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{what}: {refused}");
    }
}

#[test]
fn a_limit_of_the_size_leaves_whole_extents() {
    if unable("a_limit_of_the_size_leaves_whole_extents") {
        return;
    }
    let (folder, before) = made();
    let limit = HEADER + 1024;
    let mount = folder.mount_under(&format!("prlimit --pid $$ --fsize={limit}"));
    let file = File::options().write(true).open(folder.at("file")).unwrap();
    assert_changes_fail(&file);
    drop(file);
    let log = mount.unmount_after_errors();
    assert!(fs::read(folder.below("file")).unwrap() == before && !log.contains("damaged"), "{log}");
    // A limit inside of the second extent: the first one is written.
    let mount = folder.mount_under(&format!("prlimit --pid $$ --fsize={}", limit + EXTENT));
    let file = File::options().write(true).open(folder.at("file")).unwrap();
    assert_eq!(file.write_at(&[7; 2 * EXTENT], 0).unwrap(), EXTENT);
    drop(file);
    mount.unmount_after_errors();
    let after = fs::read(folder.below("file")).unwrap();
    assert!(after[..HEADER] == before[..HEADER] && after[HEADER + EXTENT..] == before[HEADER + EXTENT..]);
    let mount = folder.mount("");
    assert!(fs::read(folder.at("file")).unwrap()[..EXTENT] == [7; EXTENT]);
    mount.unmount();
}

/// The kernel keeps its pages where zeros fail, so nothing may have changed.
#[test]
fn zeros_that_do_not_fit_behind_the_end_change_nothing_before_it() {
    if unable("zeros_that_do_not_fit_behind_the_end_change_nothing_before_it") {
        return;
    }
    let (folder, before) = made();
    let mount = folder.mount_under(&format!("prlimit --pid $$ --fsize={}", before.len()));
    let file = File::options().write(true).open(folder.at("file")).unwrap();
    let refused = fallocate(&file, FallocateFlags::ZERO_RANGE, 50, 16 * EXTENT as u64).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::FBIG);
    drop(file);
    mount.unmount_after_errors();
    assert!(fs::read(folder.below("file")).unwrap() == before, "the lower file has changed");
}

/// A limit that the server does not know stands for a lower filesystem that takes a part of an
/// extent.
#[test]
fn a_lower_write_that_ends_inside_of_an_extent_is_taken_back() {
    if unable("a_lower_write_that_ends_inside_of_an_extent_is_taken_back") {
        return;
    }
    let (folder, before) = made();
    let mount = folder.mount("");
    let limit = Some((HEADER + 1024) as u64);
    prlimit(Some(mount.pid()), Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    let file = File::options().write(true).open(folder.at("file")).unwrap();
    assert_changes_fail(&file);
    let log = folder.log();
    assert!(fs::read(folder.below("file")).unwrap() == before && !log.contains("damaged"), "{log}");
    // Old bytes that were to be replaced as a whole have not been read.
    let refused = file.write_all_at(&[7; EXTENT], 0).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{refused}");
    drop(file);
    let log = mount.unmount_after_errors();
    assert!(log.contains("file: extent 0 is damaged") && log.contains("try: write"), "{log}");
    assert!(fs::read(folder.below("file")).unwrap()[HEADER + EXTENT..] == before[HEADER + EXTENT..]);
}

/// The kernel sends several mapped pages as one write, and takes a short answer for all of them.
const MAPPED: &str = r#"
import errno, mmap, os, sys
file = open(sys.argv[1], "r+b")
pages = mmap.mmap(file.fileno(), 0)
pages[:] = b"n" * len(pages)
try:
    pages.flush()
    sys.exit("nothing was said of bytes that are lost")
except OSError as e:
    assert e.errno in (errno.EFBIG, errno.EIO), e
"#;

#[test]
fn mapped_bytes_that_have_no_room_are_an_error_of_the_sync() {
    if unable("mapped_bytes_that_have_no_room_are_an_error_of_the_sync") {
        return;
    }
    let (folder, _) = made();
    let limit = HEADER + EXTENT + 1024;
    let mount = folder.mount_under(&format!("prlimit --pid $$ --fsize={limit}"));
    run(tool("python3").args(["-c", MAPPED]).arg(folder.at("file")));
    mount.unmount_after_errors();
}
