//! Lower folders on a filesystem that lies on another one: overlayfs, and FUSE with a server that
//! passes everything on.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use underseal_ecryptfs::fs::{LowerFolder, Mount as Passthrough, MountConfig};

use crate::ecryptfs_power::{durable, tools};
use crate::support::Scratch;
use crate::support::mounts::{Loop, Mount, client};
use crate::support::tools::{PATIENCE, output, wait_until};
use crate::support::volume::text;

/// A kind of filesystem on another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stack {
    Overlay,
    Fuse,
}

/// A mounted disk, with or without a filesystem over it, which is unmounted first.
pub(crate) struct StackedTree {
    _upper: Option<Upper>,
    pub(crate) disk: Mount,
}

enum Upper {
    Overlay { _mount: Mount },
    Fuse { at: PathBuf, server: Option<JoinHandle<()>> },
}

impl StackedTree {
    /// Mounts a disk at `below` of the scratch folder, or at `storage` and the stack at `below`.
    pub(crate) fn mount(scratch: &Scratch, device: &Loop, options: &[&str], stack: Option<Stack>) -> Self {
        let below = scratch.path("below");
        let Some(stack) = stack else {
            return Self { _upper: None, disk: Mount::new(device.device(), &below, options) };
        };
        let disk = Mount::new(device.device(), &scratch.path("storage"), options);
        fs::create_dir_all(&below).unwrap();
        Self { _upper: Some(stack.over(disk.directory(), &below)), disk }
    }
}

impl Stack {
    fn over(self, disk: &Path, at: &Path) -> Upper {
        let [lower, upper, work] = ["lowest", "upper", "work"].map(|name| disk.join(name));
        for folder in [&lower, &upper, &work] {
            fs::create_dir_all(folder).unwrap();
        }
        if self == Self::Overlay {
            let folders =
                format!("lowerdir={},upperdir={},workdir={}", text(&lower), text(&upper), text(&work));
            let mount = Mount::new(Path::new("overlay"), at, &["-t", "overlay", "-o", &folders]);
            return Upper::Overlay { _mount: mount };
        }
        let lower = LowerFolder::open(&upper).unwrap();
        let mount = Passthrough::new(lower, at, None, &MountConfig::default()).unwrap();
        Upper::Fuse { at: at.into(), server: Some(thread::spawn(move || mount.run().unwrap())) }
    }
}

impl Drop for Upper {
    fn drop(&mut self) {
        let Self::Fuse { at, server } = self else { return };
        wait_until("the stack is unmounted", PATIENCE, || {
            output(client("umount").arg(&*at)).status.success()
        });
        let ended = server.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(ended, Some(Ok(()))), "the stack's server failed");
    }
}

#[test]
fn what_a_tool_has_done_survives_a_power_cut_on_overlayfs() {
    let test = "what_a_tool_has_done_survives_a_power_cut_on_overlayfs";
    tools::cut_after_each_tool(test, tools::EXT4, 96 << 20, Some(Stack::Overlay));
}

#[test]
fn what_a_tool_has_done_survives_a_power_cut_on_fuse() {
    let test = "what_a_tool_has_done_survives_a_power_cut_on_fuse";
    tools::cut_after_each_tool(test, tools::EXT4, 96 << 20, Some(Stack::Fuse));
}

#[test]
fn a_file_on_overlayfs_that_is_cut_without_fsync_is_the_old_or_the_new_one() {
    let test = "a_file_on_overlayfs_that_is_cut_without_fsync_is_the_old_or_the_new_one";
    durable::cut_without_fsync(test, Some(Stack::Overlay));
}

#[test]
fn a_file_on_fuse_that_is_cut_without_fsync_is_the_old_or_the_new_one() {
    let test = "a_file_on_fuse_that_is_cut_without_fsync_is_the_old_or_the_new_one";
    durable::cut_without_fsync(test, Some(Stack::Fuse));
}
