//! The crate's one error: a stable kind, the thing it happened to, and its cause.

use std::path::Path;

/// The kind of an error, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file has no eCryptfs header: it is plain, or has another format.
    NotEncrypted,
    /// The header is damaged, or breaks a rule of the format.
    BadHeader,
    /// No available key opens the file.
    NoKey,
    /// The passphrase does not open the file of a wrapped passphrase.
    WrongPassphrase,
    /// The encrypted name or symlink target is damaged, or is no name at all.
    BadName,
    /// The name has no encrypted form short enough for a lower file system.
    NameTooLong,
    /// A wrapped passphrase, a signature file or a key payload is damaged.
    BadFile,
    /// The lower file is empty or all zeros: an empty file that has no header yet.
    Empty,
    /// The lower file is shorter than the size in its header.
    Cut,
    /// An extent of the lower file is all zeros: a hole, or never written before a power cut.
    Missing,
    /// An option, a passphrase or a key of the caller is out of range or does not fit the others.
    BadOption,
    /// The input is sound, but this build does not support it.
    Unsupported,
    /// Another mount or tool uses the folder or the file.
    Busy,
    /// Reading or writing failed.
    Io,
    /// Memory could not be allocated.
    Memory,
}

underseal_error::error_type! {
    /// An error of this layer. Its text never holds key bytes, nor plaintext names.
    pub struct Error(ErrorKind);
}

impl Error {
    /// Returns the error of a failed system call on a file.
    pub(crate) fn io(path: &Path, doing: &str, cause: impl Into<std::io::Error>) -> Self {
        Self::new(ErrorKind::Io, doing).with_source(cause.into()).in_file(path)
    }

    /// Returns true when the file is sound and has no header: it is plain, or empty.
    pub(crate) fn has_no_header(&self) -> bool {
        matches!(self.kind, ErrorKind::NotEncrypted | ErrorKind::Empty)
    }
}

impl From<underseal_cipher::Error> for Error {
    fn from(error: underseal_cipher::Error) -> Self {
        use underseal_cipher::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::KeySize => ErrorKind::BadOption,
            Kind::Memory => ErrorKind::Memory,
            _ => ErrorKind::Unsupported,
        };
        Self::new(kind, "the cipher cannot be keyed").with_source(error)
    }
}
