//! The crate's one error: a stable kind, the thing it happened to, and its cause.

use std::path::Path;

/// What went wrong, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file has no eCryptfs header: it is plain, or something else.
    NotEncrypted,
    /// The header is damaged, or says something that the format forbids.
    BadHeader,
    /// No key at hand opens it.
    NoKey,
    /// The passphrase does not open the file of a wrapped passphrase.
    WrongPassphrase,
    /// The encrypted name or symlink target is damaged, or is no name at all.
    BadName,
    /// A name that has no encrypted form short enough for a lower file system.
    NameTooLong,
    /// A wrapped passphrase, a signature file or a key payload that is damaged.
    BadFile,
    /// The lower file is empty or all zeros: an empty file that has no header yet.
    Empty,
    /// The lower file is shorter than its header says.
    Cut,
    /// An extent of the lower file is all zeros: a hole, or what a power cut left unwritten.
    Missing,
    /// An option, a passphrase or a key of the caller is out of range or does not fit the others.
    BadOption,
    /// Sound, but this build does not do it.
    Unsupported,
    /// Another mount or tool has the folder or the file.
    Busy,
    /// Reading or writing failed.
    Io,
    /// Memory could not be had.
    Memory,
}

underseal_error::error_type! {
    /// An error of this layer. Its text never holds key bytes, nor names in plain.
    pub struct Error(ErrorKind);
}

impl Error {
    /// A system call on a file that failed.
    pub(crate) fn io(path: &Path, doing: &str, cause: impl Into<std::io::Error>) -> Self {
        Self::new(ErrorKind::Io, doing).with_source(cause.into()).in_file(path)
    }

    /// Whether the file is sound and has no header: it is plain, or empty.
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
