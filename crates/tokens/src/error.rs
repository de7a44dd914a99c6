//! The crate's one error: a stable kind, a context, and its cause.

/// The reason why a token gave no passphrase, for a program to match on. When several tokens fail,
/// the error of the latest kind in this list is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The token's type gives no passphrase on this machine.
    Unknown,
    /// The token cannot open anything: malformed, made for another machine, or the machine's state
    /// has changed since the token was made.
    NotUsable,
    /// The tool that the token needs is not installed.
    NoTool,
    /// The tool failed for another reason, or did not end in time.
    Failed,
    /// The device that the token needs is not there.
    NoHardware,
    /// The token needs a PIN, and the caller gave no PIN.
    PinWanted,
    /// The PIN is wrong.
    WrongPin,
    /// Memory or descriptors are exhausted.
    System,
}

underseal_error::error_type! {
    /// An error of the token layer. Its text never holds a secret.
    pub struct Error(ErrorKind);
}

impl Error {
    pub(crate) fn unusable(why: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotUsable, why)
    }

    pub(crate) fn system(doing: &str, e: impl Into<std::io::Error>) -> Self {
        Self::new(ErrorKind::System, doing).with_source(e.into())
    }
}

impl From<underseal_cipher::Error> for Error {
    fn from(e: underseal_cipher::Error) -> Self {
        Self::new(ErrorKind::System, "memory for a secret").with_source(e)
    }
}
