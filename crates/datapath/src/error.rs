//! The crate's error type: why a request failed.

use rustix::io::Errno;
use underseal_device as device;

/// Why a request or a mapping failed, for a program to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request goes beyond the volume's end.
    OutOfRange,
    /// The request is not aligned to the volume's block, or is empty.
    Misaligned,
    /// The request is longer than a queue can hold.
    TooLarge,
    /// The volume was opened for reading only.
    ReadOnly,
    /// The volume cannot do this, or not faster than by writing.
    Unsupported,
    /// The lower device has no space left.
    NoSpace,
    /// The lower device failed.
    Lower,
    /// The volume does not fit on the lower device.
    Layout,
    /// No policy has this name, or the volume cannot have the policy.
    Policy,
    /// The volume's key is wiped.
    NoKey,
    /// The volume must be suspended for this call.
    NotSuspended,
    /// Requests in flight did not end in time.
    Busy,
    /// A sector does not match its tag.
    Integrity,
    /// A thread that worked on the request failed.
    Worker,
    /// The memory that a client shares is gone.
    Memory,
    /// The client that sent the request is gone.
    Abandoned,
}

underseal_error::error_type! {
    /// An error of the data path.
    pub struct Error(ErrorKind) from device::Error;
}

impl Error {
    pub(crate) fn lower(name: &str, source: device::Error) -> Self {
        let full =
            [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error())).contains(&source.errno());
        // A layer below compares its tags too.
        let mismatch = source.errno() == Some(Errno::ILSEQ.raw_os_error());
        let kind = match () {
            () if full => ErrorKind::NoSpace,
            () if mismatch => ErrorKind::Integrity,
            () => ErrorKind::Lower,
        };
        Self::new(kind, format!("{name} failed")).with_source(source)
    }
}
