//! The crate's error: a stable kind, the cipher that failed, and the cause.

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is no cipher specification.
    BadSpec,
    /// The specification is well formed, but this build lacks the cipher, mode or IV generator.
    Unsupported,
    /// The key's length does not fit the cipher.
    KeySize,
    /// The cipher or format does not support the sector size.
    SectorSize,
    /// The system has no memory for a key.
    Memory,
}

underseal_error::error_type! {
    /// An error of the cipher layer. Its text never holds key bytes.
    pub struct Error(ErrorKind);
}
