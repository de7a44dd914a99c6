//! Machines, and users, that have no ublk.

use std::path::Path;

use crate::support::Scratch;
use crate::support::mounts::skip;
use crate::support::tools::{output, tool};
use crate::support::volume::Volume;

#[test]
fn without_ublk_nobody_types_a_passphrase_in_vain() {
    let scratch = Scratch::new();
    let volume = Volume::luks2(&scratch, "20M");
    let mut open = tool(env!("CARGO_BIN_EXE_underseal"));
    if Path::new("/dev/ublk-control").exists() {
        if !rustix::process::geteuid().is_root() {
            return skip("without ublk", "hiding this machine's ublk needs root");
        }
        open = tool("unshare");
        open.args(["--mount", "sh", "-c", "mount -t tmpfs none /dev && exec \"$@\"", "sh"]);
        open.arg(env!("CARGO_BIN_EXE_underseal"));
    }
    // The command fails before it asks for a passphrase, so none is given.
    let output = output(open.arg("open").arg(&volume.image).arg("--ublk"));
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("this kernel has no ublk: there is no /dev/ublk-control\n"), "{err}");
    assert!(err.contains("try: `modprobe ublk_drv` on Linux 6.5 or later"), "{err}");
}
