//! The other names of a header's disk: a file, and the loop devices and partitions over it.
//!
//! Other programs lock a header by the name that they use, so a change by one name and a change by
//! another one would not exclude each other. All locks are taken in one order: that of the file at
//! the bottom first, then those of devices by their numbers. A sandboxed server sees no other names
//! and takes its own lock only; the programs beside it take that one, too.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, Mode, OFlags, makedev};
use underseal_named_file::{MountEntry, backing_file, backing_range};

/// The most loop devices on each other that are followed. The kernel refuses a circle.
const DEEPEST: usize = 8;
/// The most other devices that are locked.
const MOST: usize = 64;

/// The other names of a header's file or device.
#[derive(Debug, Default)]
pub(super) struct OtherNames {
    /// The file below a loop device.
    pub(super) below: Option<File>,
    /// Block devices with the header, in the order of their numbers.
    pub(super) devices: Vec<Dev>,
}

/// The place of a device's first byte in the file or disk at the bottom.
struct BottomPlace {
    bottom: Bottom,
    start: u64,
}

#[derive(PartialEq, Eq)]
enum Bottom {
    File(PathBuf),
    Disk(Dev),
}

impl OtherNames {
    /// Finds the names of an open header. A device has the header if it begins at the same byte; of
    /// a file, which may hold volumes in partitions, all devices count.
    pub(super) fn of(header: &File) -> Self {
        let Ok(about) = header.metadata() else { return Self::default() };
        let itself = about.file_type().is_block_device().then(|| about.rdev());
        let devices = devices();
        if devices.is_empty() {
            return Self::default();
        }
        let Some(place) = itself.map_or_else(|| place_of_file(header), |device| Some(place_of(device)))
        else {
            return Self::default();
        };
        let below = match (&place.bottom, itself) {
            (Bottom::File(path), Some(_)) => open_file(path),
            _ => None,
        };
        let id =
            below.as_ref().map_or(Some(about), |file| file.metadata().ok()).map(|of| (of.dev(), of.ino()));
        let has_header = |device: &Dev| {
            let other = place_of(*device);
            let is_same = match (&place.bottom, &other.bottom) {
                (Bottom::File(one), Bottom::File(other)) => one == other || is_file(other, one, id),
                (one, other) => one == other,
            };
            is_same && itself.is_none_or(|_| other.start == place.start)
        };
        let disk = match place.bottom {
            Bottom::Disk(disk) => Some(disk),
            Bottom::File(_) => None,
        };
        let others = devices.into_iter().chain(disk).filter(|device| Some(*device) != itself);
        let mut devices: Vec<Dev> = others.filter(has_header).take(MOST).collect();
        devices.sort_unstable();
        devices.dedup();
        Self { below, devices }
    }
}

/// Returns the loop devices that have a file, and their partitions.
fn devices() -> Vec<Dev> {
    let mut found = Vec::new();
    for disk in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let folder = disk.path();
        if !disk.file_name().as_bytes().starts_with(b"loop") || !folder.join("loop/backing_file").exists() {
            continue;
        }
        found.extend(number_in(&folder));
        // A partition's name begins with its disk's. The other entries, some thirty, would each
        // cost a look in vain, for each loop device and each lock.
        let name = disk.file_name();
        let inside = fs::read_dir(&folder).into_iter().flatten().flatten();
        let named = inside.filter(|part| part.file_name().as_bytes().starts_with(name.as_bytes()));
        let parts = named.map(|part| part.path()).filter(|part| part.join("partition").exists());
        found.extend(parts.filter_map(|part| number_in(&part)));
    }
    found
}

fn number_in(folder: &Path) -> Option<Dev> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn place_of(device: Dev) -> BottomPlace {
    let (mut place, mut device) = (BottomPlace { bottom: Bottom::Disk(device), start: 0 }, device);
    for _ in 0..DEEPEST {
        let Some(path) = backing_file(device) else { break };
        let start = backing_range(device).map_or(0, |range| range.start);
        place.start = place.start.saturating_add(start);
        // Only a node in /dev is looked at: the server of another file may not answer.
        let of = path.starts_with("/dev").then(|| fs::metadata(&path).ok()).flatten();
        let Some(below) = of.filter(|of| of.file_type().is_block_device()) else {
            place.bottom = Bottom::File(path);
            break;
        };
        device = below.rdev();
        place.bottom = Bottom::Disk(device);
    }
    place
}

fn place_of_file(file: &File) -> Option<BottomPlace> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    Some(BottomPlace { bottom: Bottom::File(path), start: 0 })
}

/// Whether a path leads to the file with these numbers. Only a path with the same last name as the
/// file's is looked at: the servers of others may not answer.
fn is_file(path: &Path, named: &Path, id: Option<(u64, u64)>) -> bool {
    path.file_name() == named.file_name()
        && !is_elsewhere(path, id)
        && fs::metadata(path).is_ok_and(|of| Some((of.dev(), of.ino())) == id)
}

/// The beginnings of the types of file systems that another program or machine serves.
const SERVED: [&str; 8] = ["fuse", "nfs", "cifs", "smb3", "9p", "ceph", "afs", "virtiofs"];

/// Whether a path leads into a mount whose server may not answer, and where the file with these
/// numbers is not.
fn is_elsewhere(path: &Path, id: Option<(u64, u64)>) -> bool {
    let Ok(Some(mount)) = MountEntry::over(path) else { return false };
    let (major, minor) = mount.filesystem;
    SERVED.iter().any(|served| mount.kind.starts_with(served))
        && id.is_none_or(|(dev, _)| dev != makedev(major, minor))
}

/// Opens a regular file for its lock, if this user may read it.
fn open_file(path: &Path) -> Option<File> {
    if is_served(path) {
        return None;
    }
    // The path may lead elsewhere by now, and opening a device could change it.
    let found = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?);
    found.metadata().ok().filter(fs::Metadata::is_file)?;
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    File::options().read(true).custom_flags(flags).open(path).ok()
}

/// Whether a path is the mount point of a FUSE server, which may not answer.
fn is_served(path: &Path) -> bool {
    let mount = MountEntry::over(path);
    mount.is_ok_and(|mount| mount.is_some_and(|mount| mount.point == path && mount.kind.starts_with("fuse")))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::lock::{HeaderLock, LockTo, PATIENCE};
    use crate::{ErrorKind, is_header_locked};

    const AT: u64 = 1 << 20;

    /// A file, and the loop devices over it.
    struct Names {
        _folder: tempfile::TempDir,
        image: PathBuf,
        /// From the file's first byte: one on the file, and one on that device.
        whole: PathBuf,
        upper: PathBuf,
        /// From a later byte: a device on the file, and the first device's partition.
        later: PathBuf,
        part: PathBuf,
    }

    impl Names {
        fn new(test: &str) -> Option<Self> {
            if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
                underseal_testing::skip(test, "loop devices need root and /dev/loop-control");
                return None;
            }
            let folder = tempfile::tempdir().unwrap();
            let image = folder.path().join("image");
            File::create(&image).unwrap().set_len(32 << 20).unwrap();
            let over = |below: &Path, at: u64| PathBuf::from(run(losetup(at).arg(below)).trim());
            let whole = over(&image, 0);
            let sectors = [AT / 512, (8 << 20) / 512].map(|number| number.to_string());
            run(tool("addpart").arg(&whole).arg("1").args(sectors));
            let part = format!("{}p1", whole.display()).into();
            Some(Self {
                upper: over(&whole, 0),
                later: over(&image, AT),
                part,
                whole,
                image,
                _folder: folder,
            })
        }

        fn all(&self) -> [&Path; 5] {
            [&self.image, &self.whole, &self.upper, &self.later, &self.part]
        }
    }

    impl Drop for Names {
        fn drop(&mut self) {
            let _ = tool("delpart").arg(&self.whole).arg("1").output();
            for device in [&self.upper, &self.later, &self.whole] {
                let _ = tool("losetup").arg("--detach").arg(device).output();
            }
        }
    }

    fn tool(name: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(name);
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        command
    }

    fn losetup(at: u64) -> Command {
        let mut command = tool("losetup");
        command.args(["--find", "--show", "--offset", &at.to_string()]);
        command
    }

    fn run(command: &mut Command) -> String {
        let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn lock(file: &File, to: LockTo) -> crate::Result<Option<HeaderLock<'_>>> {
        HeaderLock::take(file, to, Duration::ZERO)
    }

    #[test]
    fn a_file_and_the_loop_devices_over_it_exclude_each_other() {
        let test = "a_file_and_the_loop_devices_over_it_exclude_each_other";
        let Some(names) = Names::new(test) else { return };
        let open = |path: &Path| File::open(path).unwrap();
        for one in names.all() {
            for other in names.all().into_iter().filter(|other| *other != one) {
                let (one, other, what) = (open(one), open(other), (one, other));
                let change = lock(&one, LockTo::Change).unwrap();
                for to in [LockTo::Read, LockTo::Change] {
                    let refused = lock(&other, to).map(drop).expect_err(&format!("{what:?} {to:?}"));
                    assert_eq!(refused.kind(), ErrorKind::Locked, "{what:?} {to:?}");
                }
                assert!(is_header_locked(&other), "{what:?}");
                drop(change);
                let read = (lock(&one, LockTo::Read).unwrap(), lock(&other, LockTo::Read).unwrap());
                assert!(lock(&other, LockTo::Change).is_err(), "{what:?}: it is read");
                drop(read);
                drop(lock(&other, LockTo::Change).unwrap());
            }
        }
    }

    #[test]
    fn a_lock_that_fails_at_another_name_leaves_none_behind() {
        let Some(names) = Names::new("a_lock_that_fails_at_another_name_leaves_none_behind") else { return };
        let open = |path: &Path| File::open(path).unwrap();
        let number = open(&names.whole).metadata().unwrap().rdev();
        // As cryptsetup does, which locks the name that it is given.
        let alone = crate::lock::wait_for_device(number, LockTo::Change, Instant::now()).unwrap();
        for name in [&names.image, &names.upper] {
            let file = open(name);
            for to in [LockTo::Read, LockTo::Change] {
                assert!(lock(&file, to).is_err());
                let image = open(&names.image);
                rustix::fs::flock(&image, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
            }
        }
        drop(alone);
    }

    #[test]
    fn programs_that_come_by_different_names_wait_and_do_not_block_each_other() {
        let test = "programs_that_come_by_different_names_wait_and_do_not_block_each_other";
        let Some(names) = Names::new(test) else { return };
        let held = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for name in names.all() {
                let held = &held;
                scope.spawn(move || {
                    let file = File::open(name).unwrap();
                    for _ in 0..5 {
                        let lock = HeaderLock::take(&file, LockTo::Change, PATIENCE).unwrap();
                        assert!(!held.swap(true, SeqCst), "{name:?}");
                        held.store(false, SeqCst);
                        drop(lock);
                    }
                });
            }
        });
    }

    #[test]
    fn cryptsetup_waits_for_a_change_by_another_name() {
        let test = "cryptsetup_waits_for_a_change_by_another_name";
        if tool("cryptsetup").arg("--version").output().is_err() {
            return underseal_testing::skip(test, "cryptsetup is not there");
        }
        let Some(names) = Names::new(test) else { return };
        let quick = ["--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];
        let format = "echo -n a | cryptsetup luksFormat --batch-mode \"$@\" -";
        run(tool("sh").args(["-c", format, "sh"]).args(quick).arg(&names.image));
        let dump = |name: &Path, limit| {
            tool("timeout").args([limit, "cryptsetup", "luksDump"]).arg(name).output().unwrap().status
        };
        for (ours, its) in [
            (&names.image, &names.whole),
            (&names.image, &names.upper),
            (&names.upper, &names.whole),
            (&names.upper, &names.image),
        ] {
            let file = File::open(ours).unwrap();
            let change = lock(&file, LockTo::Change).unwrap();
            assert_eq!(dump(its, "1").code(), Some(124), "{ours:?} {its:?}");
            drop(change);
            assert!(dump(its, "60").success(), "{ours:?} {its:?}");
        }
    }
}
