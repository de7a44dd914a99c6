//! Names in /dev/mapper, which all programs of a machine share.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::{DeviceNumber, Error, Result};

/// The major number of loop devices (`LOOP_MAJOR`).
const LOOP_MAJOR: u32 = 7;

/// Removes the node of a device that no longer exists, as a killed back end leaves it. Everything
/// else keeps its name.
pub(crate) fn free_name(path: &Path) -> Result<()> {
    let failed = |e: io::Error| Error::system(path.display(), &e);
    let of = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        of => of.map_err(failed)?,
    };
    let number = DeviceNumber::of_node(of.rdev());
    let device = PathBuf::from(format!("/sys/dev/block/{number}"));
    // A loop device has that folder while it is bound.
    let is_free_loop = number.major == LOOP_MAJOR && !device.join("loop").exists();
    let is_gone = is_free_loop || !device.exists();
    if !of.file_type().is_block_device() || !is_gone {
        let what = format!("{} exists, and is another program's", path.display());
        return Err(Error::new(Errno::BUSY, what));
    }
    fs::remove_file(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_a_node_of_a_device_that_is_gone_gives_its_name_up() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        free_name(&at("nothing")).unwrap();
        fs::write(at("file"), "precious").unwrap();
        std::os::unix::fs::symlink("/dev/null", at("link")).unwrap();
        let mut kept = vec!["file", "link"];
        let node = |name: &str, major, minor| {
            let number = DeviceNumber::new(major, minor).for_node();
            mknodat(CWD, at(name), FileType::BlockDevice, Mode::RUSR, number)
        };
        match node("gone", LOOP_MAJOR, 65_613) {
            Err(Errno::PERM) => underseal_testing::skip("nodes", "users make none"),
            made => {
                made.unwrap();
                free_name(&at("gone")).unwrap();
                assert!(!at("gone").exists());
                // An existing device.
                let disks = fs::read_dir("/sys/dev/block").unwrap().flatten();
                let numbers =
                    disks.filter_map(|disk| disk.file_name().to_str()?.parse::<DeviceNumber>().ok());
                if let Some(number) = { numbers }.find(|number| number.major != LOOP_MAJOR) {
                    node("disk", number.major, number.minor).unwrap();
                    kept.push("disk");
                }
            }
        }
        for name in kept {
            assert_eq!(free_name(&at(name)).unwrap_err().errno(), Errno::BUSY, "{name}");
            assert!(fs::symlink_metadata(at(name)).is_ok(), "{name}");
        }
    }
}
