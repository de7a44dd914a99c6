//! A disk for tests: it records the order of its writes, and can lose power at any point.

mod crash;

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;
use std::sync::{Mutex, RwLock, RwLockReadGuard};

use super::{ReadAt, Target};

enum Event {
    Write(u64, Vec<u8>),
    /// A sync of the writes in this range.
    Sync(Range<u64>),
}

/// The whole disk.
const ALL: Range<u64> = 0..u64::MAX;

pub(crate) struct Recorder {
    bytes: RwLock<Vec<u8>>,
    events: Mutex<Vec<Event>>,
}

/// A part of the disk that is a disk itself: it is synced separately, and its writes have an order
/// of their own.
pub(crate) struct Part<'r> {
    of: &'r Recorder,
    range: Range<u64>,
}

impl Recorder {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into(), events: Vec::new().into() }
    }

    pub(crate) fn bytes(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.bytes.read().unwrap()
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.events.lock().unwrap().is_empty()
    }

    pub(crate) fn forget_events(&self) {
        self.events.lock().unwrap().clear();
    }

    /// Returns a part as a disk.
    pub(crate) fn part(&self, range: Range<u64>) -> Part<'_> {
        Part { of: self, range }
    }

    fn push(&self, event: Event) {
        if let Event::Write(offset, bytes) = &event {
            apply(&mut self.bytes.write().unwrap(), *offset, bytes);
        }
        self.events.lock().unwrap().push(event);
    }

    /// Calls `check` with each possible state of the disk after a crash since its bytes were
    /// `synced`; see [`crash::each`].
    pub(crate) fn each_crash(&self, synced: Vec<u8>, check: impl FnMut(&[u8], &str)) {
        let events = std::mem::take(&mut *self.events.lock().unwrap());
        assert!(matches!(events.last(), Some(Event::Sync(_))), "all is on disk in the end");
        crash::each(&events, synced, check);
    }
}

impl ReadAt for Recorder {
    fn size(&self) -> io::Result<u64> {
        self.bytes()[..].size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes()[..].read_exact_at(buf, offset)
    }
}

impl Target for Recorder {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.push(Event::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.push(Event::Sync(ALL));
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl ReadAt for Part<'_> {
    fn size(&self) -> io::Result<u64> {
        Ok(self.range.end - self.range.start)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.saturating_add(buf.len() as u64) > self.size()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.of.read_exact_at(buf, self.range.start + offset)
    }
}

impl Target for Part<'_> {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert!(offset + bytes.len() as u64 <= self.size()?);
        self.of.write_all_at(bytes, self.range.start + offset)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.of.push(Event::Sync(self.range.clone()));
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn apply(disk: &mut [u8], offset: u64, bytes: &[u8]) {
    let at = usize::try_from(offset).unwrap();
    disk[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns the result of `find_out` for these bytes, computed once: crashes leave the same bytes
/// again and again, and a key derivation takes time.
pub(crate) fn once<T: Copy + 'static>(bytes: &[&[u8]], find_out: impl FnOnce() -> T) -> T {
    thread_local! {
        static KNOWN: RefCell<HashMap<u64, Box<dyn Any>>> = RefCell::default();
    }
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    let hash = hasher.finish();
    let known = KNOWN.with_borrow(|known| known.get(&hash)?.downcast_ref().copied());
    known.unwrap_or_else(|| {
        let found = find_out();
        KNOWN.with_borrow_mut(|known| known.insert(hash, Box::new(found)));
        found
    })
}

/// Returns how many blocks of 16 bytes of a range are the same as `before`.
pub(crate) fn left_of(before: &[u8], now: &[u8]) -> usize {
    before.chunks_exact(16).zip(now.chunks_exact(16)).filter(|(before, now)| before == now).count()
}
