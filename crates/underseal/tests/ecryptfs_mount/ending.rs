//! Signals while clients have files open: the mount serves them until they are closed, wherever it
//! is by then.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::ecryptfs_mount::mounted::{Folder, Mounted};
use crate::support::mounts::{Mount, cannot_mount, skip};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::{run, tool};

/// A mounted folder on a filesystem whose mounts may be moved.
fn movable() -> (Folder, Mount) {
    let mut folder = Folder::new();
    let place = Mount::tmpfs(&folder.scratch.path("place"), 1 << 20);
    run(tool("mount").arg("--make-private").arg(place.directory()));
    folder.plain = place.directory().join("plain");
    fs::create_dir(&folder.plain).unwrap();
    fs::create_dir(place.directory().join("moved")).unwrap();
    (folder, place)
}

/// The number of mounts in a folder.
fn mounts_in(folder: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let places = table.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new);
    places.filter(|place| place.starts_with(folder) && *place != folder).count()
}

/// The server is still there after more time than it takes to end.
fn assert_alive(mount: &Mounted<'_>, case: &str) {
    thread::sleep(Duration::from_secs(1));
    let status = fs::read_to_string(format!("/proc/{}/status", mount.pid().as_raw_nonzero()));
    assert!(status.is_ok_and(|status| !status.contains("State:\tZ")), "{case}: the server has ended");
}

#[test]
fn a_signal_waits_for_open_files_wherever_the_mount_is() {
    if let Some(reason) = cannot_mount() {
        return skip("a_signal_waits_for_open_files_wherever_the_mount_is", reason);
    }
    for case in ["covered", "moved", "unmounted"] {
        let (folder, place) = movable();
        let (plain, moved) = (&folder.plain, place.directory().join("moved"));
        let mut mount = folder.mount("");
        let mut file = File::create(folder.at("file")).unwrap();
        file.write_all(b"before, ").unwrap();
        match case {
            "covered" => run(tool("mount").args(["-t", "tmpfs", "tmpfs"]).arg(plain)),
            "moved" => run(tool("mount").arg("--move").arg(plain).arg(&moved)),
            _ => run(tool("umount").arg("--lazy").arg(plain)),
        };
        mount.signal(Signal::TERM);
        assert_alive(&mount, case);
        file.write_all(b"after").unwrap_or_else(|e| panic!("{case}: {e}"));
        file.sync_all().unwrap_or_else(|e| panic!("{case}: {e}"));
        if case == "covered" {
            run(tool("umount").arg(plain));
        }
        drop(file);
        mount.wait();
        assert_eq!(mounts_in(place.directory()), 0, "{case}");
        drop(mount);
        let again = folder.mount("");
        assert_eq!(fs::read(folder.at("file")).unwrap(), b"before, after", "{case}");
        again.unmount();
    }
}

#[test]
fn a_mount_that_is_not_in_use_goes_with_a_signal_wherever_it_is() {
    if let Some(reason) = cannot_mount() {
        return skip("a_mount_that_is_not_in_use_goes_with_a_signal_wherever_it_is", reason);
    }
    for is_covered in [false, true] {
        let (folder, place) = movable();
        let moved = place.directory().join("moved");
        let mut mount = folder.mount("");
        run(tool("mount").arg("--move").arg(&folder.plain).arg(&moved));
        // Another mount is at the old place, and one over the new place.
        run(tool("mount").args(["-t", "tmpfs", "other"]).arg(&folder.plain));
        if is_covered {
            run(tool("mount").args(["-t", "tmpfs", "other"]).arg(&moved));
        }
        mount.signal(Signal::TERM);
        if is_covered {
            assert_alive(&mount, "covered");
            wait_until("it says what it waits for", PATIENCE, || folder.log().contains("another mount"));
            run(tool("umount").arg(&moved));
        }
        mount.wait();
        assert_eq!(mounts_in(place.directory()), 1, "the other mount stays");
        run(tool("umount").arg(&folder.plain));
    }
}
