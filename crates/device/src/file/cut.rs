//! A file that another program makes shorter, or removes, while it is open.
//!
//! The kernel tells no one: a write beyond the new end makes the file longer again, with a hole of
//! zeros before it, and a flush succeeds without the bytes that are gone. So each flush and each
//! durable write compares the file's size with the one that the device relies on. Other changes
//! compare it once a tick of the kernel's coarse clock, and always where they reach the end: only
//! those could give the file its old size back.
//!
//! A file that was removed ends with this program, and one that was replaced is not the file any
//! more that its name leads to: a flush that succeeds would promise bytes that no program finds. A
//! file that had no name at the opening is a temporary one; one that was moved is still there.
//!
//! Once a file was too short, or has lost its name, all flushes and changes fail until the device
//! is opened again, or the volume takes the new size over ([`need`](crate::Device::need), an
//! operator's `resize`).

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use underseal_named_file::{FileName, NameState};

use super::Shared;
use crate::Error;
use crate::losses::unflushed;

/// The size that a device relies on.
pub(super) struct KnownSize {
    /// The size at the opening, or of the last refresh: what the device's geometry says.
    size: AtomicU64,
    /// Where the bytes end that are in use. The file may be shortened to here.
    needed: AtomicU64,
    /// The time of the last look at the file, in nanoseconds.
    looked: AtomicI64,
    is_cut: AtomicBool,
    /// The file's name at the opening.
    name: FileName,
}

/// A fault of a file.
pub(super) enum FileFault {
    /// The size in bytes, and that of the bytes in use.
    Short(u64, u64),
    /// Removed, or another file has its name.
    Lost,
}

impl KnownSize {
    pub(super) fn new(size: u64, file: &File) -> Self {
        let (looked, is_cut) = Default::default();
        Self { size: size.into(), needed: size.into(), looked, is_cut, name: FileName::of_opened(file) }
    }

    pub(super) fn get(&self) -> u64 {
        self.size.load(SeqCst)
    }

    /// Notes another size. The bytes that are in use stay the same.
    pub(super) fn set(&self, size: u64) {
        self.size.store(size, SeqCst);
    }

    /// Relies on the bytes before `end` from now on.
    pub(super) fn need(&self, end: u64) {
        self.needed.store(end, SeqCst);
        self.is_cut.store(false, SeqCst);
    }

    /// True at the first call in a tick of the clock.
    fn is_due(&self) -> bool {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let now = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
        self.looked.load(SeqCst) != now && self.looked.swap(now, SeqCst) != now
    }

    /// Returns the fault of a file, at the first look that finds it; then and later the file counts
    /// as cut.
    pub(super) fn look(&self, file: &File) -> Option<FileFault> {
        // A file that cannot be looked at is no evidence.
        let of = file.metadata().ok()?;
        let size = if of.is_file() { of.len() } else { super::size(file).ok()? };
        let needed = self.needed.load(SeqCst);
        let fault = match () {
            () if size < needed => FileFault::Short(size, needed),
            () if self.name.state(file).ok()? != NameState::Kept => FileFault::Lost,
            () => return None,
        };
        (!self.is_cut.swap(true, SeqCst)).then_some(fault)
    }
}

impl Shared {
    /// Fails with `EIO` once another program has made the file shorter, removed or replaced it.
    pub(super) fn miss_end(&self) -> Result<(), Errno> {
        let own = self.size.look(&self.file).map(|fault| (fault, &self.name));
        let fault = own.or_else(|| {
            let below = self.below.as_ref()?;
            let fault = below.look()?;
            self.size.is_cut.store(true, SeqCst);
            Some((fault, &below.name))
        });
        match fault {
            Some((FileFault::Short(found, needed), name)) => log::error!(
                "{name}: another program has made it shorter: it has {found} bytes, and {needed} are in use; what clients \
                 wrote beyond is lost; nothing is written any more until the volume is opened again, or `resize` takes the new size"
            ),
            Some((FileFault::Lost, name)) => log::error!(
                "{name}: another program has removed it, or put another file in its place: nothing that clients write would be found \
                 there; nothing is written any more"
            ),
            None => {}
        }
        if self.is_cut() { Err(Errno::IO) } else { Ok(()) }
    }

    /// True once the file was found to be too short, removed or replaced.
    pub(super) fn is_cut(&self) -> bool {
        self.size.is_cut.load(SeqCst)
    }

    /// The error of a change or flush, with what another program has done to the file.
    pub(super) fn explained(&self, error: Error) -> Error {
        let name = &self.name;
        let what = match () {
            () if self.is_taken_over() => {
                format!(
                    "has put other data in the place of {name}'s header, changed its UUID, or replaced its file"
                )
            }
            () if self.is_cut() => format!("has made {name} shorter, or removed or replaced it"),
            () => return error,
        };
        Error::new(error.kind(), format!("{error}: another program {what}")).with_source(Errno::IO)
    }

    /// Fails with `EIO` where nothing may be changed any more: another program has taken the data
    /// over, or made the file shorter, removed or replaced it. `end` is where the change ends.
    pub(super) fn may_change_to(&self, end: u64) -> Result<(), Errno> {
        if self.is_taken_over() {
            return Err(Errno::IO);
        }
        let reaches_end = end >= self.size.needed.load(SeqCst);
        if self.is_cut() || reaches_end || self.size.is_due() { self.miss_end() } else { Ok(()) }
    }

    /// As [`Shared::may_change_to`], with what another program has done in the error.
    pub(super) fn allow_change_to(&self, end: u64) -> crate::Result<()> {
        self.may_change_to(end).map_err(|errno| self.explained(unflushed(errno)))
    }

    /// Checks whether acknowledged writes may be lost. A loss that is found makes flushes fail.
    pub(super) fn check(&self) -> crate::Result<()> {
        let is_whole = self.note_write_back_errors();
        let checked = self.losses.check().and_then(|()| is_whole.map_err(unflushed));
        checked.map_err(|e| self.explained(e))
    }

    /// Whether the file still has what it had: its length, and the [expected](super::expected)
    /// bytes.
    pub(super) fn is_whole(&self) -> Result<(), Errno> {
        self.miss_end()?;
        self.miss_expected()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Blocking, Device, FileDevice, OpenOptions};

    const SIZE: u64 = 1 << 20;

    fn image_in(folder: &Path) -> (tempfile::NamedTempFile, FileDevice) {
        let image = tempfile::NamedTempFile::new_in(folder).unwrap();
        image.as_file().set_len(SIZE).unwrap();
        let device = FileDevice::open(image.path(), OpenOptions::default()).unwrap();
        (image, device)
    }

    /// A folder on a disk, and one in memory.
    fn folders() -> [std::path::PathBuf; 2] {
        [std::env::temp_dir(), "/dev/shm".into()]
    }

    #[test]
    fn a_file_that_is_made_shorter_fails_every_flush_and_change() {
        for folder in folders() {
            let (image, device) = image_in(&folder);
            let mut channel = Blocking::new(&device).unwrap();
            channel.write(SIZE - 4096, &[1; 4096], false).unwrap();
            channel.flush().unwrap();
            image.as_file().set_len(SIZE / 2).unwrap();
            // The write that would give the file its size back.
            channel.write(SIZE - 4096, &[2; 4096], false).unwrap_err();
            let error = channel.flush().unwrap_err();
            assert!(error.to_string().contains("has made"), "{error}");
            for durable in [true, false] {
                channel.write(0, &[3; 4096], durable).unwrap_err();
            }
            Blocking::new(&device).unwrap().flush().unwrap_err();
            assert!(device.check().is_err());
            assert_eq!(image.as_file().metadata().unwrap().len(), SIZE / 2, "it does not grow");
            // The bytes there are zeros now.
            image.as_file().set_len(SIZE).unwrap();
            channel.flush().unwrap_err();
            device.refresh().unwrap();
            channel.flush().unwrap_err();
            // The volume takes the size over.
            device.need(SIZE);
            channel.write(0, &[4; 4096], true).unwrap();
            channel.flush().unwrap();
        }
    }

    #[test]
    fn a_write_beyond_the_new_end_is_refused_within_a_tick() {
        for folder in folders() {
            let (image, device) = image_in(&folder);
            let mut channel = Blocking::new(&device).unwrap();
            channel.write(0, &[1; 4096], false).unwrap();
            image.as_file().set_len(SIZE / 2).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(50));
            channel.write(SIZE / 2 + 8192, &[1; 4096], false).unwrap_err();
            assert_eq!(image.as_file().metadata().unwrap().len(), SIZE / 2);
        }
    }

    #[test]
    fn bytes_that_are_needed_no_more_may_go() {
        let (image, device) = image_in(&std::env::temp_dir());
        let mut channel = Blocking::new(&device).unwrap();
        device.need(SIZE / 2);
        image.as_file().set_len(SIZE / 2).unwrap();
        channel.write(SIZE / 2 - 4096, &[1; 4096], true).unwrap();
        channel.flush().unwrap();
        image.as_file().set_len(SIZE / 2 - 1).unwrap();
        channel.flush().unwrap_err();
    }
}
