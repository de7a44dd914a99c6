//! The crate's one error: a stable kind, the thing it happened to, and its cause.

/// What went wrong, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no superblock where one should be.
    NoSuperblock,
    /// The superblock says something that its format forbids, or something else than the options.
    BadSuperblock,
    /// The device is too small for what the superblock or the options ask for.
    TooSmall,
    /// An option is out of range or does not fit the others.
    BadOption,
    /// The volume is sound, but asks for something that this build or this mode does not do.
    Unsupported,
    /// A key is missing, or of the wrong length.
    BadKey,
    /// The journal contradicts itself; the kernel fails everything on such a volume with EIO.
    BadJournal,
    /// A MAC or a tag is not that of what it protects: damage, forgery or a wrong key. The kernel's
    /// EILSEQ.
    Integrity,
    /// Reading or writing failed.
    Io,
    /// Memory could not be had.
    Memory,
}

underseal_error::error_type! {
    /// An error of the integrity layer. Its text never holds key bytes.
    pub struct Error(ErrorKind);
}

impl Error {
    /// The error number with which the kernel fails in this case: 84 (EILSEQ) or 5 (EIO).
    pub fn errno(&self) -> i32 {
        match self.kind() {
            ErrorKind::Integrity => 84,
            _ => 5,
        }
    }
}
