//! Memory for bytes of a volume.

use std::ops::{Deref, DerefMut};

use zeroize::Zeroizing;

use crate::{Error, ErrorKind, Result};

/// The alignment of the bytes. Reads into memory at an odd address take a processor several times
/// as long: three and a half times on an AMD Zen 3, whose `rep movsb` needs an aligned destination.
const PAGE: usize = 4096;

/// Bytes of a volume, aligned to a page and wiped on drop: ciphertext becomes plaintext in place.
#[derive(Default)]
pub(super) struct Bytes {
    memory: Zeroizing<Vec<u8>>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// Makes room for `len` bytes. The old contents stay until they are overwritten.
    ///
    /// Fails with `Memory`.
    pub(super) fn resize(&mut self, len: u64) -> Result<()> {
        let none = || Error::new(ErrorKind::Memory, format!("no memory for {len} bytes of a step"));
        let wanted = usize::try_from(len).map_err(|_| none())?;
        if wanted > self.memory.len() - self.start {
            // Growing in place would leave a copy behind.
            *self = Self::default();
            let all = wanted.checked_add(PAGE).ok_or_else(none)?;
            self.memory.try_reserve_exact(all).map_err(|e| none().with_source(e))?;
            self.memory.resize(all, 0);
            // Only the allocator of constant evaluation cannot tell the offset.
            self.start = self.memory.as_ptr().align_offset(PAGE).min(PAGE);
        }
        self.len = wanted;
        Ok(())
    }

    /// Makes the length zero.
    pub(super) fn clear(&mut self) {
        self.len = 0;
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_begins_at_a_page_whatever_its_length() {
        let mut bytes = Bytes::default();
        for len in [0, 1, 4096, 100, 1 << 20, 0, 3 << 20] {
            bytes.resize(len).unwrap();
            assert_eq!(bytes.len() as u64, len);
            assert!(len == 0 || (bytes.as_ptr() as usize).is_multiple_of(PAGE), "{len}");
        }
        bytes.clear();
        assert!(bytes.is_empty());
        assert_eq!(bytes.resize(u64::MAX).unwrap_err().kind(), ErrorKind::Memory);
    }
}
