//! Random bytes from the kernel.

use underseal_cipher::Key;

use crate::{Error, ErrorKind, Result};

/// Fills `out` with random bytes.
pub(crate) fn fill(out: &mut [u8]) -> Result<()> {
    getrandom::fill(out)
        .map_err(|e| Error::new(ErrorKind::Io, "the kernel gave no random bytes").with_source(e))
}

/// Returns an array for a salt.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut out = [0; N];
    fill(&mut out)?;
    Ok(out)
}

/// Returns a new volume key, or another secret of this many bytes.
///
/// # Errors
/// `Memory` when no memory can be locked; `BadHeader` when the length is too large; `Io` when the
/// kernel returns no random bytes.
pub fn key(len: usize) -> Result<Key> {
    let mut key = crate::kdf::new_key(len)?;
    fill(key.as_mut_bytes())?;
    Ok(key)
}
