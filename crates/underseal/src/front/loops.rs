//! Loop devices: for root, a file of plain bytes is a block device, too, which scripts expect.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;
use rustix::io::Errno;
use underseal_device::{FileId, loop_file_id, release_loop};

/// Makes a file a block device with blocks of `block` bytes, the volume's; `None` where that is not
/// possible.
pub(super) fn attach(file: &Path, block: u32, read_only: bool) -> Option<PathBuf> {
    let mut losetup = losetup();
    losetup.args(["--find", "--show", "--direct-io=on", "--sector-size", &block.to_string()]);
    if read_only {
        losetup.arg("--read-only");
    }
    let output = losetup.arg("--").arg(file).output();
    let output = output.inspect_err(|e| log::warn!("no loop device: losetup: {e}")).ok()?;
    let device = String::from_utf8(output.stdout).ok()?;
    let device = Path::new(device.trim());
    if output.status.success() && device.starts_with("/dev") {
        return Some(device.to_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    log::warn!("no loop device for {}: {}", file.display(), crate::output::printable(why.trim()));
    None
}

/// Updates the size of a loop device to its file's.
pub(super) fn resize(device: &Path) -> io::Result<()> {
    let output = losetup().arg("--set-capacity").arg(device).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Returns the system's losetup, with an empty environment.
pub(crate) fn losetup() -> Command {
    let places = ["/usr/sbin/losetup", "/sbin/losetup", "/usr/bin/losetup", "/bin/losetup"];
    let found = places.into_iter().find(|path| Path::new(path).exists()).unwrap_or(places[0]);
    let mut losetup = Command::new(found);
    losetup.env_clear().env("LC_ALL", "C.UTF-8");
    losetup
}

/// Returns the file of a loop device, as the kernel names it: by its path, which says nothing once
/// the file has been unmounted.
pub(super) fn file_of(device: &Path) -> Option<PathBuf> {
    let file = about(device, "loop/backing_file")?;
    // The kernel appends a note to the name of a file that was unlinked or unmounted.
    Some(PathBuf::from(file.trim_end_matches(" (deleted)")))
}

/// A use of a loop device, from the file's attachment to the device's release: after that the
/// kernel may give the device to another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoopUse {
    pub(super) device: PathBuf,
    /// The kernel's number of this use (Linux 5.15).
    sequence: Option<u64>,
    /// The file's numbers, by which older kernels tell.
    file: Option<FileId>,
}

impl LoopUse {
    /// The present use of a device; `None` when the device has no file.
    pub(super) fn of(device: &Path) -> Option<Self> {
        file_of(device)?;
        let sequence = about(device, "diskseq").and_then(|text| text.parse().ok());
        // Only the file's server knows the numbers, and it may have ended or hang.
        Some(Self { device: device.to_owned(), sequence, file: None })
    }

    /// The present use of a device whose file is being served.
    pub(super) fn of_served(device: &Path) -> Option<Self> {
        let file = open(device).ok().and_then(|device| loop_file_id(&device));
        Self::of(device).map(|of| Self { file, ..of })
    }

    /// Returns true until the device has given up this file.
    pub(super) fn is_current(&self) -> bool {
        match (self.sequence, Self::of(&self.device)) {
            (_, None) => false,
            (Some(sequence), Some(now)) => now.sequence == Some(sequence),
            (None, Some(_)) => {
                self.file.is_some() && Self::of_served(&self.device).is_some_and(|now| now.file == self.file)
            }
        }
    }

    /// Releases the device, if it is still the file's. It disappears when no program has it open
    /// any more.
    pub(super) fn release(&self) -> io::Result<()> {
        // While it is open here it gets no other file.
        let device = open(&self.device)?;
        if !self.is_current() {
            return Ok(());
        }
        match release_loop(&device) {
            // Another process was faster.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NXIO) => Ok(()),
            released => released,
        }
    }

    /// Returns the use as bytes: the device's path, a zero byte, and the numbers.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let numbers = [self.sequence, self.file.map(|id| id.0), self.file.map(|id| id.1)];
        let numbers = numbers.map(|number| number.map_or("-".to_owned(), |number| number.to_string()));
        [self.device.as_os_str().as_bytes(), b"\0", numbers.join(" ").as_bytes()].concat()
    }

    /// Parses [`Self::to_bytes`].
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let at = bytes.iter().position(|byte| *byte == 0)?;
        let device = PathBuf::from(OsStr::from_bytes(&bytes[..at]));
        let numbers = str::from_utf8(&bytes[at + 1..]).ok()?.split(' ').map(|number| number.parse().ok());
        let [sequence, of_device, inode]: [Option<u64>; 3] = numbers.collect::<Vec<_>>().try_into().ok()?;
        Some(Self { device, sequence, file: of_device.zip(inode) })
    }
}

/// Returns a text of sysfs about a loop device.
fn about(device: &Path, what: &str) -> Option<String> {
    let name = device.file_name()?.to_str().filter(|name| name.starts_with("loop"))?;
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join(what)).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

fn open(device: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_is_read_as_it_was_written() {
        for (sequence, file) in
            [(Some(7), Some((57, 1))), (None, Some((57, 1))), (Some(7), None), (None, None)]
        {
            let of = LoopUse { device: "/dev/loop3".into(), sequence, file };
            assert_eq!(LoopUse::from_bytes(&of.to_bytes()), Some(of));
        }
        for bytes in [&b"/dev/loop3"[..], b"/dev/loop3\0", b"/dev/loop3\x001 2", b"/dev/loop3\x001 2 3 4"] {
            assert_eq!(LoopUse::from_bytes(bytes), None);
        }
    }

    /// Kernels before 5.15 have no numbers of uses: the file's numbers tell there.
    #[test]
    fn a_device_with_another_file_is_another_use() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["one", "other"].map(|name| folder.path().join(name));
        files.iter().for_each(|path| File::create(path).unwrap().set_len(1 << 20).unwrap());
        let Some(device) = attach(&files[0], 512, false) else {
            return underseal_testing::skip("uses of loop devices", "no loop devices");
        };
        let of = LoopUse::of_served(&device).unwrap();
        let by_file = LoopUse { sequence: None, ..of.clone() };
        assert!(of.is_current() && by_file.is_current());
        let held = open(&device).unwrap();
        of.release().unwrap();
        assert!(of.is_current() && by_file.is_current(), "until it is closed");
        drop(held);
        let is_free =
            || !Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file").exists();
        underseal_testing::wait_until("the device is free", underseal_testing::PATIENCE, is_free);
        assert!(!of.is_current() && !by_file.is_current());
        by_file.release().unwrap();
        // Another program may have it already.
        let again = losetup().arg(&device).arg(&files[1]).output().unwrap();
        if again.status.success() {
            assert!(!of.is_current() && !by_file.is_current());
            of.release().unwrap();
            by_file.release().unwrap();
            assert_eq!(file_of(&device), Some(files[1].clone()));
            LoopUse::of(&device).unwrap().release().unwrap();
        }
    }
}
