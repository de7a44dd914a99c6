//! The crate's error: a stable kind, the object that it happened to, and the cause.

/// The kind of an error, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The superblock is missing.
    NoSuperblock,
    /// The superblock violates its format, or contradicts the options.
    BadSuperblock,
    /// The device is too small for the superblock or the options.
    TooSmall,
    /// An option is out of range or does not fit the others.
    BadOption,
    /// The volume is sound, but this build or mode lacks a feature that it needs.
    Unsupported,
    /// A key is missing, or of the wrong length.
    BadKey,
    /// The journal contradicts itself; the kernel fails all requests to such a volume with EIO.
    BadJournal,
    /// A MAC or a tag does not match: damage, forgery or a wrong key. The kernel's EILSEQ.
    Integrity,
    /// Reading or writing failed.
    Io,
    /// The system has no memory.
    Memory,
}

underseal_error::error_type! {
    /// An error of the integrity layer. Its text never holds key bytes.
    pub struct Error(ErrorKind);
}

impl Error {
    /// The error number of the kernel in this case: 84 (EILSEQ) or 5 (EIO).
    pub fn errno(&self) -> i32 {
        match self.kind() {
            ErrorKind::Integrity => 84,
            _ => 5,
        }
    }
}
