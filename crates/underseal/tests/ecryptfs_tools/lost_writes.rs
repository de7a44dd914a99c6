//! Disks that lose bytes of a tree after they were written.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::support::mounts::{cannot_mount, skip};
use crate::support::thin_disk::ThinDisk;
use crate::support::volume::underseal;
use crate::support::{Scratch, run, tool};

const LARGE: usize = 20 << 20;

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
