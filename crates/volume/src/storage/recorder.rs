//! A disk for tests: it remembers what was written to it in which order, and can lose power anywhere.

mod crash;

use std::any::Any;
use std::cell::{Ref, RefCell};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use super::{ReadAt, Target};

enum Event {
    Write(u64, Vec<u8>),
    Sync,
}

pub(crate) struct Recorder {
    bytes: RefCell<Vec<u8>>,
    events: RefCell<Vec<Event>>,
}

impl Recorder {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: bytes.into(), events: Vec::new().into() }
    }

    pub(crate) fn bytes(&self) -> Ref<'_, Vec<u8>> {
        self.bytes.borrow()
    }

    pub(crate) fn is_untouched(&self) -> bool {
        self.events.borrow().is_empty()
    }

    pub(crate) fn forget_events(&self) {
        self.events.borrow_mut().clear();
    }

    /// The disk as it may be after a crash at any moment since its bytes were `synced`; see [`crash::each`].
    pub(crate) fn each_crash(&self, synced: Vec<u8>, check: impl FnMut(&[u8], &str)) {
        let events = self.events.take();
        assert!(matches!(events.last(), Some(Event::Sync)), "all is on disk in the end");
        crash::each(&events, synced, check);
    }
}

impl ReadAt for Recorder {
    fn size(&self) -> io::Result<u64> {
        self.bytes.borrow()[..].size()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes.borrow()[..].read_exact_at(buf, offset)
    }
}

impl Target for Recorder {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        apply(&mut self.bytes.borrow_mut(), offset, bytes);
        self.events.borrow_mut().push(Event::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.events.borrow_mut().push(Event::Sync);
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

/// What becomes of these bytes, found out once: crashes leave the same ones again and again, and a key derivation takes its time.
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

/// How many of the blocks of 16 bytes of a range that were there `before` are there still.
pub(crate) fn left_of(before: &[u8], now: &[u8]) -> usize {
    before.chunks_exact(16).zip(now.chunks_exact(16)).filter(|(before, now)| before == now).count()
}
