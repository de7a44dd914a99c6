//! Exit statuses. They are stable: scripts may rely on them.

/// How the command ends.
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
    /// There is no header, it is damaged, or the image does not hold what it says.
    BadHeader = 5,
    /// The volume is sound, but this program cannot or will not open it.
    Unsupported = 6,
    /// Of many files or volumes some failed; the others are done.
    Partial = 7,
    /// What was acknowledged may not be there, or others may use the image by now: somebody has to
    /// look before it is opened again.
    Lost = 8,
}

impl Exit {
    /// What another process of this program ended with.
    pub(crate) fn of_status(code: Option<i32>) -> Self {
        use Exit::*;
        let all = [Usage, NoKey, InUse, BadHeader, Unsupported, Partial, Lost];
        all.into_iter().find(|exit| code == Some(*exit as i32)).unwrap_or(Failed)
    }
}

/// For `--help` and the manual page.
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
