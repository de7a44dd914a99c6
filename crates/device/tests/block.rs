//! A block device: loop devices, which need root.

mod one;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use one::One;
use underseal_device::{Blocking, Device, ErrorKind, ExpectedBytes, FileDevice, Io, OpenOptions};

const SIZE: u64 = 16 << 20;

/// A loop device over a file in a temporary folder.
struct Loop {
    folder: tempfile::TempDir,
    device: PathBuf,
}

impl Loop {
    /// Returns `None`, and prints a line, where loop devices are not available.
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

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn allocated(&self) -> u64 {
        512 * fs::metadata(self.image()).unwrap().blocks()
    }

    /// The kernel's counters of the disk: discards and flushes.
    fn counts(&self) -> (u64, u64) {
        let name = self.device.file_name().unwrap().to_str().unwrap();
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        let number = |at: usize| stat.split_whitespace().nth(at).unwrap().parse().unwrap();
        (number(11), number(15))
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
fn flushes_and_durable_writes_reach_the_disk() {
    let Some(disk) = Loop::new("flushes_and_durable_writes_reach_the_disk") else { return };
    for options in WAYS {
        let device = disk.open(options);
        let mut io = Blocking::new(&device).unwrap();
        let flushes = |what: &mut dyn FnMut()| {
            let (_, before) = disk.counts();
            what();
            disk.counts().1 - before
        };
        assert_eq!(flushes(&mut || io.write(0, &[1; 4096], false).unwrap()), 0, "{options:?}");
        assert!(flushes(&mut || io.flush().unwrap()) > 0, "a flush, {options:?}");
        assert!(flushes(&mut || io.write(0, &[1; 4096], true).unwrap()) > 0, "a durable write, {options:?}");
    }
}

#[test]
fn discards_reach_the_disk() {
    let Some(disk) = Loop::new("discards_reach_the_disk") else { return };
    for options in WAYS {
        fs::write(disk.image(), vec![7; usize::try_from(SIZE).unwrap()]).unwrap();
        let device = disk.open(options);
        assert!(device.geometry().discard);
        let before = (disk.counts().0, disk.allocated());
        Blocking::new(&device).unwrap().discard(1 << 20, 8 << 20).unwrap();
        assert!(disk.counts().0 > before.0, "{options:?}");
        assert!(
            disk.allocated() <= before.1 - (8 << 20),
            "{options:?}: {} of {}",
            disk.allocated(),
            before.1
        );
        drop(device);
        let mut bytes = vec![0; 3 << 20];
        File::open(&disk.device).unwrap().read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..1 << 20].iter().all(|&b| b == 7) && bytes[1 << 20..].iter().all(|&b| b == 0));
    }
}

#[test]
fn a_kernel_without_the_command_discards_too() {
    const UNKNOWN: [i32; 2] = [22, 95];
    let Some(disk) = Loop::new("a_kernel_without_the_command_discards_too") else { return };
    let mut one = One::new();
    for errno in UNKNOWN {
        fs::write(disk.image(), vec![7; usize::try_from(SIZE).unwrap()]).unwrap();
        let device = disk.open(OpenOptions::default());
        let mut channel = device.channel(1).unwrap();
        let discard = |offset| Io::Discard { offset, len: 4 << 20 };
        one.run_with(channel.as_mut(), discard(0), &[errno]).result.unwrap();
        let (before, allocated) = (disk.counts().0, disk.allocated());
        one.run(channel.as_mut(), discard(4 << 20)).result.unwrap();
        assert!(disk.counts().0 > before && disk.allocated() <= allocated - (4 << 20));
        let beyond = one.run(channel.as_mut(), discard(SIZE));
        assert_eq!(beyond.result.unwrap_err().errno(), Some(22));
    }
}

#[test]
fn parts_of_blocks_are_not_discarded() {
    let Some(disk) = Loop::new("parts_of_blocks_are_not_discarded") else { return };
    let device = disk.open(OpenOptions::default());
    let mut io = Blocking::new(&device).unwrap();
    io.write(0, &[7; 8192], true).unwrap();
    let before = disk.counts().0;
    io.discard(100, 600).unwrap();
    io.discard(513, 0).unwrap();
    assert_eq!(disk.counts().0, before);
    let mut back = [0; 8192];
    io.read(0, &mut back).unwrap();
    assert_eq!(back, [7; 8192]);
    io.discard(4095, 4098).unwrap();
    io.read(0, &mut back).unwrap();
    assert!(back[..4096] == [7; 4096] && back[4096..] == [0; 4096]);
}

#[test]
fn what_a_disk_has_grown_by_is_there_when_it_is_asked() {
    let Some(disk) = Loop::new("what_a_disk_has_grown_by_is_there_when_it_is_asked") else { return };
    for (options, size) in WAYS.into_iter().zip([SIZE, 2 * SIZE]) {
        let device = disk.open(options);
        let mut io = Blocking::new(&device).unwrap();
        assert_eq!((device.geometry().size, device.refresh().unwrap()), (size, size));
        File::options().write(true).open(disk.image()).unwrap().set_len(size + SIZE).unwrap();
        run(Command::new("losetup").arg("--set-capacity").arg(&disk.device));
        assert_eq!(device.geometry().size, size, "nobody has asked");
        assert_eq!((device.refresh().unwrap(), device.geometry().size), (size + SIZE, size + SIZE));
        io.write(size + SIZE - 4096, &[9; 4096], true).unwrap();
        let mut back = [0; 4096];
        io.read(size + SIZE - 4096, &mut back).unwrap();
        assert_eq!(back, [9; 4096]);
    }
}

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

/// A loop device over another one, from a byte on; or partition 1 of a loop device.
enum Upper {
    Loop(PathBuf),
    Partition(PathBuf),
}

impl Upper {
    fn on(below: &Path, offset: u64) -> Self {
        let offset = offset.to_string();
        let command = &mut Command::new("losetup");
        Self::Loop(run(command.args(["--find", "--show", "--offset", &offset]).arg(below)).trim().into())
    }

    fn partition(disk: &Path, start: u64, len: u64) -> Self {
        let sectors = [start, len].map(|bytes| (bytes / 512).to_string());
        run(Command::new("addpart").arg(disk).arg("1").args(sectors));
        Self::Partition(disk.into())
    }

    fn path(&self) -> PathBuf {
        match self {
            Self::Loop(device) => device.clone(),
            Self::Partition(disk) => format!("{}p1", disk.display()).into(),
        }
    }
}

impl Drop for Upper {
    fn drop(&mut self) {
        // The partition of a loop device outlives its file.
        let _ = match self {
            Self::Loop(device) => Command::new("losetup").arg("--detach").arg(device).output(),
            Self::Partition(disk) => Command::new("delpart").arg(disk).arg("1").output(),
        };
    }
}

#[test]
fn a_header_that_goes_from_the_file_at_the_bottom_is_missed_above() {
    const AT: u64 = 1 << 20;
    const TWICE: u64 = 2 * AT;
    let Some(disk) = Loop::new("a_header_that_goes_from_the_file_at_the_bottom_is_missed_above") else {
        return;
    };
    let part = Upper::partition(&disk.device, AT, 8 * AT);
    let upper = Upper::on(&disk.device, AT);
    let on_part = Upper::on(&part.path(), AT);
    let image = File::options().write(true).open(disk.image()).unwrap();
    for (upper, at) in [(&on_part, TWICE), (&upper, AT), (&part, AT)] {
        let device = &upper.path();
        image.write_all_at(&[7; 4096], at).unwrap();
        run(Command::new("blockdev").arg("--flushbufs").arg(device));
        let device = FileDevice::open(device, OpenOptions::default()).unwrap();
        let is_locked = |_: &File| false;
        let copies = vec![vec![(0, vec![7; 512])], vec![(512, vec![7; 512])]];
        device.expect(ExpectedBytes { copies, elsewhere: None, what: "the start", is_locked }).unwrap();
        let mut io = Blocking::new(&device).unwrap();
        io.write(8192, &[1; 4096], false).unwrap();
        io.flush().unwrap();
        image.write_all_at(&[9; 4096], at).unwrap();
        io.flush().expect_err("the header is gone from the file");
        io.write(8192, &[2; 4096], false).unwrap_err();
    }
}
