//! A disk that fails, fills up, forgets unsynced bytes, and loses power. Unsynced bytes may reach
//! it or not.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Mutex;

use super::*;

const BLOCK: usize = 512;

/// The unit in which a file system gives a file room.
const PAGE: usize = 4096;

/// A fault. It happens once for each time that it is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The read after this many reads.
    Read(u64),
    /// The write after this many writes; half of it arrives.
    Write(u64),
    /// A full disk: only this many new pages can be written, until more room is made.
    Full(u64),
    /// The sync after this many syncs. The bytes are lost at the next loss of power, and not
    /// before.
    Sync(u64),
    /// All calls after this many reads, writes and syncs, until the disk is repaired.
    Dead(u64),
}

/// The writes that survive a loss of power without a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// With each third write, all bytes until then.
    EachThird,
    Nothing,
    /// All bytes but those of this write, counted from 0 on.
    AllBut(u64),
}

pub(crate) struct Disk(Mutex<Inner>);

#[derive(Clone)]
struct Inner {
    /// The bytes that reads return.
    cache: Vec<u8>,
    /// The bytes that survive a loss of power.
    kept: Vec<u8>,
    dirty: BTreeSet<usize>,
    written: BTreeSet<usize>,
    fault: Option<Fault>,
    keeps: Keeps,
    writes: u64,
    /// The writes since the last sync, whether that failed or not.
    unsynced: Range<u64>,
    /// The writes that the last failed sync lost.
    lost: Range<u64>,
}

impl Disk {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self::that_keeps(bytes, Keeps::EachThird)
    }

    pub(crate) fn that_keeps(bytes: Vec<u8>, keeps: Keeps) -> Self {
        Self(Mutex::new(Inner {
            kept: bytes.clone(),
            cache: bytes,
            dirty: BTreeSet::new(),
            written: BTreeSet::new(),
            fault: None,
            keeps,
            writes: 0,
            unsynced: 0..0,
            lost: 0..0,
        }))
    }

    /// Returns another disk in the same state.
    pub(crate) fn copied(&self) -> Self {
        Self(Mutex::new(self.0.lock().unwrap().clone()))
    }

    /// Returns the numbers of the writes that the last failed sync was for.
    pub(crate) fn lost(&self) -> Range<u64> {
        self.0.lock().unwrap().lost.clone()
    }

    /// Sets what goes wrong next, and returns what has not gone wrong yet.
    pub(crate) fn set(&self, fault: Option<Fault>) -> Option<Fault> {
        std::mem::replace(&mut self.0.lock().unwrap().fault, fault)
    }

    /// Loses power: `arrived` decides which unsynced bytes survive.
    pub(crate) fn lose_power(&self, mut arrived: impl FnMut() -> bool) {
        let mut inner = self.0.lock().unwrap();
        let dirty = std::mem::take(&mut inner.dirty);
        dirty.into_iter().filter(|_| arrived()).for_each(|block| inner.keep(block));
        inner.cache = inner.kept.clone();
    }

    /// Reads, whatever fails: the read of a user.
    pub(crate) fn get(&self, buf: &mut [u8], offset: u64) {
        self.0.lock().unwrap().cache[..].read_exact_at(buf, offset).unwrap();
    }

    /// Writes bytes that survive at once, whatever fails: the write and flush of a user.
    pub(crate) fn put(&self, bytes: &[u8], offset: u64) {
        let mut inner = self.0.lock().unwrap();
        let at = usize::try_from(offset).unwrap();
        inner.cache[at..at + bytes.len()].copy_from_slice(bytes);
        inner.kept[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Inner {
    fn keep(&mut self, block: usize) {
        let range = block * BLOCK..self.cache.len().min((block + 1) * BLOCK);
        self.kept[range.clone()].copy_from_slice(&self.cache[range]);
    }

    /// Returns true when a fault of this kind, or a dead disk, is due now.
    fn strikes(&mut self, is_kind: impl Fn(&Fault) -> bool) -> bool {
        let dies = matches!(self.fault, Some(Fault::Dead(_)));
        let Some(fault) = self.fault.as_mut().filter(|fault| dies || is_kind(fault)) else { return false };
        let (Fault::Read(left)
        | Fault::Write(left)
        | Fault::Full(left)
        | Fault::Sync(left)
        | Fault::Dead(left)) = fault;
        let now = *left == 0;
        *left = left.saturating_sub(1);
        if now && !dies {
            self.fault = None;
        }
        now
    }
}

fn broken() -> io::Error {
    io::Error::other("the disk is broken")
}

impl ReadAt for Disk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().cache.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        if inner.strikes(|fault| matches!(fault, Fault::Read(_))) {
            return Err(broken());
        }
        inner.cache[..].read_exact_at(buf, offset)
    }
}

impl Target for Disk {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        let fails = inner.strikes(|fault| matches!(fault, Fault::Write(_)));
        // Without power no sector is written in part.
        let unit = if matches!(inner.fault, Some(Fault::Dead(_))) { BLOCK } else { 1 };
        let len = if fails { bytes.len() / 2 / unit * unit } else { bytes.len() };
        let mut at = usize::try_from(offset).unwrap();
        let end = at + len;
        while at < end {
            let block = at / BLOCK;
            let next = end.min((block + 1) * BLOCK);
            if inner.written.insert(at / PAGE)
                && let Some(Fault::Full(room)) = &mut inner.fault
            {
                let is_full = *room == 0;
                *room = room.saturating_sub(1);
                if is_full {
                    inner.written.remove(&(at / PAGE));
                    return Err(io::ErrorKind::StorageFull.into());
                }
            }
            let from = at - (end - len);
            inner.cache[at..next].copy_from_slice(&bytes[from..from + next - at]);
            inner.dirty.insert(block);
            at = next;
        }
        let number = inner.writes;
        inner.writes += 1;
        inner.unsynced.end = inner.writes;
        match inner.keeps {
            Keeps::EachThird if inner.writes.is_multiple_of(3) => {
                let dirty = std::mem::take(&mut inner.dirty);
                dirty.into_iter().for_each(|block| inner.keep(block));
            }
            Keeps::AllBut(lost) if number != lost => {
                let from = usize::try_from(offset).unwrap();
                for block in from / BLOCK..(from + len).div_ceil(BLOCK) {
                    inner.keep(block);
                    inner.dirty.remove(&block);
                }
            }
            Keeps::EachThird | Keeps::Nothing | Keeps::AllBut(_) => {}
        }
        if fails { Err(broken()) } else { Ok(()) }
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut inner = self.0.lock().unwrap();
        let fails = inner.strikes(|fault| matches!(fault, Fault::Sync(_)));
        let dirty = std::mem::take(&mut inner.dirty);
        let unsynced = inner.unsynced.clone();
        inner.unsynced.start = unsynced.end;
        if fails {
            inner.lost = unsynced;
            return Err(broken());
        }
        dirty.into_iter().for_each(|block| inner.keep(block));
        Ok(())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
