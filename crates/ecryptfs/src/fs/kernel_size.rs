//! The size that the kernel has of a file, which it appends at, and reads up to.
//!
//! The kernel learns sizes with the attributes, keeps them for a while, and counts its own writes.
//! The lower file may have grown meanwhile: through another mount, or below. So an open compares
//! the two sizes under the lower file's lock:
//!
//! ```text
//!   the kernel's size    an open
//!   is right             goes on
//!   is too small         stores the file's last byte in the kernel's pages, which moves its end
//!   is too large         fails with ESTALE: the kernel looks the file up again, and comes back
//!   changed meanwhile    fails with EBUSY, for writing
//!   cannot be stored     fails with EBUSY, for writing
//!   may be wrong still   goes on without the kernel's pages, to append: at the file's own end
//! ```
//!
//! A write that appends through the kernel's pages and is not at the end fails with ESTALE.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fstat};
use rustix::io::Errno;

use super::cached::Patience;
use super::nodes::{FileNode, FileSlot};
use super::{Answer, Fs, locked};
use crate::EXTENT;
use crate::file::{OpenFile, WritePlace};

/// How long the kernel takes at most to learn a size, and to look a file up again and open it.
const LATE: Duration = Duration::from_secs(1);

/// How often the kernel is sent the end of a file: at first it may be busy with the file's pages.
const STORES: u32 = 5;

/// The time between two of these.
const LATER: Duration = Duration::from_millis(20);

/// The state of the kernel's size.
#[derive(Default)]
pub(super) struct KernelSize {
    /// The size in the last attributes, where it is known.
    told: Option<u64>,
    /// When another size was sent than the one before: a thread may not have taken the reply yet.
    changed: Option<Instant>,
    /// The number of replies with a size.
    replies: u64,
    /// When the kernel was sent back to look at the size, and the replies until then.
    sent_back: Option<(Instant, u64)>,
    /// True when the kernel knew the size as the open file was locked for writing: it knows it as
    /// long as the file is open.
    follows: bool,
}

impl KernelSize {
    /// Sets whether the kernel knows the open file's size.
    pub(super) fn follows(&mut self, follows: bool) {
        self.follows = follows;
    }

    /// Notes the kernel's size after its own writes.
    pub(super) fn is(&mut self, size: Option<u64>) {
        self.told = size;
    }

    /// True when the kernel was sent back a moment ago, and has looked since.
    fn has_looked(&self) -> bool {
        self.sent_back.is_some_and(|(then, replies)| then.elapsed() < LATE && replies < self.replies)
    }

    /// True when the kernel may not have the last size that it was sent.
    pub(super) fn is_fresh(&self) -> bool {
        self.changed.is_some_and(|then| then.elapsed() < LATE)
    }
}

impl FileSlot {
    /// Notes the size in a reply to the kernel.
    pub(super) fn tells(&mut self, size: u64) {
        let follows = self.follows_kernel();
        let end = &mut self.end;
        if !follows && end.told.is_some_and(|told| told != size) {
            end.changed = Some(Instant::now());
        }
        (end.told, end.replies) = (Some(size), end.replies + 1);
    }

    /// True when the kernel knows the size of the open file, because it makes all changes of it.
    pub(super) fn follows_kernel(&self) -> bool {
        self.end.follows && self.open.upgrade().is_some_and(|file| file.is_writable())
    }
}

impl Fs {
    /// Makes sure that the kernel has the size of a file that is being opened, with its lower file
    /// locked. Returns false where a thread without patience would wait.
    ///
    /// Fails with `ESTALE` when the kernel has to look at the file again, and with `EBUSY` when the
    /// size of a file to be written has changed since it did. A file that grows all the time is
    /// opened for reading as it is.
    pub(super) fn tell_size(
        &self,
        node: &Arc<FileNode>,
        file: &OpenFile,
        write: bool,
        patience: Patience,
    ) -> Answer<bool> {
        let size = self.size(node, &fstat(file)?)?;
        let mut slot = locked(&node.file);
        let Some(told) = slot.end.told.filter(|_| !slot.follows_kernel()) else { return Ok(true) };
        let may_lag = size > 0 && slot.end.is_fresh();
        if told == size && !may_lag {
            return Ok(true);
        }
        if told <= size {
            if patience == Patience::Refuse {
                return Ok(false);
            }
            drop(slot);
            let is_stored = (0..STORES).any(|nth| {
                thread::sleep(if nth == 0 { Duration::ZERO } else { LATER });
                self.store_end(node, file, size)
            });
            if is_stored {
                locked(&node.file).end.told = Some(size);
                return Ok(true);
            }
            slot = locked(&node.file);
        }
        match slot.end.has_looked() {
            true if !write => Ok(true),
            // Bytes for the end would go where the kernel takes it to be.
            true => Err(Errno::BUSY),
            false => {
                slot.end.sent_back = Some((Instant::now(), slot.end.replies));
                Err(Errno::STALE)
            }
        }
    }

    /// Where a write goes that appends to an open file. The kernel drops a reply with a size when
    /// it has made a change of its own since it asked, and may then have too large a size. So right
    /// after the size has changed such a file is opened without pages, and the end is that of the
    /// file itself; the kernel's size remains wrong until it asks again. Of a direct write the
    /// kernel may send several pieces at once, each with its own offset: it is not moved.
    pub(super) fn place_to_append(&self, node: u64, offset: u64, opened: OFlags) -> Answer<WritePlace> {
        let node = self.nodes.get(node)?;
        let mut slot = locked(&node.file);
        if !slot.is_direct || opened.contains(OFlags::DIRECT) {
            return Ok(WritePlace::AtEnd(offset));
        }
        slot.end.changed = Some(Instant::now());
        Ok(WritePlace::End(offset))
    }

    /// Moves the kernel's end of a file to `size`, which is not 0, if it lies before. Returns false
    /// when the file's last byte cannot be read, or the kernel does not take it.
    fn store_end(&self, node: &Arc<FileNode>, file: &OpenFile, size: u64) -> bool {
        let mut scratch = [0; 3 * EXTENT];
        let last = file.read(size - 1, 1, &mut scratch).ok().and_then(|last| scratch[last].first().copied());
        last.is_some_and(|byte| self.notify(node, move |kernel, id| kernel.store(id, size - 1, byte)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::{Mode, OFlags, open};
    use underseal_cipher::Key;
    use underseal_fuse::wire::open_flag;

    use super::*;
    use crate::file::ShortWrite;
    use crate::fs::nodes::ROOT;
    use crate::fs::{Crypto, CryptoPolicy, MountConfig, MountKeys, Sealing};
    use crate::{AuthToken, Cipher, HeaderLocation, Keyring};

    fn mount(lower: &Path) -> Fs {
        let token =
            || AuthToken::from_key(&Key::new(&[7; 64]).unwrap(), AuthToken::DEFAULT_SALT, None).unwrap();
        let sealing = Sealing {
            keys: MountKeys { keyring: Keyring::from(token()), new_files: vec![Arc::new(token())] },
            cipher: Cipher::DEFAULT,
            crypto: Crypto::new(CryptoPolicy::Inline),
            names: None,
            long_names: false,
            place: HeaderLocation::File,
            passthrough: false,
            encrypted_view: false,
            strict: false,
        };
        let root = open(lower, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Fs::new(root, lower, Some(sealing), &MountConfig::default()).unwrap()
    }

    /// Opens the file to append, as the kernel does. Returns its node, its handle, and whether
    /// writes go past the kernel's pages.
    fn opened(fs: &Fs, more: OFlags) -> (u64, u64, bool) {
        let node = fs.lookup(ROOT, b"log", Patience::Wait).unwrap().unwrap().node.id;
        let flags = (OFlags::WRONLY | OFlags::APPEND | more).bits();
        let (handle, flags) = fs.open(node, flags, false, 0, Patience::Wait).unwrap().unwrap();
        (node, handle, flags & open_flag::DIRECT_IO != 0)
    }

    fn append(
        fs: &Fs,
        (node, handle, _): (u64, u64, bool),
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let mut data = vec![0; bytes.len() + EXTENT];
        data[..bytes.len()].copy_from_slice(bytes);
        let place = fs.place_to_append(node, offset, OFlags::APPEND).unwrap();
        let (file, mut scratch) = (fs.handles.file(handle).unwrap(), [0; 4 * EXTENT]);
        let short = ShortWrite::Counted;
        file.write(place, bytes.len(), &mut data, &mut scratch, short, &|| false).map_err(|e| e.errno)
    }

    fn size(fs: &Fs) -> i64 {
        fs.lookup(ROOT, b"log", Patience::Wait).unwrap().unwrap().stat.st_size
    }

    #[test]
    fn a_write_that_appends_goes_to_the_end_or_nowhere() {
        let lower = tempfile::tempdir().unwrap();
        std::fs::write(lower.path().join("log"), b"").unwrap();
        let [first, second] = [(); 2].map(|()| mount(lower.path()));
        let file = opened(&first, OFlags::empty());
        assert!(!file.2, "nothing was changed below");
        assert_eq!(append(&first, file, 0, b"abc"), Ok(3));
        for wrong in [0, 2, 5000] {
            assert_eq!(append(&first, file, wrong, b"lost"), Err(Errno::STALE), "at {wrong}");
        }
        assert_eq!(append(&first, file, 3, b"def"), Ok(3));
        first.release(file.0, file.1);
        assert_eq!(size(&first), 6);

        // Another mount cuts it, and the kernel of the first keeps the larger size.
        let cut = opened(&second, OFlags::TRUNC);
        second.release(cut.0, cut.1);
        assert_eq!(size(&first), 0);
        let file = opened(&first, OFlags::empty());
        assert!(file.2, "the kernel may have another size");
        assert_eq!(append(&first, file, 6, b"gh"), Ok(2));
        assert_eq!(append(&first, file, 8, b"i"), Ok(1));
        first.release(file.0, file.1);
        assert_eq!((size(&first), size(&second)), (3, 3));
    }
}
