//! A disk with an ext4 that has no room for what was written to it.

use std::fs::{self, File};
use std::io::Write;

use super::mounts::{Loop, Mount};
use super::{Scratch, output, run, tool};

/// A disk that is full for a moment. Another program gets the error of the write-back first.
pub(crate) struct ThinDisk {
    // Dropped in this order.
    pub(crate) tree: Mount,
    _device: Loop,
    disk: Mount,
}

impl ThinDisk {
    pub(crate) fn new(scratch: &Scratch) -> Self {
        let disk = Mount::tmpfs(&scratch.path("disk"), 60 << 20);
        let image = disk.directory().join("image");
        File::create(&image).unwrap().set_len(300 << 20).unwrap();
        run(tool("mkfs.ext4")
            .args(["-q", "-F", "-O", "^has_journal"])
            .arg("-E")
            .arg("nodiscard")
            .arg(&image));
        let device = Loop::attach(&image, &[]);
        let tree = Mount::new(device.device(), &scratch.path("tree"), &["-o", "errors=continue"]);
        Self { tree, _device: device, disk }
    }

    /// Fills the disk while `act` runs.
    pub(crate) fn is_full_during(&self, act: impl FnOnce()) {
        let ballast = self.disk.directory().join("ballast");
        let mut file = File::create(&ballast).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        act();
        fs::remove_file(ballast).unwrap();
    }

    /// Has another program sync the tree, and get the error.
    pub(crate) fn sync(&self) {
        let synced = output(tool("sync").arg("-f").arg(self.tree.directory()));
        assert!(!synced.status.success(), "the disk is full: {synced:?}");
    }
}
