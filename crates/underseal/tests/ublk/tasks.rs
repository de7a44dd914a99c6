//! Tasks that know the command, and the volumes that they are about.

use crate::guest::Guest;
use crate::support::Scratch;
use crate::support::volume::{Volume, text};

/// A machine with block devices in user space.
pub(crate) fn guest(scratch: &Scratch) -> Guest<'_> {
    scratch.file("serve.sh", include_bytes!("serve.sh"));
    let mut guest = Guest::new(scratch);
    guest.modules(&["ublk_drv"]);
    guest
}

/// A task's script after what all tasks share. It begins with a copy of the volume in the guest's memory, /run/image.
pub(crate) fn script(volume: &Volume, script: &str) -> String {
    format!(
        "OURS={} IMAGE={} PASS={}\n. ./serve.sh\ncp $IMAGE /run/image\n{script}\nrm /run/image\n",
        env!("CARGO_BIN_EXE_underseal"),
        text(&volume.image),
        text(&volume.passphrase)
    )
}
