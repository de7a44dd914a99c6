//! The kernel's error number for a failed request, from which every export's reply is made.

use rustix::io::Errno;
use underseal_datapath::{Error as Failure, ErrorKind as Kind};

/// Returns the error number of a failed request.
pub(crate) fn errno(failure: &Failure) -> Errno {
    match failure.kind() {
        Kind::OutOfRange | Kind::Misaligned | Kind::TooLarge => Errno::INVAL,
        Kind::ReadOnly => Errno::ROFS,
        Kind::Unsupported => Errno::OPNOTSUPP,
        Kind::NoSpace => Errno::NOSPC,
        // The error number that dm-crypt and dm-integrity return for a sector with a wrong tag.
        Kind::Integrity => Errno::ILSEQ,
        _ => Errno::IO,
    }
}
