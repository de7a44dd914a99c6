//! A mount point in a folder of another user, who replaces it by a link: while the volume is
//! opened, and while it is mounted.

use std::fs;
use std::path::Path;

use crate::fuse::mounted::{Mounted, is_mounted, unmount_stale};
use crate::support::mounts::{cannot_fuse, cannot_mount, skip};
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
