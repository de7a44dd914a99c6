//! Loop devices: for root, a file of plain bytes is a block device too, which is what scripts expect to find.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes a file a block device with blocks of `block` bytes, as the volume has them; none where that cannot be.
pub(super) fn attach(file: &Path, block: u32, read_only: bool) -> Option<PathBuf> {
    let mut losetup = Command::new("losetup");
    losetup.args(["--find", "--show", "--direct-io=on", "--sector-size", &block.to_string()]);
    if read_only {
        losetup.arg("--read-only");
    }
    let output = losetup.arg("--").arg(file).output().ok()?;
    let device = String::from_utf8(output.stdout).ok()?;
    let device = Path::new(device.trim());
    (output.status.success() && device.starts_with("/dev")).then(|| device.to_owned())
}

/// Gives a block device back. It goes when nobody has it open any more.
pub(super) fn detach(device: &Path) {
    match Command::new("losetup").arg("--detach").arg(device).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            log::warn!("{}: {}", device.display(), crate::output::printable(why.trim()));
        }
        Err(e) => log::warn!("losetup: {e}"),
    }
}

/// The file that a loop device was made of, as the kernel names it.
pub(super) fn file_of(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str().filter(|name| name.starts_with("loop"))?;
    let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    // What was unlinked or unmounted since has a note behind its name.
    Some(PathBuf::from(file.trim_end_matches('\n').trim_end_matches(" (deleted)")))
}
