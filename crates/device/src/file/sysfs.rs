//! Facts about a block device from sysfs.

use std::fs::{read_dir, read_to_string};
use std::path::PathBuf;

use rustix::fs::{Dev, major, minor};

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
