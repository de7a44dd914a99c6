//! The crate's one error: a stable kind, a context, and its cause.

/// The kind of a failure, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The name belongs to no experiment.
    Unknown,
    /// A stored result cannot be read.
    BadResult,
    /// The path under test returned wrong bytes, or failed unexpectedly.
    Wrong,
    /// A request or its preparation failed.
    Path,
    /// The system has no memory, process or file left, or refused it.
    System,
}

underseal_error::error_type! {
    /// The reason of a missing result.
    pub struct Error(ErrorKind);
}

impl Error {
    /// Returns a function for `map_err`: the system refused a resource.
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
