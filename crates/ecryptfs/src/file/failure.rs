//! Failures of a file: the caller's error number, and the operator's message.

use std::fmt;

use rustix::io::Errno;

use crate::{Error, ErrorKind};

/// An error number and its reason.
#[derive(Debug)]
pub(crate) struct FsError {
    pub(crate) errno: Errno,
    why: Option<String>,
}

impl FsError {
    /// A violation of the format, or a missing key: an I/O error, as from the kernel.
    pub(crate) fn unreadable(why: impl Into<String>) -> Self {
        Self { errno: Errno::IO, why: Some(why.into()) }
    }

    /// The file is in use by another mount or a tool.
    pub(crate) fn busy(why: Error) -> Self {
        Self { errno: Errno::BUSY, why: Some(why.to_string()) }
    }

    /// Returns true when the operator needs a message: the lower file is at fault, not the caller.
    pub(crate) fn is_serious(&self) -> bool {
        matches!(
            self.errno,
            Errno::IO | Errno::BUSY | Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::NOMEM
        )
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> Self {
        Self { errno, why: None }
    }
}

impl From<Error> for FsError {
    fn from(error: Error) -> Self {
        let errno = if error.kind() == ErrorKind::Memory { Errno::NOMEM } else { Errno::IO };
        Self { errno, why: Some(error.to_string()) }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Some(why) => f.write_str(why),
            None => self.errno.fmt(f),
        }
    }
}
