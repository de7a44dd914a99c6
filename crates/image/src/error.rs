//! The crate's error: a stable kind, a context and a cause.

use std::error::Error as _;
use std::io;

/// The kind of a failure, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The image has no header of a known format.
    NoHeader,
    /// The header is damaged, or differs from the one that the caller requires.
    BadHeader,
    /// No keyslot opens with the passphrase, or the volume key is another volume's.
    WrongPassphrase,
    /// The keyslot does not exist, or is the last keyslot, or no room is left for another; or no
    /// protector of a BitLocker or FileVault 2 volume accepts secrets of this kind.
    Keyslot,
    /// The format, cipher or operation is not supported.
    Unsupported,
    /// The header asks for a cipher that encrypts nothing, and the caller did not allow that.
    NullCipher,
    /// The header asks for more key derivation work than the limits allow.
    TooCostly,
    /// Another program uses the image or its header.
    Busy,
    /// The device ends before the volume does.
    TooSmall,
    /// A range is beyond the end of the volume.
    OutOfRange,
    /// The image was opened for reading only.
    ReadOnly,
    /// A sector differs from the written sector: its authentication tag does not match.
    Mismatch,
    /// An option is out of range or does not fit the others.
    BadOption,
    /// Reading or writing failed.
    Io,
    /// Memory could not be allocated or locked.
    Memory,
}

impl ErrorKind {
    /// Returns the name of the kind, for other languages: `wrong-passphrase`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoHeader => "no-header",
            Self::BadHeader => "bad-header",
            Self::WrongPassphrase => "wrong-passphrase",
            Self::Keyslot => "keyslot",
            Self::Unsupported => "unsupported",
            Self::NullCipher => "null-cipher",
            Self::TooCostly => "too-costly",
            Self::Busy => "busy",
            Self::TooSmall => "too-small",
            Self::OutOfRange => "out-of-range",
            Self::ReadOnly => "read-only",
            Self::Mismatch => "mismatch",
            Self::BadOption => "bad-option",
            Self::Io => "io",
            Self::Memory => "memory",
        }
    }

    /// Returns the errno of the kind, for callers that accept nothing else.
    pub fn errno(self) -> i32 {
        match self {
            Self::NoHeader | Self::BadHeader | Self::BadOption => EINVAL,
            Self::WrongPassphrase => EPERM,
            Self::Keyslot => ENOENT,
            Self::Unsupported | Self::NullCipher | Self::TooCostly => EOPNOTSUPP,
            Self::Busy => EBUSY,
            Self::TooSmall | Self::OutOfRange => ENXIO,
            Self::ReadOnly => EROFS,
            Self::Mismatch => EILSEQ,
            Self::Io => EIO,
            Self::Memory => ENOMEM,
        }
    }
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const ENXIO: i32 = 6;
const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;
const EILSEQ: i32 = 84;
const EOPNOTSUPP: i32 = 95;

underseal_error::error_type! {
    /// An error of an image. Its text never holds key bytes.
    pub struct Error(ErrorKind);
}

impl Error {
    /// Returns the errno of the kind, or the system's after a failed read or write.
    pub fn errno(&self) -> i32 {
        let mut cause = self.source().filter(|_| self.kind == ErrorKind::Io);
        while let Some(error) = cause {
            if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
                return code;
            }
            cause = error.source();
        }
        self.kind.errno()
    }

    /// Returns the error and its causes in one line.
    pub fn text(&self) -> String {
        underseal_error::with_causes(self).to_string()
    }
}

impl From<underseal_volume::Error> for Error {
    fn from(e: underseal_volume::Error) -> Self {
        use underseal_volume::ErrorKind as Kind;
        let kind = match e.kind() {
            Kind::NoHeader => ErrorKind::NoHeader,
            Kind::TooSmall => ErrorKind::TooSmall,
            Kind::WrongPassphrase | Kind::WrongKey => ErrorKind::WrongPassphrase,
            Kind::NoKeyslot | Kind::LastKeyslot | Kind::NoRoom => ErrorKind::Keyslot,
            Kind::NullCipher => ErrorKind::NullCipher,
            Kind::TooCostly => ErrorKind::TooCostly,
            Kind::BadOption => ErrorKind::BadOption,
            Kind::Busy | Kind::Locked => ErrorKind::Busy,
            Kind::Io => ErrorKind::Io,
            Kind::Memory => ErrorKind::Memory,
            Kind::Unsupported | Kind::NeedsRecovery | Kind::UnfinishedStart => ErrorKind::Unsupported,
            _ => ErrorKind::BadHeader,
        };
        wrap(kind, &e, e.source())
    }
}

impl From<underseal_formats::Error> for Error {
    fn from(e: underseal_formats::Error) -> Self {
        use underseal_formats::ErrorKind as Kind;
        let kind = match e.kind() {
            Kind::NoHeader => ErrorKind::NoHeader,
            Kind::WrongPassphrase => ErrorKind::WrongPassphrase,
            Kind::NoProtector => ErrorKind::Keyslot,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::MissingDevice | Kind::BadOption => ErrorKind::BadOption,
            Kind::TooSmall => ErrorKind::TooSmall,
            Kind::TooCostly => ErrorKind::TooCostly,
            Kind::Busy => ErrorKind::Busy,
            Kind::Io => ErrorKind::Io,
            Kind::Memory => ErrorKind::Memory,
            _ => ErrorKind::BadHeader,
        };
        wrap(kind, &e, e.source())
    }
}

impl From<underseal_device::Error> for Error {
    fn from(e: underseal_device::Error) -> Self {
        use underseal_device::ErrorKind as Kind;
        let kind = match e.kind() {
            Kind::Locked => ErrorKind::Busy,
            Kind::Memory => ErrorKind::Memory,
            _ if e.mismatch_at().is_some() => ErrorKind::Mismatch,
            _ => ErrorKind::Io,
        };
        wrap(kind, &e, e.source())
    }
}

impl From<underseal_integrity::Error> for Error {
    fn from(e: underseal_integrity::Error) -> Self {
        use underseal_integrity::ErrorKind as Kind;
        let kind = match e.kind() {
            Kind::TooSmall => ErrorKind::TooSmall,
            Kind::Unsupported => ErrorKind::Unsupported,
            Kind::BadOption => ErrorKind::BadOption,
            Kind::Io => ErrorKind::Io,
            Kind::Memory => ErrorKind::Memory,
            _ => ErrorKind::BadHeader,
        };
        wrap(kind, &e, e.source())
    }
}

impl From<underseal_cipher::Error> for Error {
    fn from(e: underseal_cipher::Error) -> Self {
        use underseal_cipher::ErrorKind as Kind;
        let kind = match e.kind() {
            Kind::Memory => ErrorKind::Memory,
            Kind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::BadOption,
        };
        wrap(kind, &e, e.source())
    }
}

/// Converts a lower crate's error: its text is the context, and the system's error below it the
/// cause.
fn wrap(
    kind: ErrorKind,
    error: &dyn std::error::Error,
    mut cause: Option<&(dyn std::error::Error + 'static)>,
) -> Error {
    let mut text = error.to_string();
    while let Some(below) = cause {
        if let Some(code) = below.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Error::new(kind, text).with_source(io::Error::from_raw_os_error(code));
        }
        text = format!("{text}: {below}");
        cause = below.source();
    }
    Error::new(kind, text)
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        let kind = match e.kind() {
            ErrorKind::WrongPassphrase => io::ErrorKind::PermissionDenied,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::Mismatch | ErrorKind::BadHeader | ErrorKind::NoHeader => io::ErrorKind::InvalidData,
            ErrorKind::OutOfRange | ErrorKind::BadOption => io::ErrorKind::InvalidInput,
            ErrorKind::Memory => io::ErrorKind::OutOfMemory,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            _ => io::ErrorKind::Other,
        };
        Self::new(kind, e)
    }
}
