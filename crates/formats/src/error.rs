//! The crate's one error: a stable kind, the place in the image, and the cause.

use underseal_cipher as cipher;
use underseal_volume as volume;

/// The kind of a failure, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The image has no header of this format.
    NoHeader,
    /// The header is damaged, forged, or says something that its format forbids.
    BadHeader,
    /// No header and no protector opens with this secret.
    WrongPassphrase,
    /// The secret opens nothing by itself: the volume has only protectors of other kinds.
    NoProtector,
    /// The header is sound, but this build does not open volumes of its kind, or refuses to.
    Unsupported,
    /// The volume lies on several devices, and not all of them were given.
    MissingDevice,
    /// The image ends before the header or the data does.
    TooSmall,
    /// The header asks for more work or memory than the caller allows.
    TooCostly,
    /// An option of the caller is out of range or does not fit the others.
    BadOption,
    /// Another program changed the header meanwhile, or holds its lock.
    Busy,
    /// Reading or writing failed.
    Io,
    /// Memory could not be allocated.
    Memory,
}

underseal_error::error_type! {
    /// An error of a foreign format. Its text never holds key bytes.
    pub struct Error(ErrorKind);
}

impl From<volume::Error> for Error {
    fn from(error: volume::Error) -> Self {
        use volume::ErrorKind as Volume;
        let kind = match error.kind() {
            Volume::TooSmall => ErrorKind::TooSmall,
            Volume::TooCostly => ErrorKind::TooCostly,
            Volume::Unsupported => ErrorKind::Unsupported,
            Volume::BadOption => ErrorKind::BadOption,
            Volume::Busy | Volume::Locked => ErrorKind::Busy,
            Volume::Io => ErrorKind::Io,
            Volume::Memory => ErrorKind::Memory,
            _ => ErrorKind::BadHeader,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}

impl From<cipher::Error> for Error {
    fn from(error: cipher::Error) -> Self {
        use cipher::ErrorKind as Cipher;
        let kind = match error.kind() {
            Cipher::Memory => ErrorKind::Memory,
            Cipher::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::BadHeader,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}
