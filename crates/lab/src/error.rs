//! The crate's one error: a stable kind, what was being done, and its cause.

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

underseal_error::error_type! {
    /// Why there is no result.
    pub struct Error(ErrorKind);
}

impl Error {
    /// For `map_err`: something that the system refused.
    pub(crate) fn system<E: Into<underseal_error::Source>>(context: &str) -> impl FnOnce(E) -> Self {
        move |e| Self::new(ErrorKind::System, context).with_source(e)
    }
}

macro_rules! path_error {
    ($($crate_:ident: $doing:literal),+) => {
        $(impl From<$crate_::Error> for Error {
            fn from(e: $crate_::Error) -> Self {
                Self::new(ErrorKind::Path, $doing).with_source(e)
            }
        })+
    };
}

path_error!(
    underseal_cipher: "the cipher cannot be made",
    underseal_device: "the lower device failed",
    underseal_integrity: "the integrity layer cannot be made",
    underseal_volume: "the volume cannot be made",
    underseal_datapath: "the data path failed"
);
