//! The bytes that an image begins with as long as its data are where they were.
//!
//! `cryptsetup reencrypt --decrypt` copies data over the header, and takes the lock that would keep
//! it from an open image only afterwards. What clients write from then on is not in that copy. So
//! each flush looks whether the header is there still. No lock could do instead: cryptsetup takes
//! none before the copy that would not also keep keyslots from being added.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{FileAccess, FileDevice, Shared};
use crate::Result;

/// How long a flush waits for the header's lock, where the first bytes are not there.
const LOCKED: Duration = Duration::from_secs(2);

/// Bytes at byte 0.
pub(super) struct Expected {
    /// Through the page cache, where any few bytes can be read.
    file: File,
    bytes: &'static [u8],
    what: &'static str,
}

impl FileDevice {
    /// Makes every flush fail once the image does not begin with these bytes any more; `what` they
    /// are is logged then. Nothing is expected of an image that does not begin with them now.
    ///
    /// # Errors
    /// `Open` when the file cannot be opened once more.
    pub fn expect_at_start(&self, bytes: &'static [u8], what: &'static str) -> Result<()> {
        let expected = Expected { file: self.open_again(FileAccess::Cached)?, bytes, what };
        if expected.is_there().is_ok_and(|is_there| is_there) {
            // The first one counts.
            let _ = self.shared.expected.set(expected);
        }
        Ok(())
    }
}

impl Expected {
    fn is_there(&self) -> std::io::Result<bool> {
        let mut bytes = vec![0; self.bytes.len()];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes == self.bytes)
    }

    /// Whether the bytes are gone for good: a header that is written anew has no first bytes for a
    /// moment, under its lock (flock). So they are looked at under that lock too. A lock that is not
    /// had in time is no evidence.
    fn is_gone(&self) -> std::io::Result<bool> {
        if self.is_there()? {
            return Ok(false);
        }
        let until = Instant::now() + LOCKED;
        while let Err(e) = flock(&self.file, FlockOperation::NonBlockingLockShared) {
            if e != Errno::WOULDBLOCK || Instant::now() > until {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(10));
        }
        let is_there = self.is_there();
        flock(&self.file, FlockOperation::Unlock)?;
        Ok(!is_there?)
    }
}

impl Shared {
    /// Makes every flush fail from now on if what is expected was overwritten. Bytes that cannot be
    /// read are no evidence.
    pub(super) fn miss_expected(&self) {
        if let Some(expected) = self.expected.get()
            && expected.is_gone().is_ok_and(|is_gone| is_gone)
            && self.losses.check().is_ok()
        {
            log::error!(
                "{}: {} is gone from byte 0: another program has taken the data over, and what clients wrote since may be \
                 missing there; see \"An open volume\" in docs/reencryption.md",
                self.name,
                expected.what
            );
            self.losses.fail(Errno::IO);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::{Blocking, OpenOptions};

    #[test]
    fn every_flush_fails_once_the_expected_bytes_are_gone() {
        let mut image = tempfile::NamedTempFile::new().unwrap();
        image.write_all(&[7; 8192]).unwrap();
        let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
        let flushes = || Blocking::new(&device).unwrap().flush().is_ok();
        // Nothing is expected that is not there.
        device.expect_at_start(b"no such bytes", "nothing").unwrap();
        device.expect_at_start(&[7; 6], "the start").unwrap();
        assert!(flushes());
        image.as_file().write_all_at(&[8; 100], 6).unwrap();
        assert!(flushes(), "the bytes behind may change");
        image.as_file().write_all_at(&[8], 5).unwrap();
        assert!(!flushes());
        image.as_file().write_all_at(&[7], 5).unwrap();
        assert!(!flushes(), "until the device is opened again");
        assert!(device.check().is_err());
    }
}
