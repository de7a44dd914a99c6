//! Bytes that an image has while its data is in place.
//!
//! `cryptsetup reencrypt --decrypt` copies data over the header, and takes the lock that would
//! exclude an open image only afterwards. That copy lacks all writes of clients from then on. So
//! each flush and each durable write checks that the header is still there; once it is gone, all
//! flushes and changes fail. No lock can replace this: all locks that cryptsetup takes before the
//! copy would also prevent adding keyslots.
//!
//! That lock has the UUID in its name: after `cryptsetup luksUUID` it is found no more, and another
//! program may reencrypt the volume as a closed one. So the UUID counts as a part of the header,
//! and a header that is detached is checked, too. Where another file has taken the name of a
//! detached header, other programs read and change that one, and nothing is known of it any more. A
//! header that was only removed is taken for one that was fetched for the opening.
//!
//! A header has two copies, and an update leaves one of them alone, so one copy is enough. Only a
//! program that writes a whole header, as `header restore` does, wipes both for a moment, under the
//! header's lock.

use std::fs::File;
use std::io::{self, ErrorKind as IoKind};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use underseal_named_file::{NameState, NamedFile, backing_file};

use super::{FileAccess, FileDevice, Shared};
use crate::{Arena, Buffer, Error, ErrorKind, LoopFile, Result};

/// The time for which a flush waits for a header that another program writes.
const LOCKED: Duration = Duration::from_secs(2);

/// The time for which a missing header is looked for without a lock: of two copies that are written
/// one after the other, each may have been missing at its turn.
const UNLOCKED: Duration = Duration::from_millis(100);

/// The length of a direct read.
const BLOCK: usize = 4096;

/// Runs of bytes, with their offsets. A run does not cross a block of 4096 bytes.
pub type Runs = Vec<(u64, Vec<u8>)>;

/// Bytes of which at least one copy is on the image.
pub struct ExpectedBytes {
    /// The runs of each copy: one copy of which all runs match is enough.
    pub copies: Vec<Runs>,
    /// The open file with the bytes, where it is not the image.
    pub elsewhere: Option<NamedFile>,
    /// The name of the checked structure, for the log.
    pub what: &'static str,
    /// Whether another program holds the lock for writing these bytes.
    pub is_locked: fn(&File) -> bool,
}

impl ExpectedBytes {
    /// The copies of a LUKS header, which may lie in another file than the data.
    pub fn of_header(copies: [Runs; 2], elsewhere: Option<NamedFile>, is_locked: fn(&File) -> bool) -> Self {
        Self { copies: copies.into(), elsewhere, what: "its LUKS header", is_locked }
    }
}

pub(super) struct Expected {
    /// The file with the bytes: of a loop device, or a partition of one, the file at the bottom,
    /// since the device's page cache does not show writes to that file.
    file: File,
    /// The byte of the file where the device begins.
    start: u64,
    /// The device, whose lock other programs take, where the file is another one.
    upper: Option<File>,
    /// Memory for direct reads of a block device below a loop device, and of a loop device whose
    /// file cannot be opened. `None`: reads through the page cache, which can have any length.
    direct: Option<Mutex<Buffer>>,
    bytes: ExpectedBytes,
    /// The bytes were found once. A header may be repaired after the opening.
    seen: AtomicBool,
    gone: AtomicBool,
    /// The file of a detached header was found to be removed: its name is another file's to take.
    is_removed: AtomicBool,
}

/// The result of a check.
enum Evidence {
    There,
    Gone,
    /// The bytes are missing, and another program that holds the header's lock may be writing them.
    Unknown,
}

impl FileDevice {
    /// Makes every flush and every change fail once the image has none of these bytes any more, if
    /// it had any.
    ///
    /// # Errors
    /// `Open` when the file cannot be opened once more; `Memory` when the system has none.
    pub fn expect(&self, bytes: ExpectedBytes) -> Result<()> {
        if self.shared.expected.get().is_none() {
            let on = bytes.elsewhere.as_ref().map_or(&self.shared.file, NamedFile::file);
            let (is_loop, bottom) = bottom_of(on);
            let (file, start, upper) = match bottom {
                Some((file, start)) => (file, start, Some(self.open_again_as(on, FileAccess::Cached)?)),
                None if is_loop => (self.open_again_as(on, FileAccess::Direct)?, 0, None),
                None => (self.open_again_as(on, FileAccess::Cached)?, 0, None),
            };
            let direct = if is_loop && is_disk(&file) { Some(Mutex::new(memory()?)) } else { None };
            let (seen, gone, is_removed) = Default::default();
            let expected = Expected { file, start, upper, direct, bytes, seen, gone, is_removed };
            let _ = self.shared.expected.set(expected);
        }
        // The bytes of the first call are in force.
        self.shared.expected.get().map(Expected::are_there);
        Ok(())
    }
}

/// Returns whether an open file is a loop device or a partition of one, and the file at its bottom
/// with the byte where the device begins.
fn bottom_of(on: &File) -> (bool, Option<(File, u64)>) {
    let device = on.metadata().ok().filter(|of| of.file_type().is_block_device()).map(|of| of.rdev());
    let is_loop = device.is_some_and(|device| backing_file(device).is_some());
    let below = if is_loop { LoopFile::of(on) } else { None };
    let bottom = below.and_then(|below| {
        let (file, start) = below.open_to_read(0)?;
        // The page cache of a block device does not show writes to a file below it.
        if is_disk(&file) { below.open_to_read(libc::O_DIRECT) } else { Some((file, start)) }
    });
    (is_loop, bottom)
}

fn is_disk(file: &File) -> bool {
    file.metadata().is_ok_and(|of| of.file_type().is_block_device())
}

/// Memory for direct reads.
fn memory() -> Result<Buffer> {
    let none = || Error::new(ErrorKind::Memory, "no memory for a look at the header");
    Arena::new(BLOCK)?.alloc(BLOCK).ok_or_else(none)
}

impl Expected {
    /// Whether one of the copies is there. Fails where none is found, and some cannot be read. A
    /// file that ends before them has none.
    fn are_there(&self) -> io::Result<bool> {
        let mut failed = None;
        for copy in &self.bytes.copies {
            match self.is_there(copy) {
                Ok(true) => {
                    self.seen.store(true, SeqCst);
                    return Ok(true);
                }
                Ok(false) => {}
                Err(e) if e.kind() == IoKind::UnexpectedEof => {}
                Err(e) => failed = Some(e),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    fn is_there(&self, copy: &Runs) -> io::Result<bool> {
        for (place, bytes) in copy {
            if self.read(*place, bytes.len())? != *bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(&self, place: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut found = vec![0; len];
        let place = self.start.checked_add(place).ok_or(IoKind::InvalidInput)?;
        let Some(memory) = &self.direct else {
            self.file.read_exact_at(&mut found, place)?;
            return Ok(found);
        };
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let block = place / BLOCK as u64 * BLOCK as u64;
        self.file.read_exact_at(&mut memory[..BLOCK], block)?;
        let at = usize::try_from(place - block).map_err(io::Error::other)?;
        let bytes = memory.get(at..at + len).ok_or(IoKind::InvalidInput)?;
        found.copy_from_slice(bytes);
        Ok(found)
    }

    /// Whether another program holds the header's lock, by the device or by the file below.
    fn is_locked(&self) -> bool {
        [Some(&self.file), self.upper.as_ref()].into_iter().flatten().any(self.bytes.is_locked)
    }

    /// Whether another file has the name of a detached header.
    fn is_replaced(&self) -> bool {
        let Some(elsewhere) = &self.bytes.elsewhere else { return false };
        if self.is_removed.load(SeqCst) {
            return false;
        }
        // A file that cannot be looked at is no evidence.
        let state = elsewhere.name_state().unwrap_or(NameState::Kept);
        if state == NameState::Removed {
            self.is_removed.store(true, SeqCst);
        }
        state == NameState::Replaced
    }

    /// Checks the bytes, and the name of their file. A failed read is no evidence of their loss.
    fn look(&self) -> io::Result<Evidence> {
        if self.is_replaced() {
            return Ok(Evidence::Gone);
        }
        let begin = Instant::now();
        let mut unlocked = None;
        loop {
            // The lock is checked before the bytes: a writer releases it after writing.
            let is_locked = unlocked.is_some() && self.is_locked();
            if self.are_there()? || !self.seen.load(SeqCst) {
                return Ok(Evidence::There);
            }
            let since = *unlocked.get_or_insert_with(Instant::now);
            if is_locked {
                unlocked = Some(Instant::now());
            } else if since.elapsed() > UNLOCKED {
                return Ok(Evidence::Gone);
            }
            if begin.elapsed() > LOCKED {
                return Ok(Evidence::Unknown);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Shared {
    /// Checks the expected bytes. Once they are overwritten, every flush and change fails with
    /// `EIO`; a check without a clear result fails once.
    pub(super) fn miss_expected(&self) -> std::result::Result<(), Errno> {
        let Some(expected) = self.expected.get() else { return Ok(()) };
        if expected.gone.load(SeqCst) {
            return Err(Errno::IO);
        }
        let what = expected.bytes.what;
        match expected.look() {
            Ok(Evidence::There) | Err(_) => Ok(()),
            Ok(Evidence::Unknown) => {
                log::warn!(
                    "{}: {what} is missing, and another program holds its lock: a flush fails that cannot wait for it",
                    self.name
                );
                Err(Errno::IO)
            }
            Ok(Evidence::Gone) => {
                if !expected.gone.swap(true, SeqCst) {
                    log::error!(
                        "{}: {what} is gone, has another UUID, or another file has its name: another program has taken the data over, or may do so unseen, and \
                         what clients wrote since may be missing there; nothing is written any more. See \"An open volume\" in docs/reencryption.md",
                        self.name
                    );
                    self.losses.fail(Errno::IO);
                }
                Err(Errno::IO)
            }
        }
    }

    /// True when another program has taken the data over, so that no change is allowed.
    pub(super) fn is_taken_over(&self) -> bool {
        self.expected.get().is_some_and(|expected| expected.gone.load(SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use rustix::fs::{FlockOperation, flock};

    use super::*;
    use crate::{Blocking, OpenOptions};

    const SECOND: u64 = 4096;

    fn first_and_second() -> ExpectedBytes {
        let is_locked = |file: &File| flock(file, FlockOperation::NonBlockingLockShared).is_err();
        let copies = vec![vec![(0, vec![7; 6])], vec![(SECOND, vec![9; 6])]];
        ExpectedBytes { copies, elsewhere: None, what: "the start", is_locked }
    }

    /// An image that begins with one of the runs, and its device.
    fn image_in(folder: &Path, first: u8) -> (tempfile::NamedTempFile, FileDevice) {
        let mut image = tempfile::NamedTempFile::new_in(folder).unwrap();
        image.write_all(&[first; 8192]).unwrap();
        let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
        device.expect(first_and_second()).unwrap();
        (image, device)
    }

    #[test]
    fn every_flush_fails_once_the_expected_bytes_are_gone() {
        let (image, device) = image_in(&std::env::temp_dir(), 1);
        let flushes = || Blocking::new(&device).unwrap().flush().is_ok();
        let write = |place, byte: u8| image.as_file().write_all_at(&[byte; 6], place).unwrap();
        // Bytes that were never there are not missed.
        assert!(flushes());
        // The header is repaired later.
        write(0, 7);
        assert!(flushes());
        write(6, 8);
        assert!(flushes(), "the bytes behind may change");
        write(SECOND, 9);
        write(0, 0);
        assert!(flushes(), "one of them is enough");
        write(0, 7);
        write(SECOND, 0);
        assert!(flushes(), "the other one");
        write(5, 8);
        assert!(!flushes());
        write(0, 7);
        assert!(!flushes(), "until the device is opened again");
        assert!(device.check().is_err());
    }

    #[test]
    fn a_copy_is_there_with_all_of_its_runs_also_in_another_file() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8192).unwrap();
        let mut header = tempfile::NamedTempFile::new().unwrap();
        header.write_all(&[7; 8192]).unwrap();
        let write = |place, byte: u8| header.as_file().write_all_at(&[byte; 6], place).unwrap();
        let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
        let copies = [0, SECOND].map(|at| vec![(at, vec![7; 6]), (at + 168, vec![7; 37])]).into();
        let elsewhere = Some(NamedFile::opened(header.reopen().unwrap()));
        device.expect(ExpectedBytes { copies, elsewhere, ..first_and_second() }).unwrap();
        let mut channel = Blocking::new(&device).unwrap();
        channel.flush().unwrap();
        write(SECOND + 180, 8);
        channel.flush().unwrap();
        write(170, 8);
        channel.flush().unwrap_err();
        channel.write(4096, &[1; 512], false).unwrap_err();
    }

    /// A device over an image whose header is in a file of its own.
    fn device_with(header: &Path) -> (tempfile::NamedTempFile, FileDevice) {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8192).unwrap();
        std::fs::write(header, [7; 8192]).unwrap();
        let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
        let elsewhere = Some(NamedFile::opened(File::open(header).unwrap()));
        device.expect(ExpectedBytes { elsewhere, ..first_and_second() }).unwrap();
        Blocking::new(&device).unwrap().flush().unwrap();
        (image, device)
    }

    #[test]
    fn a_header_whose_name_another_file_has_is_gone_and_one_that_was_removed_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let [header, other, new] = ["header", "other", "new"].map(|name| folder.path().join(name));
        for links in [false, true] {
            let (_image, device) = device_with(&header);
            let mut channel = Blocking::new(&device).unwrap();
            if links {
                let _ = std::fs::remove_file(&other);
                std::fs::hard_link(&header, &other).unwrap();
            }
            std::fs::copy(&header, &new).unwrap();
            std::fs::rename(&new, &header).unwrap();
            let error = channel.flush().unwrap_err();
            assert!(error.to_string().contains("replaced"), "{error}");
            channel.write(4096, &[1; 512], false).unwrap_err();
        }
        // A header that was fetched for the opening, and its name, which another one has later.
        let (_image, device) = device_with(&header);
        let mut channel = Blocking::new(&device).unwrap();
        std::fs::rename(&header, &other).unwrap();
        channel.flush().unwrap();
        std::fs::remove_file(&other).unwrap();
        channel.flush().unwrap();
        std::fs::write(&header, [8; 8192]).unwrap();
        channel.flush().unwrap();
        channel.write(4096, &[1; 512], true).unwrap();
    }

    #[test]
    fn an_image_that_is_cut_short_has_no_bytes() {
        let (image, device) = image_in(&std::env::temp_dir(), 7);
        Blocking::new(&device).unwrap().flush().unwrap();
        image.as_file().set_len(4).unwrap();
        Blocking::new(&device).unwrap().flush().unwrap_err();
    }

    /// As an update of a header does it: each copy is wiped and written, one after the other.
    #[test]
    fn copies_that_are_written_one_after_the_other_are_not_missed() {
        let (image, device) = image_in(&std::env::temp_dir(), 7);
        let mut channel = Blocking::new(&device).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    for (place, byte) in [(SECOND, 9), (0, 7)] {
                        for byte in [0, byte] {
                            image.as_file().write_all_at(&[byte; 6], place).unwrap();
                        }
                    }
                }
            });
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end {
                channel.flush().unwrap();
            }
            is_over.store(true, SeqCst);
        });
    }

    #[test]
    fn nothing_is_changed_once_the_expected_bytes_are_gone() {
        // A folder on a disk, and one in memory.
        for folder in [std::env::temp_dir(), "/dev/shm".into()] {
            let (image, device) = image_in(&folder, 7);
            let mut channel = Blocking::new(&device).unwrap();
            channel.write(4096, &[1; 512], true).unwrap();
            image.as_file().write_all_at(&[8], 5).unwrap();
            // A durable write notices the loss.
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
        let (image, device) = image_in(&std::env::temp_dir(), 7);
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

    #[test]
    fn a_flush_waits_for_a_header_that_is_written_under_its_lock() {
        let (image, device) = image_in(&std::env::temp_dir(), 7);
        let mut channel = Blocking::new(&device).unwrap();
        let other = File::open(image.path()).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        image.as_file().write_all_at(&[0; 6], 0).unwrap();
        let writer = thread::spawn(move || {
            thread::sleep(5 * UNLOCKED);
            image.as_file().write_all_at(&[7; 6], 0).unwrap();
            drop(other);
        });
        channel.flush().unwrap();
        writer.join().unwrap();
    }
}
