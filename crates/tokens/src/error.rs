//! The crate's one error: a stable kind, what happened, and its cause.

/// Why a token gave no passphrase, for a program to match on. The later ones are worth more to
/// tell, when several tokens failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// It is of a type that no passphrase can be had from here.
    Unknown,
    /// It cannot open anything: malformed, made for another machine, or the machine is not as it
    /// was when it was made.
    NotUsable,
    /// The tool that it needs is not installed.
    NoTool,
    /// The tool failed for another reason, or did not end in time.
    Failed,
    /// The device it needs is not there.
    NoHardware,
    /// It needs a PIN, and none was given.
    PinWanted,
    /// The PIN is wrong.
    WrongPin,
    /// Memory or descriptors could not be had.
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
