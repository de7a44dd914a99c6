//! Tasks that know the command, and the volumes that they are about.

use std::fs;

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

/// A task's script after what all tasks share. It begins with a copy of the volume in the guest's
/// memory, /run/image: its header, and a hole where nothing was written. 9p answers each read in a
/// millisecond, however long it is.
pub(crate) fn script(volume: &Volume, script: &str) -> String {
    let bytes = fs::read(&volume.image).unwrap();
    let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let copy = format!(
        "dd if=$IMAGE of=/run/image bs=1M count={written} iflag=count_bytes,fullblock conv=sparse status=none\n\
         truncate -s {} /run/image",
        bytes.len()
    );
    format!(
        "OURS={} IMAGE={} PASS={}\n. ./serve.sh\n{copy}\n{script}\nrm /run/image\n",
        env!("CARGO_BIN_EXE_underseal"),
        text(&volume.image),
        text(&volume.passphrase)
    )
}
