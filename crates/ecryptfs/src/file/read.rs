//! Reading: one lower read and one crypto call for a whole request, decrypted where it is answered from.

use std::ops::Range;
use std::os::fd::AsFd;

use super::open::{Sealed, State, read_most};
use super::{EXTENT_BYTES, Failure, OpenFile, around, to_usize};
use crate::EXTENT;

impl OpenFile {
    /// Reads into `scratch`, which has room for the request and two extents more, and says where in it the data are:
    /// fewer at the file's end.
    ///
    /// # Errors
    /// What the lower file says; `EIO` for an extent that is missing, unless the mount is not strict.
    pub(crate) fn read(&self, offset: u64, len: usize, scratch: &mut [u8]) -> Result<Range<usize>, Failure> {
        let fd = self.as_fd();
        match &*self.reading() {
            State::Unborn => Ok(0..0),
            State::Plain => Ok(0..read_most(fd, &mut scratch[..len], offset)?),
            State::Sealed(sealed) => {
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
            State::Shown { header, .. } => {
                let shown = header.get(to_usize(offset.min(header.len() as u64))..).unwrap_or(&[]);
                let shown = &shown[..shown.len().min(len)];
                scratch[..shown.len()].copy_from_slice(shown);
                let at = (offset + shown.len() as u64).saturating_sub(header.len() as u64);
                let below = read_most(fd, &mut scratch[shown.len()..len], at)?;
                Ok(0..shown.len() + below)
            }
        }
    }

    /// Reads and decrypts whole extents. All of them lie in the file.
    pub(super) fn read_extents(&self, sealed: &Sealed, first: u64, run: &mut [u8]) -> Result<(), Failure> {
        let got = read_most(self.as_fd(), run, sealed.place_of(first)?)?;
        let whole = got / EXTENT * EXTENT;
        let strict = self.view().sealing.as_ref().is_some_and(|sealing| sealing.strict);
        // Cipher text is never all zeros: there is nothing there (a hole, or blocks that a power cut left unwritten).
        let missing = |run: &[u8]| run.chunks_exact(EXTENT).position(is_zero);
        if strict {
            if whole < run.len() {
                let extent = first + (whole / EXTENT) as u64;
                return Err(Failure::unreadable(format!("the file is cut off at extent {extent}")));
            }
            if let Some(n) = missing(run) {
                return Err(Failure::unreadable(format!("extent {} is missing", first + n as u64)));
            }
            self.decrypt(sealed, first, run);
            return Ok(());
        }
        run[whole..].fill(0);
        let gaps = missing(run).is_some();
        if !gaps {
            self.decrypt(sealed, first, run);
            return Ok(());
        }
        for (n, extent) in (first..).zip(run.chunks_exact_mut(EXTENT)) {
            if !is_zero(extent) {
                sealed.contents.decrypt(n, extent);
            }
        }
        Ok(())
    }
}

fn is_zero(extent: &[u8]) -> bool {
    // One look is enough for nearly every extent.
    extent[..8] == [0; 8] && extent.iter().all(|&b| b == 0)
}
