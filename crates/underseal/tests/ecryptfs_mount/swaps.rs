//! Folders and mounts that their owner replaces while another user's command uses them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{lchown, symlink};
use std::process::Stdio;

use rustix::process::Signal;

use crate::ecryptfs_mount::mounted::{Folder, unable, underseal, unmount_stale};
use crate::fuse::mounted::Mounted;
use crate::support::mounts::{Loop, cannot_mount, skip};
use crate::support::tools::{PATIENCE, children, wait_until};
use crate::support::volume::Volume;
use crate::support::{Scratch, output, tool};

/// The lower folder is replaced while the passphrase is asked for: by a tree that it opens.
#[test]
fn a_passphrase_is_compared_with_the_folder_that_is_mounted() {
    if unable("a_passphrase_is_compared_with_the_folder_that_is_mounted") {
        return;
    }
    let mut folder = Folder::new();
    folder.scratch.file("other passphrase", b"of another tree");
    for (lower, passphrase) in [("lower", "passphrase"), ("other", "other passphrase")] {
        folder.lower = folder.scratch.path(lower);
        fs::create_dir_all(&folder.lower).unwrap();
        let mount = folder.mount_with("", &[passphrase]);
        fs::write(folder.at("file"), b"its contents").unwrap();
        mount.unmount();
    }
    let mut command = underseal();
    command.args(["ecryptfs", "mount", "--passphrase-fd", "0"]);
    command.arg(folder.scratch.path("lower")).arg(&folder.plain);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    // The helper is started when the folder is open.
    wait_until("the folder is open", PATIENCE, || !children(server.id()).is_empty());
    fs::rename(folder.scratch.path("lower"), folder.scratch.path("moved")).unwrap();
    fs::rename(folder.scratch.path("other"), folder.scratch.path("lower")).unwrap();
    server.stdin.take().unwrap().write_all(b"of another tree\n").unwrap();
    let mut is_mounted = false;
    wait_until("it is refused or mounted", PATIENCE, || {
        is_mounted =
            fs::read_to_string("/proc/self/mounts").unwrap().contains(folder.plain.to_str().unwrap());
        is_mounted || server.try_wait().unwrap().is_some()
    });
    unmount_stale(&folder.plain);
    let ran = server.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!is_mounted, "it was compared with another tree: {said}");
    assert_eq!(ran.status.code(), Some(3), "{said}");
    assert!(said.contains("files there are for the key"), "{said}");
}

#[test]
fn no_mount_is_unmounted_through_a_link_of_another_user() {
    let test = "no_mount_is_unmounted_through_a_link_of_another_user";
    if unable(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(test, "giving links away needs root");
    }
    let folder = Folder::new();
    let user = folder.scratch.path("user");
    fs::create_dir(&user).unwrap();
    symlink(folder.scratch.folder(), user.join("above")).unwrap();
    symlink(&folder.plain, user.join("plain")).unwrap();
    for link in ["above", "plain"] {
        lchown(user.join(link), Some(61_234), None).unwrap();
    }
    let mount = folder.mount("");
    fs::write(folder.at("file"), b"there").unwrap();
    for (path, lazy) in
        [("above/plain", false), ("above/plain", true), ("plain", false), ("plain", true), ("plain/", true)]
    {
        let mut command = underseal();
        command.args(["ecryptfs", "umount"]).args(lazy.then_some("--lazy")).arg(user.join(path));
        let refused = output(&mut command);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success(), "{path} {lazy}");
        assert!(said.contains("is a link of another user (uid 61234)"), "{path} {lazy}: {said}");
        assert_eq!(fs::read(folder.at("file")).unwrap(), b"there", "{path} {lazy}");
    }
    mount.unmount();
}

#[test]
fn a_mount_of_another_kind_is_left_alone() {
    if unable("a_mount_of_another_kind_is_left_alone") {
        return;
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    let size = volume.size();
    let mount = Mounted::start(&scratch, &volume, &[]);
    let refused = output(underseal().args(["ecryptfs", "umount"]).arg(mount.path()));
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(fs::metadata(mount.path()).unwrap().len(), size);
    mount.stop();
}

/// A loop device on a file of the mount has the name of a header's file elsewhere.
#[test]
fn a_server_that_hangs_holds_no_command_on_a_file_of_the_same_name() {
    let test = "a_server_that_hangs_holds_no_command_on_a_file_of_the_same_name";
    if unable(test) {
        return;
    }
    if let Some(reason) = cannot_mount() {
        return skip(test, reason);
    }
    let folder = Folder::new();
    let mount = folder.mount("");
    fs::write(folder.at("image"), vec![0; 1 << 20]).unwrap();
    let over = Loop::attach(&folder.at("image"), &[]);
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    mount.signal(Signal::STOP);
    let mut info = tool("timeout");
    info.args(["--signal=KILL", "20", env!("CARGO_BIN_EXE_underseal"), "info"]).arg(&volume.image);
    let told = output(&mut info);
    mount.signal(Signal::CONT);
    drop(over);
    mount.unmount();
    assert!(told.status.success(), "{told:?}");
}
