//! The crate's error: an errno for the caller, a text for the operator.

use std::fmt;

use rustix::io::Errno;

/// The result of what an ioctl asks for.
pub type Result<T> = std::result::Result<T, Error>;

/// A refusal. The caller sees the number alone, as from the kernel, which says the rest in its log.
#[derive(Debug)]
pub struct Error {
    errno: Errno,
    why: String,
}

impl Error {
    /// A refusal with its reason; the kernel's words where it has some.
    pub fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }

    /// The number.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Says first where it happened.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.why = format!("{place}: {}", self.why);
        self
    }

    /// A system call that failed.
    pub fn system(what: impl fmt::Display, error: &std::io::Error) -> Self {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        Self::new(errno, format!("{what}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Error {}
