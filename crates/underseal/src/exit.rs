//! Exit statuses. They are stable: scripts may rely on them.

/// The exit status of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The system, the device or the network failed.
    Failed = 1,
    /// An argument or its value was refused, and nothing was changed.
    Usage = 2,
    /// No keyslot opens with the passphrase, or there was none.
    NoKey = 3,
    /// Another program uses the image, its header or the folder.
    InUse = 4,
    /// The header is missing or damaged, or the image does not hold what the header describes.
    BadHeader = 5,
    /// The volume is sound, but this program cannot or will not open it.
    Unsupported = 6,
    /// Some of many files or volumes failed; the others are done.
    Partial = 7,
    /// Acknowledged writes may be lost, or another program may use the image by now: the operator
    /// must check before the image is opened again.
    Lost = 8,
}

impl Exit {
    /// Returns the status that another process of this program ended with.
    pub(crate) fn of_status(code: Option<i32>) -> Self {
        use Exit::*;
        let all = [Usage, NoKey, InUse, BadHeader, Unsupported, Partial, Lost];
        all.into_iter().find(|exit| code == Some(*exit as i32)).unwrap_or(Failed)
    }
}

/// The statuses for `--help` and the manual page.
pub(crate) const STATUSES: [(u8, &str); 9] = [
    (0, "It worked."),
    (Exit::Failed as u8, "The operation failed: reading, writing, memory, the network."),
    (Exit::Usage as u8, "An argument or an input was refused; nothing was changed."),
    (Exit::NoKey as u8, "Wrong passphrase or key, or no keyslot to try."),
    (Exit::InUse as u8, "Another program uses the image, its header or the folder."),
    (Exit::BadHeader as u8, "No header, a damaged one, or an image that is cut short."),
    (Exit::Unsupported as u8, "A sound volume that this program cannot open, or refuses to."),
    (Exit::Partial as u8, "Of many files or volumes some failed, each with a line; the others are done."),
    (
        Exit::Lost as u8,
        "The last flush failed, or the cluster shut this program out: look before the image is opened again.",
    ),
];
