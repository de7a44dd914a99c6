//! What went wrong, as the kernel numbers it: every door's answer begins here.

use rustix::io::Errno;
use underseal_datapath::{Error as Failure, ErrorKind as Kind};

/// A failed request's.
pub(crate) fn errno(failure: &Failure) -> Errno {
    match failure.kind() {
        Kind::OutOfRange | Kind::Misaligned | Kind::TooLarge => Errno::INVAL,
        Kind::ReadOnly => Errno::ROFS,
        Kind::Unsupported => Errno::OPNOTSUPP,
        Kind::NoSpace => Errno::NOSPC,
        // As dm-crypt and dm-integrity say that a sector is not as it was written.
        Kind::Integrity => Errno::ILSEQ,
        _ => Errno::IO,
    }
}
