//! The files that loop devices lie on, as the kernel's sysfs shows them.

use std::ffi::OsString;
use std::fs::{read, read_to_string};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, major, minor};

/// The device's folder.
fn folder(device: Dev) -> PathBuf {
    format!("/sys/dev/block/{}:{}", major(device), minor(device)).into()
}

/// Returns the path of the file that a loop device, or a partition of one, lies on. `None` for
/// another device.
pub fn backing_file(device: Dev) -> Option<PathBuf> {
    let folder = folder(device);
    backing_file_in(&folder).or_else(|| backing_file_in(&folder.join("..")))
}

/// Returns the path of the file that a loop device lies on, by the device's folder in sysfs.
pub fn backing_file_in(folder: &Path) -> Option<PathBuf> {
    let mut path = read(folder.join("loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(path).into())
}

/// Returns the bytes of its file that a loop device, or a partition of one, shows; `None` for all.
pub fn backing_range(device: Dev) -> Option<Range<u64>> {
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
