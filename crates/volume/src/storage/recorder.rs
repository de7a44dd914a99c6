//! A disk for tests: it remembers what was written to it in which order, and can lose power anywhere.

use std::cell::{Ref, RefCell};
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

    /// The disk as it may be after a crash at any moment since its bytes were `synced`, with any one of the writes since the
    /// last sync lost on its way.
    pub(crate) fn each_crash(&self, mut synced: Vec<u8>, mut check: impl FnMut(&[u8], &str)) {
        let events = self.events.take();
        assert!(matches!(events.last(), Some(Event::Sync)), "all is on disk in the end");
        let mut pending: Vec<(u64, &[u8])> = Vec::new();
        for (i, event) in events.iter().enumerate() {
            match event {
                Event::Write(offset, bytes) => pending.push((*offset, bytes)),
                Event::Sync => {
                    pending.drain(..).for_each(|(offset, bytes)| apply(&mut synced, offset, bytes));
                }
            }
            for lost in 0..=pending.len() {
                let mut disk = synced.clone();
                let kept = pending.iter().enumerate().filter(|(i, _)| *i != lost);
                kept.for_each(|(_, (offset, bytes))| apply(&mut disk, *offset, bytes));
                check(&disk, &format!("event {i}, write {lost} lost"));
            }
        }
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
