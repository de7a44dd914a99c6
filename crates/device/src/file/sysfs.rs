//! Facts about a block device from sysfs.

use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, major, minor};
use underseal_named_file::MountEntry;

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
    let mut parts = vec![(folder(device), (major(device), minor(device)))];
    for entry in read_dir(folder(device)).into_iter().flatten().flatten() {
        let part = entry.path();
        let is_partition = part.join("partition").exists();
        if let Some(number) = is_partition.then(|| number(&part)).flatten() {
            parts.push((part, number));
        }
    }
    let mut found = Vec::new();
    for (part, number) in parts {
        let mounts = MountEntry::of_device(number).unwrap_or_default();
        found.extend(mounts.iter().map(|mount| format!("mounted at {}", mount.point.display())));
        for entry in read_dir(part.join("holders")).into_iter().flatten().flatten() {
            let (name, path) = (entry.file_name(), entry.path());
            let mapped = read_to_string(path.join("dm/name")).ok();
            let name = mapped.as_deref().map(str::trim).map_or(name.to_string_lossy(), Into::into);
            found.push(format!("part of {name}"));
        }
    }
    found
}

/// The number of the block device with this folder.
fn number(folder: &Path) -> Option<(u32, u32)> {
    let text = read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
