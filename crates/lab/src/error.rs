//! The crate's one error: a stable kind, what was being done, and its cause.

use std::error::Error as StdError;
use std::fmt;

/// What went wrong, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no experiment of that name.
    Unknown,
    /// A stored result cannot be read.
    BadResult,
    /// The path under test gave wrong bytes, or failed where it should not.
    Wrong,
    /// A request or its preparation failed.
    Path,
    /// The system refused something: memory, a process, a file.
    System,
}

/// Why there is no result.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// For `map_err`: something that the system refused.
    pub(crate) fn system<E: Into<Box<dyn StdError + Send + Sync>>>(context: &str) -> impl FnOnce(E) -> Self {
        move |e| Self::new(ErrorKind::System, context).because(e)
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

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as _)
    }
}

macro_rules! path_error {
    ($($crate_:ident: $doing:literal),+) => {
        $(impl From<$crate_::Error> for Error {
            fn from(e: $crate_::Error) -> Self {
                Self::new(ErrorKind::Path, $doing).because(e)
            }
        })+
    };
}

path_error!(
    underseal_cipher: "the cipher cannot be made",
    underseal_device: "the lower device failed",
    underseal_volume: "the volume cannot be made",
    underseal_datapath: "the data path failed"
);
