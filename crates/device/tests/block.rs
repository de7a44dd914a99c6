//! A block device: loop devices, as root.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use underseal_device::{ErrorKind, FileDevice, OpenOptions};

const SIZE: u64 = 16 << 20;

/// A loop device over a file of a folder of its own.
struct Loop {
    folder: tempfile::TempDir,
    device: PathBuf,
}

impl Loop {
    /// None, and a line that says so, where there can be none.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            let line = format!("{test}: skipped: loop devices need root and /dev/loop-control\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        }
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = folder.path().join("image");
        File::create(&image).unwrap().set_len(SIZE).unwrap();
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(&image));
        Some(Self { folder, device: device.trim().into() })
    }

    fn open(&self, options: OpenOptions) -> FileDevice {
        FileDevice::open(&self.device, options).unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ =
            Command::new("umount").args(["--quiet", "--lazy"]).arg(self.folder.path().join("mnt")).output();
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).output();
    }
}

fn run(command: &mut Command) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = command.env("PATH", format!("{path}:/usr/sbin:/sbin")).output();
    let output = output.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const WAYS: [OpenOptions; 2] = [
    OpenOptions { read_only: false, direct: false, unlocked: false },
    OpenOptions { read_only: false, direct: true, unlocked: false },
];

#[test]
fn a_device_that_the_kernel_uses_is_not_opened_for_writing() {
    let Some(disk) = Loop::new("a_device_that_the_kernel_uses_is_not_opened_for_writing") else { return };
    run(Command::new("mkfs.ext4").arg("-q").arg(&disk.device));
    let place = disk.folder.path().join("mnt");
    fs::create_dir(&place).unwrap();
    run(Command::new("mount").arg(&disk.device).arg(&place));
    for options in WAYS {
        let error = FileDevice::open(&disk.device, options).err().expect("it is mounted");
        assert_eq!(error.kind(), ErrorKind::Locked);
        let said = error.to_string();
        assert!(
            said.contains(disk.device.to_str().unwrap()) && said.contains(place.to_str().unwrap()),
            "{said}"
        );
    }
    drop(disk.open(OpenOptions { read_only: true, ..Default::default() }));
    run(Command::new("umount").arg(&place));
    drop(disk.open(OpenOptions::default()));
}
