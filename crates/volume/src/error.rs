//! The crate's one error: a stable kind, the thing it happened to, and its cause.

/// What went wrong, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no header of a known format.
    NoHeader,
    /// The header is damaged, or says something that its format forbids.
    BadHeader,
    /// A copy of a header is there, and the beginning of something else where the other copy was.
    Ambiguous,
    /// The segments do not fit together.
    BadLayout,
    /// The header or the data lies beyond the end of its file or device.
    TooSmall,
    /// No keyslot opens with this passphrase.
    WrongPassphrase,
    /// The keyslot that was asked for does not exist, or there is none at all.
    NoKeyslot,
    /// No other keyslot holds the key of the data.
    LastKeyslot,
    /// There is no room for another keyslot, or none for both while one takes the place of the
    /// other.
    NoRoom,
    /// The key is not the one of this volume.
    WrongKey,
    /// The header is sound, but asks for something that this build does not do.
    Unsupported,
    /// The header allows a null cipher, which protects nothing, and the caller did not.
    NullCipher,
    /// The header asks for more work or memory than the caller allows.
    TooCostly,
    /// The header is not what the caller pinned.
    Untrusted,
    /// An option of the caller is out of range or does not fit the others.
    BadOption,
    /// Somebody else changed the header, or holds its lock.
    Busy,
    /// Another program holds the header's lock. Nothing was written: the same call may succeed
    /// later.
    Locked,
    /// A reencryption was cut off in the middle of a step, which has to be made good first.
    NeedsRecovery,
    /// An encryption was cut off before its header was in front of the data:
    /// [`crate::luks2::UnfinishedStart`].
    UnfinishedStart,
    /// Reading or writing failed.
    Io,
    /// Memory could not be had.
    Memory,
}

underseal_error::error_type! {
    /// An error of the volume layer. Its text never holds key bytes.
    pub struct Error(ErrorKind);
}
