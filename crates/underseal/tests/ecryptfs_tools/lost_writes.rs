//! Disks that lose bytes of a tree after they were written.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::support::mounts::{Loop, Mount, cannot_mount, skip};
use crate::support::volume::underseal;
use crate::support::{Scratch, output, run, tool};

const LARGE: usize = 20 << 20;

/// A disk that is full for a moment. Another program gets the error of the write-back first.
struct ThinDisk {
    // Dropped in this order.
    tree: Mount,
    _device: Loop,
    disk: Mount,
}

impl ThinDisk {
    fn new(scratch: &Scratch) -> Self {
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
    fn is_full_during(&self, act: impl FnOnce()) {
        let ballast = self.disk.directory().join("ballast");
        let mut file = File::create(&ballast).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        act();
        fs::remove_file(ballast).unwrap();
    }

    /// Has another program sync the tree, and get the error.
    fn sync(&self) {
        let synced = output(tool("sync").arg("-f").arg(self.tree.directory()));
        assert!(!synced.status.success(), "the disk is full: {synced:?}");
    }
}

/// Starts a command that reads an archive from stdin.
fn started(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_import_whose_bytes_were_lost_is_not_acknowledged() {
    if let Some(reason) = cannot_mount() {
        return skip("an_import_whose_bytes_were_lost", reason);
    }
    let scratch = Scratch::new();
    scratch.file("pass", b"a passphrase\n");
    scratch.file("a", &crate::support::bytes(1, LARGE));
    scratch.file("b", &[1; 4096]);
    run(tool("tar").current_dir(scratch.folder()).args(["-cf", "tar", "a", "b"]));
    let archive = fs::read(scratch.path("tar")).unwrap();
    let disk = ThinDisk::new(&scratch);
    let mut command = underseal();
    command.args(["ecryptfs", "import", "-"]).arg(disk.tree.directory().join("lower"));
    let mut child = started(command.arg("--passphrase-file").arg(scratch.path("pass")));
    let mut input = child.stdin.take().unwrap();
    disk.is_full_during(|| {
        // All of the first file, and the header of the second.
        input.write_all(&archive[..LARGE + 1024]).unwrap();
        let written = || fs::metadata(disk.tree.directory().join("lower/b")).is_ok();
        crate::support::tools::wait_until("b is begun", crate::support::tools::PATIENCE, written);
        disk.sync();
    });
    input.write_all(&archive[LARGE + 1024..]).unwrap();
    drop(input);
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && said.contains("is not safe on the disk"), "{}: {said}", ended.status);
}
