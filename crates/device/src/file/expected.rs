//! The bytes that an image begins with as long as its data are where they were.
//!
//! `cryptsetup reencrypt --decrypt` copies data over the header, and takes the lock that would keep
//! it from an open image only afterwards. What clients write from then on is not in that copy. So
//! each flush and each durable write looks whether the header is there still; once it is not, no
//! flush and no change succeeds any more. No lock could do instead: cryptsetup takes none before
//! the copy that would not also keep keyslots from being added.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{FileAccess, FileDevice, Shared, sysfs};
use crate::{Arena, Buffer, Error, ErrorKind, Result};

/// How long a flush waits for the header's lock, where the first bytes are not there.
const LOCKED: Duration = Duration::from_secs(2);

/// Bytes that one read past the page cache has.
const BLOCK: usize = 4096;

/// Bytes at byte 0.
pub(super) struct Expected {
    file: File,
    /// Memory for reading past the page cache of a loop device, which does not see what is written
    /// to the device's file. Else they are read through the page cache, where any few bytes can be.
    direct: Option<Mutex<Buffer>>,
    bytes: &'static [u8],
    what: &'static str,
    /// The bytes were there once. A header may be made good after the device was opened.
    seen: AtomicBool,
    gone: AtomicBool,
}

/// The outcome of a look at the bytes.
enum Evidence {
    There,
    Gone,
    /// The bytes are not there, and another program that holds the header's lock may be writing them.
    Unknown,
}

impl FileDevice {
    /// Makes every flush and every change fail once the image does not begin with these bytes any
    /// more, where it ever has; `what` they are is logged then.
    ///
    /// # Errors
    /// `Open` when the file cannot be opened once more; `Memory`.
    pub fn expect_at_start(&self, bytes: &'static [u8], what: &'static str) -> Result<()> {
        if self.shared.expected.get().is_none() {
            let is_loop = self.shared.discard_unit.is_some() && sysfs::is_loop(&self.shared.file);
            let access = if is_loop { FileAccess::Direct } else { FileAccess::Cached };
            let direct = if is_loop { Some(Mutex::new(memory()?)) } else { None };
            let (seen, gone) = Default::default();
            let file = self.open_again(access)?;
            let _ = self.shared.expected.set(Expected { file, direct, bytes, what, seen, gone });
        }
        // The first ones count.
        self.shared.expected.get().map(Expected::is_there);
        Ok(())
    }
}

/// Memory that the kernel reads into past the page cache.
fn memory() -> Result<Buffer> {
    let none = || Error::new(ErrorKind::Memory, "no memory for a look at the first bytes");
    Arena::new(BLOCK)?.alloc(BLOCK).ok_or_else(none)
}

impl Expected {
    fn is_there(&self) -> std::io::Result<bool> {
        let len = self.bytes.len();
        let is_there = match &self.direct {
            Some(memory) => {
                let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                self.file.read_exact_at(&mut memory[..BLOCK], 0)?;
                memory.starts_with(self.bytes)
            }
            None => {
                let mut bytes = vec![0; len];
                self.file.read_exact_at(&mut bytes, 0)?;
                bytes == self.bytes
            }
        };
        if is_there {
            self.seen.store(true, SeqCst);
        }
        Ok(is_there)
    }

    /// Bytes that cannot be read are no evidence. A header that is written anew has no first bytes
    /// for a moment, under its lock (flock). So they are looked at under that lock too.
    fn look(&self) -> std::io::Result<Evidence> {
        if self.is_there()? || !self.seen.load(SeqCst) {
            return Ok(Evidence::There);
        }
        let until = Instant::now() + LOCKED;
        while let Err(e) = flock(&self.file, FlockOperation::NonBlockingLockShared) {
            match e {
                Errno::WOULDBLOCK if Instant::now() > until => return Ok(Evidence::Unknown),
                Errno::WOULDBLOCK => thread::sleep(Duration::from_millis(10)),
                // No program holds a lock where there are none.
                _ => break,
            }
        }
        let is_there = self.is_there();
        let _ = flock(&self.file, FlockOperation::Unlock);
        Ok(if is_there? { Evidence::There } else { Evidence::Gone })
    }
}

impl Shared {
    /// Looks whether what is expected is there still. If it was overwritten, every flush and change
    /// fails from now on: `EIO` then, and where it cannot be told now.
    pub(super) fn miss_expected(&self) -> std::result::Result<(), Errno> {
        let Some(expected) = self.expected.get() else { return Ok(()) };
        if expected.gone.load(SeqCst) {
            return Err(Errno::IO);
        }
        match expected.look() {
            Ok(Evidence::There) | Err(_) => Ok(()),
            Ok(Evidence::Unknown) => {
                log::warn!(
                    "{}: {} is not at byte 0, and another program holds its lock (flock): a flush fails that cannot wait \
                     for that",
                    self.name,
                    expected.what
                );
                Err(Errno::IO)
            }
            Ok(Evidence::Gone) => {
                if !expected.gone.swap(true, SeqCst) {
                    log::error!(
                        "{}: {} is gone from byte 0: another program has taken the data over, and what clients wrote since \
                         may be missing there; nothing is written any more. See \"An open volume\" in \
                         docs/reencryption.md",
                        self.name,
                        expected.what
                    );
                    self.losses.fail(Errno::IO);
                }
                Err(Errno::IO)
            }
        }
    }

    /// Whether another program has the data now, so that nothing may be changed.
    pub(super) fn is_taken_over(&self) -> bool {
        self.expected.get().is_some_and(|expected| expected.gone.load(SeqCst))
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
        // Bytes that were never there are not missed.
        device.expect_at_start(&[9; 6], "the start").unwrap();
        assert!(flushes());
        // Made good later.
        image.as_file().write_all_at(&[9; 6], 0).unwrap();
        assert!(flushes());
        image.as_file().write_all_at(&[8; 100], 6).unwrap();
        assert!(flushes(), "the bytes behind may change");
        image.as_file().write_all_at(&[8], 5).unwrap();
        assert!(!flushes());
        image.as_file().write_all_at(&[9], 5).unwrap();
        assert!(!flushes(), "until the device is opened again");
        assert!(device.check().is_err());
    }

    #[test]
    fn nothing_is_changed_once_the_expected_bytes_are_gone() {
        // On a disk, and in memory.
        for folder in [std::env::temp_dir(), "/dev/shm".into()] {
            let mut image = tempfile::NamedTempFile::new_in(folder).unwrap();
            image.write_all(&[7; 8192]).unwrap();
            let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
            device.expect_at_start(&[7; 6], "the start").unwrap();
            let mut channel = Blocking::new(&device).unwrap();
            channel.write(4096, &[1; 512], true).unwrap();
            image.as_file().write_all_at(&[8], 5).unwrap();
            // A durable write notices it.
            channel.write(4096, &[2; 512], true).unwrap_err();
            for durable in [true, false] {
                channel.write(4096, &[3; 512], durable).unwrap_err();
            }
            channel.flush().unwrap_err();
            let mut found = [0; 512];
            image.as_file().read_exact_at(&mut found, 4096).unwrap();
            assert!(found != [3; 512]);
        }
    }

    #[test]
    fn a_flush_fails_alone_while_it_cannot_be_told() {
        let mut image = tempfile::NamedTempFile::new().unwrap();
        image.write_all(&[7; 8192]).unwrap();
        let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
        device.expect_at_start(&[7; 6], "the start").unwrap();
        let mut channel = Blocking::new(&device).unwrap();
        let other = File::open(image.path()).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        image.as_file().write_all_at(&[8], 5).unwrap();
        channel.flush().unwrap_err();
        // The other program has written the header.
        image.as_file().write_all_at(&[7], 5).unwrap();
        channel.flush().unwrap();
        channel.write(4096, &[1; 512], false).unwrap();
    }
}
