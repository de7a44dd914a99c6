//! The crate's error: an errno for the caller, a text for the operator.

use std::fmt;

use rustix::io::Errno;

/// The result of an ioctl.
pub type Result<T> = std::result::Result<T, Error>;

/// An error. The caller gets only the number, as from the kernel, which logs the reason.
#[derive(Debug)]
pub struct Error {
    errno: Errno,
    why: String,
}

impl Error {
    /// Returns an error with its reason, in the kernel's words if the kernel has any.
    pub fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }

    /// Returns the number.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// Whether a step hangs, or was not begun because an earlier one does.
    pub(crate) fn is_of_hanging(&self) -> bool {
        matches!(self.errno, Errno::TIMEDOUT | Errno::BUSY)
    }

    /// Says first where it happened.
    #[must_use]
    pub fn within(mut self, place: impl fmt::Display) -> Self {
        self.why = format!("{place}: {}", self.why);
        self
    }

    /// Returns the error of a failed system call.
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
