//! A file's plain bytes, from start to end.

use std::io::{self, Read};
use std::os::fd::AsFd;

use super::lower::LowerFile;
use crate::file::extents;
use crate::{Contents, EXTENT, Error, FileKey, Result};

/// Reads a lower file's plain bytes through one buffer.
pub struct PlainReader<'l> {
    lower: &'l LowerFile,
    contents: Contents,
    strict: bool,
    /// Plain bytes, and how many of them were returned.
    buffer: Vec<u8>,
    given: usize,
    /// The next extent to read, and the plain bytes from there on.
    extent: u64,
    left: u64,
}

/// The number of bytes that are read and decrypted at once, in whole extents.
const BUFFER: usize = 1 << 20;

impl<'l> PlainReader<'l> {
    /// Returns a reader of a file. Unless `strict`, missing extents are zeros, as in a mount.
    ///
    /// # Errors
    /// `Cut`; `Memory`.
    pub fn new(lower: &'l LowerFile, key: &FileKey, strict: bool) -> Result<Self> {
        if strict {
            lower.check_len()?;
        }
        let (contents, left) = (key.contents()?, lower.header.size());
        Ok(Self { lower, contents, strict, buffer: Vec::new(), given: 0, extent: 0, left })
    }

    /// Returns the next plain bytes; an empty slice at the end.
    ///
    /// # Errors
    /// When the lower file cannot be read, was cut meanwhile, or lacks an extent.
    pub fn next_bytes(&mut self) -> Result<&[u8]> {
        self.given = 0;
        let plain = usize::try_from(self.left).map_or(BUFFER, |left| left.min(BUFFER));
        self.buffer.resize(plain.next_multiple_of(EXTENT), 0);
        let at = self.lower.header.data_offset() + self.extent * EXTENT as u64;
        let decrypt = |first, run: &mut [u8]| self.contents.decrypt(first, run);
        let (fd, first) = (self.lower.file.as_fd(), self.extent);
        if let Err(unread) = extents::read(fd, at, first, &mut self.buffer, self.strict, decrypt) {
            // A part of the buffer may still be encrypted.
            self.buffer.clear();
            return Err(Error::from(unread).in_file(&self.lower.path));
        }
        self.extent += (self.buffer.len() / EXTENT) as u64;
        self.left -= plain as u64;
        self.buffer.truncate(plain);
        Ok(&self.buffer)
    }
}

impl Read for PlainReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.buffer.len() {
            self.next_bytes().map_err(io::Error::other)?;
        }
        let count = out.len().min(self.buffer.len() - self.given);
        out[..count].copy_from_slice(&self.buffer[self.given..][..count]);
        self.given += count;
        Ok(count)
    }
}
