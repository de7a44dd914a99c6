//! Random bytes from the kernel.

use underseal_cipher::Key;

use crate::{Error, ErrorKind, Result};

/// Fills `out`.
pub(crate) fn fill(out: &mut [u8]) -> Result<()> {
    getrandom::fill(out)
        .map_err(|e| Error::new(ErrorKind::Io, "the kernel gave no random bytes").with_source(e))
}

/// An array for a salt.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut out = [0; N];
    fill(&mut out)?;
    Ok(out)
}

/// A new volume key, or any other secret of this many bytes.
///
/// # Errors
/// `Memory` when there is none that can be locked; `BadHeader` when that is too long; `Io` when the
/// kernel gives no random bytes.
pub fn key(len: usize) -> Result<Key> {
    let mut key = crate::kdf::new_key(len)?;
    fill(key.as_mut_bytes())?;
    Ok(key)
}
