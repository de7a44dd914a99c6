//! Reading: one lower read and one crypto call for a whole request, decrypted in the memory of the
//! reply.

use std::ops::Range;
use std::os::fd::AsFd;

use super::open::{EncryptedFile, FileState, read_most};
use super::{EXTENT_BYTES, FsError, OpenFile, around, extents, to_usize};

impl OpenFile {
    /// Reads into `scratch`, which has room for the request and two more extents. Returns the range
    /// of the data in it, which is shorter at the file's end.
    ///
    /// Fails with the lower file's error, and with `EIO` for a missing extent if the mount is
    /// strict.
    pub(crate) fn read(&self, offset: u64, len: usize, scratch: &mut [u8]) -> Result<Range<usize>, FsError> {
        let fd = self.as_fd();
        match &*self.reading() {
            FileState::Unborn => Ok(0..0),
            FileState::Plain => Ok(0..read_most(fd, &mut scratch[..len], offset)?),
            FileState::Sealed(sealed) => {
                let end = offset.saturating_add(len as u64).min(sealed.size());
                if offset >= end {
                    return Ok(0..0);
                }
                let (first, last) = around(offset, end);
                let run = &mut scratch[..to_usize((last - first) * EXTENT_BYTES)];
                self.read_extents(sealed, first, run)?;
                let skip = to_usize(offset % EXTENT_BYTES);
                Ok(skip..skip + to_usize(end - offset))
            }
            FileState::Shown { header, .. } => {
                let shown = header.get(to_usize(offset.min(header.len() as u64))..).unwrap_or(&[]);
                let shown = &shown[..shown.len().min(len)];
                scratch[..shown.len()].copy_from_slice(shown);
                let at = (offset + shown.len() as u64).saturating_sub(header.len() as u64);
                let below = read_most(fd, &mut scratch[shown.len()..len], at)?;
                Ok(0..shown.len() + below)
            }
        }
    }

    /// Reads and decrypts whole extents. All of them are within the file.
    pub(super) fn read_extents(
        &self,
        sealed: &EncryptedFile,
        first: u64,
        run: &mut [u8],
    ) -> Result<(), FsError> {
        let strict = self.view().sealing.as_ref().is_some_and(|sealing| sealing.strict);
        let decrypt = |first, run: &mut [u8]| self.decrypt(sealed, first, run);
        Ok(extents::read(self.as_fd(), sealed.place_of(first)?, first, run, strict, decrypt)?)
    }
}
