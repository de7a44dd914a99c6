//! Paths over mounts that do not answer, and through folders that are missing.

use std::os::fd::AsRawFd;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use underseal_sandbox::{append, canonical, folder_of};

use super::*;

/// Gives this process mounts of its own, which other namespaces do not see.
pub(crate) fn own_mounts() -> rustix::io::Result<()> {
    // SAFETY: the process shares its mounts with no other code that relies on them.
    unsafe { unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

#[test]
fn a_mount_that_does_not_answer_is_found_in_its_folder_and_not_passed_through() {
    alone("links::a_mount_that_does_not_answer_is_found_in_its_folder_and_not_passed_through", || {
        let scratch = tempfile::tempdir().unwrap();
        if let Err(e) = own_mounts() {
            return underseal_testing::skip("a mount without a server", &e.to_string());
        }
        // A server that is gone, and another user's server, which answers root as little.
        for (user, refused) in [(0, Errno::NOTCONN), (61_234, Errno::ACCESS)] {
            let at = scratch.path().join(format!("of-{user}"));
            fs::create_dir(&at).unwrap();
            let mounted = File::options().read(true).write(true).open("/dev/fuse").and_then(|server| {
                let options = format!("fd={},rootmode=40000,user_id={user},group_id=0", server.as_raw_fd());
                let options = std::ffi::CString::new(options).unwrap();
                Ok(mount("underseal-test", &at, "fuse", MountFlags::empty(), &*options)?)
            });
            if let Err(e) = mounted {
                return underseal_testing::skip("a mount without a server", &e.to_string());
            }
            assert_eq!(errno(fs::metadata(&at)), Some(refused));
            let (_folder, name) = folder_of(&at).unwrap();
            assert_eq!(name, at.file_name().unwrap());
            assert_eq!(errno(folder_of(&at.join("file"))), Some(refused));
            assert_eq!(errno(canonical(&at.join("file"))), Some(refused));
            unmount(&at, UnmountFlags::DETACH).unwrap();
        }
    });
}

#[test]
fn a_log_in_a_missing_folder_makes_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    assert_eq!(errno(append(&scratch.path().join("none/log"))), Some(Errno::NOENT));
    assert!(!scratch.path().join("none").exists());
}
