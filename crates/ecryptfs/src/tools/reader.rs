//! A file's plain bytes, from its start to its end.

use std::io::{self, Read};

use super::lower::{Lower, read_up_to};
use crate::{Contents, EXTENT, FileKey, Result};

/// Reads a lower file's plain bytes through one buffer.
pub struct PlainReader<'l> {
    lower: &'l Lower,
    contents: Contents,
    /// Plain bytes, and how many of them were given.
    buffer: Vec<u8>,
    given: usize,
    /// The next extent to read, and the plain bytes from there on.
    extent: u64,
    left: u64,
}

/// Bytes that are read and decrypted at once, in whole extents.
const BUFFER: usize = 1 << 20;

impl<'l> PlainReader<'l> {
    /// A reader of a file that is as long as it should be.
    ///
    /// # Errors
    /// `Cut`; `Memory`.
    pub fn new(lower: &'l Lower, key: &FileKey) -> Result<Self> {
        lower.check_len()?;
        let contents = key.contents()?;
        Ok(Self { lower, contents, buffer: Vec::new(), given: 0, extent: 0, left: lower.header.size() })
    }

    /// The next plain bytes; none at the end.
    ///
    /// # Errors
    /// When the lower file cannot be read, or was cut meanwhile.
    pub fn next_bytes(&mut self) -> io::Result<&[u8]> {
        self.given = 0;
        let plain = usize::try_from(self.left).map_or(BUFFER, |left| left.min(BUFFER));
        self.buffer.resize(plain.next_multiple_of(EXTENT), 0);
        let at = self.lower.header.data_offset() + self.extent * EXTENT as u64;
        if read_up_to(&self.lower.file, &mut self.buffer, at)? < self.buffer.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.contents.decrypt(self.extent, &mut self.buffer);
        self.extent += (self.buffer.len() / EXTENT) as u64;
        self.left -= plain as u64;
        self.buffer.truncate(plain);
        Ok(&self.buffer)
    }
}

impl Read for PlainReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.buffer.len() {
            self.next_bytes()?;
        }
        let count = out.len().min(self.buffer.len() - self.given);
        out[..count].copy_from_slice(&self.buffer[self.given..][..count]);
        self.given += count;
        Ok(count)
    }
}
