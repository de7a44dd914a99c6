//! The crate's one error: a stable kind, the thing it happened to, and its cause.

/// The kind of a failure, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A number is out of range, or does not fit the others.
    BadOption,
    /// The hash is not known.
    Unsupported,
    /// A device is too small for the tree or for the data.
    TooSmall,
    /// The system has no thread, descriptor or memory left.
    Memory,
}

underseal_error::error_type! {
    /// An error in opening a verity device.
    pub struct Error(ErrorKind);
}
