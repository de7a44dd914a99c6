//! Random bytes from the kernel.

use crate::{Error, ErrorKind, Result};

/// Fills `out` with random bytes.
pub(crate) fn fill(out: &mut [u8]) -> Result<()> {
    getrandom::fill(out)
        .map_err(|e| Error::new(ErrorKind::Io, "the kernel gave no random bytes").with_source(e))
}
