//! A queue's channel to a file.

#![expect(unsafe_code, reason = "operations of the kernel's ring on request memory")]

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

use super::trim::{self, DiscardOrder, Trimmer};
use super::{FileAccess, Shared};
use crate::losses::unflushed;
use crate::{Channel, Error, ErrorKind, Finished, Immediate, Io, POLLIN, Ring, RingToken, Started};

/// The longest transfer of a system call: the kernel's limit, in whole pages.
const MOST: usize = 0x7fff_f000;
/// How often a request is tried again that was interrupted, or would have had to wait. Each retry
/// runs on a thread of the kernel, which may wait.
const RETRIES: u8 = 8;

pub(super) struct FileChannel {
    shared: Arc<Shared>,
    /// Opened for this channel, so that another channel's flush does not take the write-back error
    /// that this channel's flush has to report.
    file: File,
    /// Reads and writes are tried with RWF_NOWAIT until the filesystem refuses the flag.
    nowait_reads: bool,
    nowait_writes: bool,
    in_flight: Vec<Option<Flight>>,
    /// Makes discards where the kernel has no command for them.
    trimmer: Option<Trimmer>,
}

/// A request in the kernel. The buffer stays here, untouched, until the completion.
struct Flight {
    io: Io,
    done: usize,
    /// The number of failed tries without a real error since bytes were last moved.
    retries: u8,
    /// The error of a durable write. The write is repeated without durability, to learn whether
    /// only the flush failed.
    unsynced: Option<Errno>,
    /// A discard on the trimmer's thread.
    order: Option<Arc<DiscardOrder>>,
}

impl FileChannel {
    pub(super) fn new(shared: Arc<Shared>, file: File, depth: u32) -> Self {
        let in_flight = (0..depth).map(|_| None).collect();
        Self { shared, file, nowait_reads: true, nowait_writes: true, in_flight, trimmer: None }
    }

    /// Reduces a discard to the blocks that lie within it: the rest stays.
    fn in_blocks(&self, io: Io) -> Io {
        match (io, self.shared.discard_unit.map(u64::from)) {
            (Io::Discard { offset, len }, Some(unit)) => {
                let start = offset.next_multiple_of(unit);
                let end = (offset + len) / unit * unit;
                Io::Discard { offset: start, len: end.saturating_sub(start) }
            }
            (io, _) => io,
        }
    }

    fn flags(&self) -> ReadWriteFlags {
        if self.shared.way == FileAccess::Memory { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT }
    }

    /// Gives the rest of the request in `slot` to the kernel.
    fn push(&mut self, ring: &mut Ring, slot: u32) -> Result<(), Errno> {
        let Some(flight) = &mut self.in_flight[slot as usize] else { return Err(Errno::INVAL) };
        if let (&Io::Discard { offset, len }, Some(trimmer)) = (&flight.io, &self.trimmer) {
            let order = flight.order.insert(trimmer.order(offset, len)?);
            let polled = ring.poll(order.as_fd(), POLLIN, RingToken::lower(slot));
            return polled.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::BUSY));
        }
        let entry = flight
            .entry(types::Fd(self.file.as_raw_fd()), self.shared.discard_unit.is_some())
            .user_data(RingToken::lower(slot).bits());
        let entry = if flight.retries > 0 { entry.flags(squeue::Flags::ASYNC) } else { entry };
        // SAFETY: the memory is the buffer that `flight` owns; it is neither touched nor freed
        // before `finish` has seen the completion (`Drop` forgets requests still in flight).
        unsafe { ring.push(&entry) }.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::BUSY))
    }
}

impl Channel for FileChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate {
        if self.shared.way == FileAccess::Direct || !self.nowait_reads {
            return Immediate::Blocked(0);
        }
        let mut done = 0;
        while done < data.len() {
            let rest = &mut [IoSliceMut::new(&mut data[done..])];
            match preadv2(&self.file, rest, offset + done as u64, self.flags()) {
                Ok(0) => return Immediate::Failed(ends_early(offset + done as u64)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Immediate::Blocked(done),
                Err(Errno::OPNOTSUPP) => {
                    self.nowait_reads = false;
                    return Immediate::Blocked(done);
                }
                Err(e) => return Immediate::Failed(failed(ErrorKind::Read, "read", offset + done as u64, e)),
            }
        }
        Immediate::Done
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate {
        // Where writing is forbidden, `start` returns the error.
        if self.shared.way == FileAccess::Direct
            || !self.nowait_writes
            || self.shared.may_change_to(offset + data.len() as u64).is_err()
        {
            return Immediate::Blocked(0);
        }
        let mut done = 0;
        while done < data.len() {
            let rest = &[IoSlice::new(&data[done..])];
            match pwritev2(&self.file, rest, offset + done as u64, self.flags()) {
                Ok(0) | Err(Errno::AGAIN) => return Immediate::Blocked(done),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => {
                    self.nowait_writes = false;
                    return Immediate::Blocked(done);
                }
                Err(e) => {
                    return Immediate::Failed(failed(ErrorKind::Write, "write", offset + done as u64, e));
                }
            }
        }
        Immediate::Done
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        let io = match io.without_tags(slot) {
            Ok(io) => self.in_blocks(io),
            Err(refused) => return Started::Finished(refused),
        };
        let at_once = match io {
            Io::Flush if self.shared.way == FileAccess::Memory => Some(self.shared.is_whole()),
            Io::Discard { len: 0, .. } => Some(Ok(())),
            Io::Write { offset, ref range, .. } | Io::WriteTagged { offset, ref range, .. } => {
                self.shared.may_change_to(offset + range.len() as u64).err().map(Err)
            }
            Io::Discard { offset, len } | Io::Zero { offset, len, .. } => {
                self.shared.may_change_to(offset + len).err().map(Err)
            }
            _ => None,
        };
        self.in_flight[slot as usize] = Some(Flight { io, done: 0, retries: 0, unsynced: None, order: None });
        if let Some(result) = at_once {
            return Started::Finished(self.over(slot, result));
        }
        match self.push(ring, slot) {
            Ok(()) => Started::Pending,
            Err(e) => Started::Finished(self.over(slot, Err(e))),
        }
    }

    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished> {
        let slot = token.as_lower()?;
        let flight = self.in_flight.get(slot as usize)?.as_ref()?;
        // For a discard on the trimmer's thread the ring reports the end only.
        let result = flight.order.as_ref().map_or(result, |order| order.result());
        let over = match usize::try_from(result) {
            Ok(moved) => self.moved(slot, moved),
            Err(_) => self.failed(slot, Errno::from_raw_os_error(result.saturating_neg())),
        };
        over.or_else(|| self.push(ring, slot).err().map(|e| self.over(slot, Err(e))))
    }

    /// Has no events: the channel waits for requests only.
    fn woken(&mut self, _ring: &mut Ring, _token: RingToken, _result: i32, _over: &mut Vec<Finished>) {}
}

impl FileChannel {
    /// Handles `moved` bytes from the kernel. `None` when more bytes are left.
    fn moved(&mut self, slot: u32, moved: usize) -> Option<Finished> {
        let flight = self.in_flight[slot as usize].as_mut()?;
        flight.done += moved;
        flight.retries = 0;
        if flight.io.moves().is_some_and(|len| flight.done < len) {
            let error = (moved == 0).then(|| flight.cut_short())?;
            return Some(self.over_with(slot, Err(error)));
        }
        let unsynced = flight.unsynced;
        let looked = match flight.io {
            Io::Flush => self.shared.note_write_back_errors(),
            Io::Write { durable: true, .. } => self.shared.is_whole(),
            _ => Ok(()),
        };
        unsynced.into_iter().for_each(|e| self.shared.losses.fail(e));
        Some(self.over(slot, unsynced.map_or(looked, Err)))
    }

    /// Handles an error of the kernel. `None` when the request is tried again, or in another way.
    fn failed(&mut self, slot: u32, e: Errno) -> Option<Finished> {
        let flight = self.in_flight[slot as usize].as_mut()?;
        match flight.io {
            _ if matches!(e, Errno::INTR | Errno::AGAIN) && flight.retries < RETRIES => flight.retries += 1,
            Io::Flush => {
                self.shared.losses.fail(e);
                return Some(self.over(slot, Err(e)));
            }
            // The write failed, or its flush: then other clients' writes may be lost with it.
            Io::Write { durable: true, .. } if flight.unsynced.is_none() => {
                (flight.unsynced, flight.done) = (Some(e), 0);
            }
            Io::Discard { .. }
                if self.shared.discard_unit.is_some() && flight.order.is_none() && trim::is_unknown(e) =>
            {
                if self.trimmer.is_none() {
                    match Trimmer::new(self.shared.clone()) {
                        Ok(trimmer) => self.trimmer = Some(trimmer),
                        Err(e) => return Some(self.over(slot, Err(e))),
                    }
                }
            }
            _ => return Some(self.over(slot, Err(e))),
        }
        None
    }

    fn over(&mut self, slot: u32, result: Result<(), Errno>) -> Finished {
        let result = match (&self.in_flight[slot as usize], result) {
            (_, Ok(())) => Ok(()),
            // A discard is a hint: without support in the filesystem or device it is done.
            (Some(Flight { io: Io::Discard { .. } | Io::Prefetch { .. }, .. }), Err(Errno::OPNOTSUPP)) => {
                Ok(())
            }
            (Some(flight), Err(e)) => Err(self.shared.explained(flight.error(e))),
            (None, Err(e)) => Err(failed(ErrorKind::Other, "request", 0, e)),
        };
        self.over_with(slot, result)
    }

    fn over_with(&mut self, slot: u32, result: crate::Result<()>) -> Finished {
        match self.in_flight[slot as usize].take() {
            Some(flight) => Finished::of(slot, flight.io, result),
            None => Finished::bare(slot, result),
        }
    }
}

impl Drop for FileChannel {
    fn drop(&mut self) {
        // The kernel may still write to the memory, which is therefore never freed. The queue waits
        // before it drops the channel.
        self.in_flight.drain(..).flatten().for_each(std::mem::forget);
    }
}

impl Flight {
    /// True when the data is on stable storage once the kernel reports the end.
    fn is_durable(&self) -> bool {
        matches!(self.io, Io::Write { durable: true, .. }) && self.unsynced.is_none()
    }

    fn entry(&self, fd: types::Fd, is_block: bool) -> squeue::Entry {
        let at = |buffer: &crate::Buffer, range: &std::ops::Range<usize>| {
            let rest = &buffer[range.start + self.done..range.end];
            // `Io` owns the buffer, so the pointer's provenance is the mapping's, valid for reading
            // and writing.
            let pointer = buffer.as_ptr().wrapping_add(range.start + self.done);
            (pointer, u32::try_from(rest.len().min(MOST)).unwrap_or(u32::MAX))
        };
        let done = self.done as u64;
        match &self.io {
            Io::Read { offset, buffer, range } | Io::ReadTagged { offset, buffer, range, .. } => {
                let (pointer, len) = at(buffer, range);
                opcode::Read::new(fd, pointer, len).offset(offset + done).build()
            }
            Io::Write { offset, buffer, range, .. } | Io::WriteTagged { offset, buffer, range, .. } => {
                let (pointer, len) = at(buffer, range);
                let flags = if self.is_durable() { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(fd, pointer, len).offset(offset + done).rw_flags(flags).build()
            }
            Io::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            Io::Discard { offset, len } if is_block => trim::command(fd, *offset, *len),
            Io::Discard { offset, len } => {
                allocate(fd, *offset, *len, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
            }
            Io::Zero { offset, len, punch: true } => {
                allocate(fd, *offset, *len, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE)
            }
            Io::Zero { offset, len, punch: false } => allocate(fd, *offset, *len, FallocateFlags::ZERO_RANGE),
            Io::Prefetch { offset, len } => {
                let len = i64::try_from(*len).unwrap_or(i64::MAX);
                opcode::Fadvise::new(fd, len, libc::POSIX_FADV_WILLNEED).offset(*offset).build()
            }
        }
    }

    /// The error when no more bytes can be moved.
    fn cut_short(&self) -> Error {
        match self.io {
            Io::Read { offset, .. } => ends_early(offset + self.done as u64),
            _ => self.error(Errno::NOSPC),
        }
    }

    fn error(&self, e: Errno) -> Error {
        let done = self.done as u64;
        match self.io {
            Io::Read { offset, .. } | Io::ReadTagged { offset, .. } => {
                failed(ErrorKind::Read, "read", offset + done, e)
            }
            Io::Write { offset, .. } | Io::WriteTagged { offset, .. } => {
                failed(ErrorKind::Write, "write", offset + done, e)
            }
            Io::Flush => unflushed(e),
            Io::Discard { offset, .. } => failed(ErrorKind::Other, "discard", offset, e),
            Io::Zero { offset, .. } => failed(ErrorKind::Other, "zeroing", offset, e),
            Io::Prefetch { offset, .. } => failed(ErrorKind::Other, "prefetch", offset, e),
        }
    }
}

fn allocate(fd: types::Fd, offset: u64, len: u64, mode: FallocateFlags) -> squeue::Entry {
    opcode::Fallocate::new(fd, len).offset(offset).mode(mode.bits().cast_signed()).build()
}

fn failed(kind: ErrorKind, what: &str, offset: u64, e: Errno) -> Error {
    Error::new(kind, format!("{what} failed at byte {offset} of the lower device")).with_source(e)
}

fn ends_early(offset: u64) -> Error {
    let context =
        format!("the lower device ends at or before byte {offset}: was the file made shorter while open?");
    Error::new(ErrorKind::Read, context).with_source(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;

    /// The operation and its flags, as the kernel gets them.
    fn told(io: Io, unsynced: Option<Errno>) -> (u8, u32) {
        let flight = Flight { io, done: 0, retries: 0, unsynced, order: None };
        let entry = flight.entry(types::Fd(0), false);
        assert_eq!(size_of_val(&entry), 64);
        // SAFETY: an entry is the kernel's 64 bytes (io_uring_enter(2)), without padding.
        let bytes = unsafe { std::mem::transmute::<squeue::Entry, [u8; 64]>(entry) };
        (bytes[0], u32::from_ne_bytes(bytes[28..32].try_into().unwrap()))
    }

    #[test]
    fn what_must_be_durable_is_asked_for_so() {
        const DSYNC: u32 = 2;
        const DATASYNC: u32 = 1;
        let mut arena = Arena::new(1 << 16).unwrap();
        let mut write = |durable| {
            let buffer = arena.alloc(4096).unwrap();
            Io::Write { offset: 0, buffer, range: 0..4096, durable }
        };
        assert_eq!(told(write(false), None), (opcode::Write::CODE, 0));
        assert_eq!(told(write(true), None), (opcode::Write::CODE, DSYNC));
        assert_eq!(told(write(true), Some(Errno::IO)), (opcode::Write::CODE, 0));
        assert_eq!(told(Io::Flush, None), (opcode::Fsync::CODE, DATASYNC));
    }
}
