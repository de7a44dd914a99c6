//! The crate's one error: a stable kind, the thing it happened to, and its cause.

use std::fmt;
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

/// An error of this layer. Its text never holds key bytes, nor names in plain.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// A system call on a file that failed.
    pub(crate) fn io(path: &Path, doing: &str, cause: impl Into<std::io::Error>) -> Self {
        Self::new(ErrorKind::Io, doing).with_source(cause.into()).in_file(path)
    }

    /// The same error, said of a place: `place: context`.
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.context = format!("{place}: {}", self.context);
        self
    }

    /// The same error, said of a lower file.
    pub fn in_file(self, path: &Path) -> Self {
        self.within(path.display())
    }

    /// Whether the file is sound and has no header: it is plain, or empty.
    pub(crate) fn has_no_header(&self) -> bool {
        matches!(self.kind, ErrorKind::NotEncrypted | ErrorKind::Empty)
    }

    /// The stable kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as _)
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
