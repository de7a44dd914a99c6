//! The crate's one error: a stable kind, the thing it happened to, and its cause.

/// What went wrong, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The text is no cipher specification.
    BadSpec,
    /// The specification is well formed, but this build has no such cipher, mode or IV generator.
    Unsupported,
    /// The key's length does not fit the cipher.
    KeySize,
    /// The sector size is not one the cipher or format takes.
    SectorSize,
    /// Memory for a key could not be had.
    Memory,
}

underseal_error::error_type! {
    /// An error of the cipher layer. Its text never holds key bytes.
    pub struct Error(ErrorKind);
}
