//! The crate's one error: a stable kind, the thing it happened to, and its cause.

use std::fmt;
use std::path::Path;

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
    /// The key is not the one of this volume.
    WrongKey,
    /// The header is sound, but asks for something that this build does not do.
    Unsupported,
    /// The header allows a null cipher, which protects nothing, and the caller did not.
    NullCipher,
    /// The header asks for more work or memory than the caller allows.
    TooCostly,
    /// An option of the caller is out of range or does not fit the others.
    BadOption,
    /// Somebody else changed the header, or holds its lock.
    Busy,
    /// Reading or writing failed.
    Io,
    /// Memory could not be had.
    Memory,
}

/// An error of the volume layer. Its text never holds key bytes.
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

    /// The same error, said of a place: `place: context`.
    pub(crate) fn within(mut self, place: impl fmt::Display) -> Self {
        self.context = format!("{place}: {}", self.context);
        self
    }

    pub(crate) fn in_file(self, name: &Path) -> Self {
        self.within(name.display())
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
