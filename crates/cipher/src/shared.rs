//! Memory that another process reads and writes meanwhile: a virtual machine's.
//!
//! No reference points to this memory, since Rust assumes that referenced bytes do not change. Two
//! types represent it, with the few operations that a cipher needs: bytes are copied once, or
//! vector code reads or writes each block with one instruction. Changes by the other process affect
//! its own data only: one value of each byte is read, and that value is encrypted.
//!
//! ```text
//!   seal_from  SharedSource --> data        plaintext is read in place, ciphertext is private
//!   open_to    data --> SharedDestination   ciphertext is private, plaintext goes to its place
//! ```
//!
//! `data` is a `&mut [u8]`, which no shared memory overlaps by the contract of
//! [`SharedSource::new`].
//!
//! - XTS of AES on vector code: each block goes from its place to its destination. A block is read
//!   once, and nothing is read back. CBC of AES decrypts likewise; its encryption copies first,
//!   since lanes without a sector read the last one again.
//! - `cipher_null`: one copy.
//! - Adiantum, HCTR2: a copy. A sector is read twice, and if the hash and the cipher read different
//!   bytes, the ciphertext would reveal the difference.
//! - Ciphertext stealing, LMK, TCW, Elephant, cascades: a copy. Later steps read the output of
//!   earlier ones.
//! - Modes with tags: a copy. The tag must be of the bytes that are written, and a sector that
//!   fails its check must not be seen.
//! - Block ciphers of libraries, and other vector code: a copy. Their interface takes references.

use std::marker::PhantomData;

/// Bytes to be read, which another process may change at any moment.
#[derive(Debug, Clone, Copy)]
pub struct SharedSource<'m> {
    at: *const u8,
    len: usize,
    memory: PhantomData<&'m ()>,
}

/// Bytes to be written, which another process may read and change at any moment.
#[derive(Debug, Clone, Copy)]
pub struct SharedDestination<'m> {
    at: *mut u8,
    len: usize,
    memory: PhantomData<&'m ()>,
}

// SAFETY: the memory is shared in any case; each access is independent.
unsafe impl Send for SharedSource<'_> {}
// SAFETY: as above.
unsafe impl Send for SharedDestination<'_> {}

impl<'m> SharedSource<'m> {
    /// The `len` bytes at `at`.
    ///
    /// # Safety
    /// The bytes are mapped and readable for `'m`, and no reference of this process points to them
    /// in that time.
    pub unsafe fn new(at: *const u8, len: usize) -> Self {
        Self { at, len, memory: PhantomData }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Splits the bytes behind the first `mid`.
    ///
    /// # Panics
    /// When there are fewer than `mid` bytes.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "{mid} bytes of {}", self.len);
        // SAFETY: `mid` is within the bytes, or their end.
        let rest = unsafe { self.at.add(mid) };
        (Self { len: mid, ..self }, Self { at: rest, len: self.len - mid, ..self })
    }

    /// Copies the bytes, once.
    ///
    /// # Panics
    /// When `bytes` has another length.
    pub fn copy_to(self, bytes: &mut [u8]) {
        assert_eq!(self.len, bytes.len(), "a copy of another length");
        // SAFETY: as many bytes are readable there, and no reference points to them, so `bytes`
        // does not overlap them.
        unsafe { self.at.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
    }

    /// The address of the bytes.
    pub(crate) fn as_ptr(self) -> *const u8 {
        self.at
    }
}

impl<'m> SharedDestination<'m> {
    /// The `len` bytes at `at`.
    ///
    /// # Safety
    /// As [`SharedSource::new`], and the bytes are writable.
    pub unsafe fn new(at: *mut u8, len: usize) -> Self {
        Self { at, len, memory: PhantomData }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Splits the bytes behind the first `mid`.
    ///
    /// # Panics
    /// When there are fewer than `mid` bytes.
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        assert!(mid <= self.len, "{mid} bytes of {}", self.len);
        // SAFETY: `mid` is within the bytes, or their end.
        let rest = unsafe { self.at.add(mid) };
        (Self { len: mid, ..self }, Self { at: rest, len: self.len - mid, ..self })
    }

    /// Overwrites the bytes.
    ///
    /// # Panics
    /// When `bytes` has another length.
    pub fn copy_from(self, bytes: &[u8]) {
        assert_eq!(self.len, bytes.len(), "a copy of another length");
        // SAFETY: as many bytes are writable there, and no reference points to them, so `bytes`
        // does not overlap them.
        unsafe { self.at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// The address of the bytes.
    pub(crate) fn as_mut_ptr(self) -> *mut u8 {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_from_where_they_are_split() {
        let mut memory = *b"0123456789";
        let at = memory.as_mut_ptr();
        // SAFETY: the array outlives the values, and is not used meanwhile.
        let (from, to) = unsafe { (SharedSource::new(at, 10), SharedDestination::new(at, 10)) };
        let mut bytes = [0; 4];
        from.split_at(3).1.split_at(4).0.copy_to(&mut bytes);
        assert_eq!(&bytes, b"3456");
        to.split_at(8).1.copy_from(b"xy");
        assert!(from.split_at(10).1.is_empty());
        assert_eq!(&memory, b"01234567xy");
    }

    #[test]
    #[should_panic(expected = "11 bytes of 10")]
    fn a_split_beyond_the_end_panics() {
        let memory = [0; 10];
        // SAFETY: the array outlives the value, and is not used meanwhile.
        let _ = unsafe { SharedSource::new(memory.as_ptr(), 10) }.split_at(11);
    }
}
