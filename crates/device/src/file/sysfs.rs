//! Facts about a block device from sysfs.

use std::ffi::OsString;
use std::fs::{File, read, read_dir, read_to_string};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, fstat, major, minor};

/// The device's folder.
fn folder(device: Dev) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(device), minor(device)).into()
}

/// A number or word of the device's queue. A partition's queue is its disk's.
pub(super) fn queue(device: Dev, name: &str) -> Option<String> {
    let folder = folder(device);
    let read = |queue| read_to_string(folder.join(queue).join(name)).ok();
    let word = read("queue").or_else(|| read("../queue"))?;
    Some(word.trim().into())
}

/// True for a loop device.
pub(super) fn is_loop(device: &File) -> bool {
    const LOOP: u32 = 7;
    fstat(device).is_ok_and(|stat| major(stat.st_rdev) == LOOP)
}

/// Returns the path of the file that a loop device, or a partition of one, lies on. `None` for
/// another device.
pub(crate) fn file_below_loop(device: u64) -> Option<PathBuf> {
    ["loop", "../loop"].into_iter().find_map(|place| file_of_loop(&folder(device).join(place)))
}

/// Returns the path in a loop device's folder `loop`.
pub(crate) fn file_of_loop(folder: &Path) -> Option<PathBuf> {
    let mut path = read(folder.join("backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(path).into())
}

/// Returns the bytes of its file that a loop device, or a partition of one, shows; `None` for all.
pub(crate) fn part_of_loop_file(device: u64) -> Option<Range<u64>> {
    let folder = folder(device);
    let number = |place: &str| read_to_string(folder.join(place)).ok()?.trim().parse::<u64>().ok();
    let (start, of_loop) =
        if folder.join("partition").exists() { (number("start")?, "../loop") } else { (0, "loop") };
    let offset = number(&format!("{of_loop}/offset"))?;
    let is_whole = of_loop == "loop" && offset == 0 && number("loop/sizelimit")? == 0;
    let start = offset.checked_add(start.checked_mul(512)?)?;
    let end = start.checked_add(number("size")?.checked_mul(512)?)?;
    (!is_whole).then_some(start..end)
}

/// The kernel's exclusive users of the device, or of a part of it, as far as sysfs shows them:
/// mounts, swap, devices on top.
pub(super) fn holders(device: Dev) -> Vec<String> {
    let mut parts = vec![(folder(device), number(device))];
    for entry in read_dir(folder(device)).into_iter().flatten().flatten() {
        let part = entry.path();
        if let (true, Ok(number)) = (part.join("partition").exists(), read_to_string(part.join("dev"))) {
            parts.push((part, number.trim().into()));
        }
    }
    let mut found = Vec::new();
    let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for (part, number) in &parts {
        found.extend(
            mounts.lines().filter_map(|line| mount_point(line, number)).map(|at| format!("mounted at {at}")),
        );
        for entry in read_dir(part.join("holders")).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let mapped = read_to_string(path.join("dm/name")).ok();
            let name = mapped.as_deref().map(str::trim).map_or(name.to_string_lossy(), Into::into);
            found.push(format!("part of {name}"));
        }
    }
    found
}

fn number(device: Dev) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// The mount point in a line of mountinfo, if the line is for this device: "36 35 98:0 /root /mnt
/// rw .. - ext4 /dev/sda rw".
fn mount_point<'l>(line: &'l str, device: &str) -> Option<&'l str> {
    let mut words = line.split(' ').skip(2);
    (words.next() == Some(device)).then(|| words.nth(1)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_names_the_device_and_the_place() {
        let line = "36 35 98:0 /root /mnt/a\\040b rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(mount_point(line, "98:0"), Some("/mnt/a\\040b"));
        assert_eq!(mount_point(line, "98:1"), None);
        assert_eq!(mount_point("36 35 98:0", "98:0"), None);
    }
}
