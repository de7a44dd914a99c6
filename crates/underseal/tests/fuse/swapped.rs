//! A mount point in a folder of another user, who replaces it by a link: while the volume is
//! opened, and while it is mounted.

use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;

use crate::fuse::mounted::{Mounted, is_mounted, unmount_stale};
use crate::support::mounts::{cannot_fuse, cannot_mount, skip};
use crate::support::tools::{PATIENCE, wait_until};
use crate::support::volume::{Volume, text, underseal};
use crate::support::{Scratch, output, run, tool};

/// The mount point's folder, a file and a folder in it that a volume is mounted on, and the same
/// beside them, which are the targets.
fn tree(scratch: &Scratch) {
    for folder in ["user/mnt/folder", "victim/folder"] {
        fs::create_dir_all(scratch.path(folder)).unwrap();
    }
    fs::write(scratch.path("user/mnt/disk"), b"").unwrap();
    fs::write(scratch.path("victim/disk"), b"root:x:0:0").unwrap();
}

/// The passphrase's command replaces the mount point: after the mount point was looked at, and
/// before the volume is open.
#[test]
fn a_mount_point_that_is_replaced_while_the_key_is_derived_is_not_mounted_on() {
    if let Some(reason) = cannot_fuse() {
        return skip("replaced", reason);
    }
    for (at, swap) in [
        ("user/mnt/disk", "mv user/mnt/disk user/old && ln -s ../../victim/disk user/mnt/disk"),
        ("user/mnt/disk", "rm user/mnt/disk && ln -s ../../victim/disk user/mnt/disk"),
        ("user/mnt/disk", "rm user/mnt/disk && touch user/mnt/disk"),
        ("user/mnt/disk", "mv user/mnt user/old && ln -s ../victim user/mnt"),
        ("user/mnt/folder", "mv user/mnt/folder user/old && ln -s ../../victim/folder user/mnt/folder"),
        ("user/mnt/folder", "mv user/mnt user/old && ln -s ../victim user/mnt"),
    ] {
        let scratch = Scratch::new();
        let volume = Volume::luks2(&scratch, "17M");
        tree(&scratch);
        let script = format!("cd {} && {swap} && cat {}", text(scratch.folder()), text(&volume.passphrase));
        let script = scratch.file("script", script.as_bytes());
        let mut open = underseal();
        open.arg("open").arg(&volume.image).arg("--fuse").arg(scratch.path(at)).arg("--daemon");
        open.arg("--passphrase-command").arg(format!("/bin/sh {}", text(&script)));
        let ran = output(&mut open);
        let said = String::from_utf8_lossy(&ran.stderr);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let ours: Vec<_> = mounts.lines().filter(|line| line.contains(text(scratch.folder()))).collect();
        for mount in ours.iter().filter_map(|line| line.split(' ').nth(1)) {
            unmount_stale(Path::new(mount));
        }
        assert!(ours.is_empty(), "{swap}: {ours:?}\n{said}");
        assert_eq!(ran.status.code(), Some(1), "{swap}: {said}");
        assert!(said.contains("moved or replaced"), "{swap}: {said}");
        assert_eq!(fs::read(scratch.path("victim/disk")).unwrap(), b"root:x:0:0", "{swap}");
    }
}

/// Links of another user: at the mount point, on the way to it, and in the place of the log file.
#[test]
fn a_link_of_another_user_is_not_followed() {
    if let Some(reason) = cannot_fuse() {
        return skip("links of another user", reason);
    }
    if !rustix::process::geteuid().is_root() {
        return skip("links of another user", "giving links away needs root");
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    tree(&scratch);
    for (to, link) in [("../victim/disk", "user/disk"), ("../victim", "user/folder")] {
        symlink(to, scratch.path(link)).unwrap();
        lchown(scratch.path(link), Some(61_234), None).unwrap();
    }
    let socket = format!("unix:{}", text(&scratch.path("socket")));
    for (status, option, path, log) in [
        (2, "--fuse", "user/disk", "log"),
        (2, "--fuse", "user/folder", "log"),
        (2, "--fuse", "user/folder/disk", "log"),
        (1, "--nbd", socket.as_str(), "user/disk"),
        (1, "--nbd", socket.as_str(), "user/folder/log"),
    ] {
        let path = if option == "--nbd" { path.to_owned() } else { text(&scratch.path(path)).to_owned() };
        let mut open = volume.command("open");
        open.args([option, &path, "--daemon", "-v", "--log-file"]).arg(scratch.path(log));
        let ran = output(&mut open);
        let said = String::from_utf8_lossy(&ran.stderr);
        for mounted in [scratch.path("victim/disk"), scratch.path("victim/folder")] {
            unmount_stale(&mounted);
        }
        assert_eq!(ran.status.code(), Some(status), "{path} {log}: {said}");
        assert!(said.contains("is a link of another user (uid 61234)"), "{path} {log}: {said}");
        assert!(said.contains("\ntry: "), "{path} {log}: {said}");
        assert_eq!(fs::read(scratch.path("victim/disk")).unwrap(), b"root:x:0:0", "{path} {log}");
        assert!(!scratch.path("victim/log").exists(), "{path} {log}");
    }
    // A link of this user is followed.
    symlink(scratch.file("own", b""), scratch.path("user/own")).unwrap();
    let mut open = volume.command("open");
    run(open.arg("--fuse").arg(scratch.path("user/own")).args(["--daemon", "--no-sandbox"]));
    assert!(is_mounted(&scratch.path("own")));
    run(tool("fusermount3").arg("-u").arg(scratch.path("own")));
}

/// A file or folder that is mounted on another one, and unmounted when the value goes.
struct OtherMount<'a>(&'a Path);

impl<'a> OtherMount<'a> {
    fn at(scratch: &Scratch, target: &'a Path) -> Self {
        let source = scratch.path("source");
        if target.is_dir() {
            fs::create_dir(&source).unwrap()
        } else {
            fs::write(&source, b"").unwrap()
        }
        run(tool("mount").arg("--bind").arg(source).arg(target));
        Self(target)
    }
}

impl Drop for OtherMount<'_> {
    fn drop(&mut self) {
        let _ = output(tool("umount").arg("--lazy").arg(self.0));
    }
}

#[test]
fn the_mount_that_was_made_is_unmounted_and_no_other_one_at_its_path() {
    if let Some(reason) = cannot_mount() {
        return skip("replaced while mounted", reason);
    }
    for (name, options) in
        [("disk", &[][..]), ("folder", &[]), ("disk", &["--no-sandbox"]), ("folder", &["--no-sandbox"])]
    {
        let scratch = Scratch::new();
        let volume = Volume::luks2(&scratch, "17M");
        tree(&scratch);
        let victim = scratch.path("victim").join(name);
        let path = scratch.path("user/mnt").join(name);
        let other = OtherMount::at(&scratch, &victim);
        let mounted = Mounted::start_at(&scratch, volume.command("open"), &path, options);
        fs::rename(scratch.path("user/mnt"), scratch.path("user/old")).unwrap();
        std::os::unix::fs::symlink("../victim", scratch.path("user/mnt")).unwrap();
        let moved = scratch.path("user/old").join(name);
        assert!(is_mounted(&moved) && is_mounted(&victim));
        mounted.stop();
        assert!(!is_mounted(&moved), "{name} {options:?}: the volume's mount is left");
        assert!(is_mounted(&victim), "{name} {options:?}: another mount is gone");
        drop(other);
    }
}

/// A dead mount, and one with a living server, behind links of another user; root's links are
/// followed.
#[test]
fn no_dead_mount_is_taken_away_through_a_link_of_another_user() {
    if let Some(reason) = cannot_mount() {
        return skip("dead mounts behind links of another user", reason);
    }
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "17M");
    tree(&scratch);
    let dead = scratch.path("victim/disk");
    Mounted::start_at(&scratch, volume.command("open"), &dead, &[]).kill();
    wait_until("the mount is dead", PATIENCE, || {
        fs::read(&dead).is_err_and(|e| e.raw_os_error() == Some(107))
    });
    for (to, link) in [("../victim/disk", "user/disk"), ("../victim", "user/folder")] {
        symlink(to, scratch.path(link)).unwrap();
        lchown(scratch.path(link), Some(61_234), None).unwrap();
    }
    for path in ["user/disk", "user/folder/disk"] {
        let mut open = volume.command("open");
        let ran = output(open.args(["--daemon", "--fuse"]).arg(scratch.path(path)));
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{path}: {said}");
        assert!(said.contains("is a link of another user (uid 61234)"), "{path}: {said}");
        assert!(is_mounted(&dead), "{path}: {said}");
    }
    lchown(scratch.path("user/folder"), Some(0), None).unwrap();
    let path = scratch.path("user/folder/disk");
    let mut open = volume.command("open");
    run(open.args(["--daemon", "--no-sandbox", "--fuse"]).arg(&path));
    assert!(is_mounted(&dead));
    run(tool("fusermount3").arg("-u").arg(&dead));
    assert!(!is_mounted(&dead));
}
