//! Loop devices: for root, a file of plain bytes is a block device, too, which scripts expect.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
pub(super) fn resize(device: &Path) -> std::io::Result<()> {
    let output = losetup().arg("--set-capacity").arg(device).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Returns the system's losetup, with an empty environment.
pub(crate) fn losetup() -> Command {
    let places = ["/usr/sbin/losetup", "/sbin/losetup", "/usr/bin/losetup", "/bin/losetup"];
    let found = places.into_iter().find(|path| Path::new(path).exists()).unwrap_or(places[0]);
    let mut losetup = Command::new(found);
    losetup.env_clear().env("LC_ALL", "C.UTF-8");
    losetup
}

/// Releases a block device. It disappears when no program has it open any more.
pub(super) fn detach(device: &Path) {
    match losetup().arg("--detach").arg(device).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            log::warn!("{}: {}", device.display(), crate::output::printable(why.trim()));
        }
        Err(e) => log::warn!("losetup: {e}"),
    }
}

/// Returns the file of a loop device, as the kernel names it.
pub(super) fn file_of(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str().filter(|name| name.starts_with("loop"))?;
    let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    // The kernel appends a note to the name of a file that was unlinked or unmounted.
    Some(PathBuf::from(file.trim_end_matches('\n').trim_end_matches(" (deleted)")))
}
