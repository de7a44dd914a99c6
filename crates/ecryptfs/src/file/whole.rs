//! Writes of whole extents: each is the old or the new extent afterwards, also when the lower file
//! takes only a part of the bytes.

use std::os::fd::AsFd;

use rustix::fs::{CWD, readlinkat};
use rustix::io::Errno;

use super::open::{EncryptedFile, write_all, write_most};
use super::{EXTENT_BYTES, FsError, OpenFile, to_usize};
use crate::EXTENT;

/// The plain bytes, before a write, of the extents of which the caller changes a part: the first
/// and the last one.
#[derive(Default)]
pub(super) struct OldExtents([Option<(u64, Box<[u8; EXTENT]>)>; 2]);

impl OldExtents {
    /// Keeps an extent's bytes as [`OpenFile::read_for_patch`] returned them.
    pub(super) fn keep(&mut self, extent: u64, plain: &[u8]) {
        let Ok(plain) = plain.try_into() else { return };
        if let Some(free) = self.0.iter_mut().find(|kept| kept.is_none()) {
            *free = Some((extent, Box::new(plain)));
        }
    }

    fn of(&self, extent: u64) -> Option<&[u8; EXTENT]> {
        self.0.iter().flatten().find(|(kept, _)| *kept == extent).map(|(_, plain)| &**plain)
    }
}

impl OpenFile {
    /// Writes encrypted extents from `first` on. Returns the number of bytes in extents that are
    /// new now, and the error that kept the others old.
    ///
    /// Fails when the place is too large for a lower file.
    pub(super) fn write_extents(
        &self,
        sealed: &EncryptedFile,
        first: u64,
        run: &[u8],
        old: &OldExtents,
    ) -> Result<(usize, Option<Errno>), FsError> {
        let at = sealed.place_of(first)?;
        let end = at + run.len() as u64;
        let room = match self.view().size_limit {
            // The kernel would write a part of an extent.
            limit if limit < end => to_usize(limit.saturating_sub(at) / EXTENT_BYTES * EXTENT_BYTES),
            _ => run.len(),
        };
        let (written, failed) = write_most(self.as_fd(), &run[..room], at);
        let failed = failed.or((room < run.len()).then_some(Errno::FBIG));
        let whole = written / EXTENT * EXTENT;
        if whole < written {
            self.put_back(sealed, first + (whole / EXTENT) as u64, written - whole, old);
        }
        Ok((whole, failed))
    }

    /// Writes encrypted extents from `first` on, or returns an error.
    pub(super) fn write_all_extents(
        &self,
        sealed: &EncryptedFile,
        first: u64,
        run: &[u8],
        old: &OldExtents,
    ) -> Result<(), FsError> {
        match self.write_extents(sealed, first, run, old)? {
            (len, _) if len == run.len() => Ok(()),
            (_, e) => Err(e.unwrap_or(Errno::IO).into()),
        }
    }

    /// Writes the first `len` bytes of an extent as they were before.
    pub(super) fn put_back(&self, sealed: &EncryptedFile, extent: u64, len: usize, old: &OldExtents) {
        if extent >= sealed.size().div_ceil(EXTENT_BYTES) {
            return;
        }
        let restored = match old.of(extent) {
            Some(plain) => {
                let mut run = *plain;
                sealed.contents.encrypt(extent, &mut run);
                let at = sealed.place_of(extent);
                at.and_then(|at| write_all(self.as_fd(), &run[..len], at)).map_err(|e| e.to_string())
            }
            None => Err("all of it was to be replaced".into()),
        };
        if let Err(why) = restored {
            let path = readlinkat(CWD, crate::proc_path(self), Vec::new()).unwrap_or_default();
            log::error!(
                "{}: extent {extent} is damaged: the lower file took {len} of its bytes, and the old ones are \
                 lost: {why}; try: write these {EXTENT} bytes again",
                path.to_string_lossy()
            );
        }
    }
}
