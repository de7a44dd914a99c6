//! The crate's error: a stable kind, its context, and its cause.

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The header of a known format is missing.
    NoHeader,
    /// The header is damaged, or breaks a rule of its format.
    BadHeader,
    /// Another format's signature is in place of a header's copy; the other copy exists.
    Ambiguous,
    /// The segments do not fit together.
    BadLayout,
    /// The header or the data lies beyond the end of its file or device.
    TooSmall,
    /// No keyslot opens with this passphrase.
    WrongPassphrase,
    /// The requested keyslot does not exist, or the header has none.
    NoKeyslot,
    /// No other keyslot holds the key of the data.
    LastKeyslot,
    /// No room is left for another keyslot, or for both while one replaces the other.
    NoRoom,
    /// The key is not the volume's.
    WrongKey,
    /// The header is sound, but needs a feature that this build lacks.
    Unsupported,
    /// The header has a null cipher, which protects nothing, and the caller did not permit it.
    NullCipher,
    /// The header requires more work or memory than the caller permits.
    TooCostly,
    /// The header differs from the caller's requirements.
    Untrusted,
    /// An option of the caller is out of range or contradicts another one.
    BadOption,
    /// Another program has changed the header, or holds its lock.
    Busy,
    /// Another program holds the header's lock. Nothing was written: the same call may succeed
    /// later.
    Locked,
    /// A reencryption was interrupted in the middle of a step, which must be recovered first.
    NeedsRecovery,
    /// An encryption was interrupted before its header was in front of the data:
    /// [`crate::luks2::UnfinishedStart`].
    UnfinishedStart,
    /// Reading or writing failed.
    Io,
    /// No memory was left.
    Memory,
}

underseal_error::error_type! {
    /// An error of the volume layer. Its text never contains key bytes.
    pub struct Error(ErrorKind);
}
