//! The loop devices over a file: their users change it past every lock of the file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns a loop device over a regular file, if there is one. The kernel names its file by the
/// path that it was made with, so one over a file that was renamed since is not found.
pub fn loop_over(file: &File) -> Option<PathBuf> {
    let of = file.metadata().ok().filter(fs::Metadata::is_file)?;
    let disks = fs::read_dir("/sys/block").ok()?.flatten();
    let is_over = |folder: &Path| {
        let path = fs::read(folder.join("loop/backing_file")).unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(path.trim_ascii_end()));
        let there = fs::metadata(path).ok().filter(|_| path.is_absolute());
        there.is_some_and(|there| (there.dev(), there.ino()) == (of.dev(), of.ino()))
    };
    let found = disks
        .filter(|disk| disk.file_name().as_bytes().starts_with(b"loop"))
        .find(|disk| is_over(&disk.path()))?;
    Some(Path::new("/dev").join(found.file_name()))
}
