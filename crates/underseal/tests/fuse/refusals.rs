//! Where nothing can be mounted: one line why, one line what to do, and nothing is left behind.

use std::path::Path;
use std::process::Command;

use crate::fuse::mounted::{Mounted, client, is_mounted};
use crate::support::mounts::{apart, cannot_fuse, skip, with_fuse_mode};
use crate::support::volume::Volume;
use crate::support::{Scratch, output};

#[track_caller]
fn refused(command: &mut Command, status: i32, words: &str) {
    let ran = output(command);
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(status), "{command:?}: {said}");
    assert!(said.contains(words), "{command:?}: {said:?}");
    assert!(["\ntry: ", "Usage:", "--help"].iter().any(|hint| said.contains(hint)), "{said:?}");
}

#[test]
fn a_path_that_cannot_be_mounted_on_is_refused() {
    if let Some(reason) = cannot_fuse() {
        return skip("paths", reason);
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    let open = |path: &Path| {
        let mut command = client(env!("CARGO_BIN_EXE_underseal"));
        command.arg("open").arg(&volume.image).arg("--passphrase-file").arg(&volume.passphrase);
        command.arg("--fuse").arg(path);
        command
    };
    refused(&mut open(&scratch.path("missing")), 2, "No such file");
    refused(&mut open(Path::new("/dev/null")), 2, "neither a regular file nor a folder");
    refused(&mut open(&volume.image), 2, "hidden under its own plain bytes");
    refused(open(&scratch.path("missing")).arg("--fuse-threads=0"), 2, "fuse-threads");
    refused(volume.command("open").arg("--fuse-no-cache"), 2, "--fuse");

    let mounted = Mounted::start(&scratch, &volume, &[]);
    let other = Volume::at(&scratch, "other").format("17M", &[]);
    refused(
        other.command("open").arg("--fuse").arg(mounted.path()),
        4,
        "is in use: underseal is mounted there",
    );
    refused(&mut open(&scratch.file("elsewhere", b"")), 4, "in use by another program");
    mounted.stop();
    assert!(!is_mounted(&scratch.path("elsewhere")));
}

#[test]
fn a_system_without_fuse_is_told_so() {
    if !rustix::process::geteuid().is_root() {
        return skip("no fuse", "hiding /dev/fuse needs root");
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    let path = scratch.file("disk", b"");
    let open = volume.command("open");
    let mut hidden = apart();
    hidden.args(["sh", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "sh"]);
    hidden.arg(open.get_program()).args(open.get_args()).arg("--fuse").arg(&path);
    refused(&mut hidden, 1, "no /dev/fuse");
}

#[test]
fn a_user_who_may_not_use_fuse_is_told_so() {
    if !rustix::process::geteuid().is_root() {
        return skip("no permission", "becoming another user needs root");
    }
    if let Some(reason) = cannot_fuse() {
        return skip("no permission", reason);
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    let path = scratch.file("disk", b"");
    let open = volume.command("open");
    let mut other = with_fuse_mode(&scratch, "600");
    other.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    other.arg(open.get_program()).args(open.get_args()).arg("--fuse").arg(&path);
    refused(&mut other, 1, "may not use /dev/fuse");
}
