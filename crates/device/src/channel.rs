//! The two traits of a lower device, and their types.

use std::ops::Range;

use crate::{Buffer, Error, Geometry, IoKind, Result, Ring, RingToken, SharedImage, TagCheck, ZoneControl};

/// A lower device: opened once, with a channel for each queue.
pub trait Device: Send + Sync {
    /// Size and alignment. The size is that of the opening, or of the last
    /// [`refresh`](Device::refresh).
    fn geometry(&self) -> Geometry;

    /// Asks for the device's present size, and waits for the answer. From then on
    /// [`geometry`](Device::geometry) returns that size, and every channel reaches it, also open
    /// ones. No notification is sent.
    ///
    /// A device whose size cannot change returns the same size always.
    ///
    /// # Errors
    /// `Open` when the device cannot be asked, or is another one now; the size is unchanged then.
    fn refresh(&self) -> Result<u64> {
        Ok(self.geometry().size)
    }

    /// Tells the device that the bytes from `end` on are not needed, as a volume opens and after it
    /// became smaller or larger: another program may cut them off. Most devices never know of their
    /// size.
    fn need(&self, end: u64) {
        let _ = end;
    }

    /// Opens a channel for the calling thread's queue, for up to `depth` requests at a time.
    ///
    /// # Errors
    /// `Open` or `Memory` when the system has no descriptor or memory left.
    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>>;

    /// The device's name in the log and in errors.
    fn name(&self) -> &str;

    /// True when acknowledged writes may be in this process's memory alone until a flush: they end
    /// with the process. (Those of a file are in the kernel's cache, and those of a server there.)
    fn holds_acknowledged(&self) -> bool {
        false
    }

    /// Returns the extent at `offset`, allocated or a hole, which ends at or before `offset + len`.
    ///
    /// A device that cannot tell returns data.
    fn extent(&self, offset: u64, len: u64) -> Extent {
        let _ = offset;
        Extent { len, hole: false }
    }

    /// The devices that this one lies on.
    fn below(&self) -> Vec<&dyn Device> {
        Vec::new()
    }

    /// The device's zones, if it has any.
    fn zone_control(&self) -> Option<&dyn ZoneControl> {
        None
    }

    /// The tags that the device compares with what it reads, if it has any: those that it made when
    /// that was written.
    fn tag_check(&self) -> Option<&dyn TagCheck> {
        None
    }

    /// The image that the device shares with other programs, if it is one. Files and block devices
    /// are locked themselves, and never know of their loss.
    fn shared_image(&self) -> Option<&dyn SharedImage> {
        None
    }
}

/// A run of the device that is allocated, or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The extent's length in bytes, at least 1.
    pub len: u64,
    /// True when nothing is stored there.
    pub hole: bool,
}

/// The result of a call that does not wait.
#[derive(Debug)]
pub enum Immediate {
    /// The request is done.
    Done,
    /// This many bytes are done; the rest would block.
    Blocked(usize),
    /// The request failed.
    Failed(Error),
}

/// A request that may wait. It owns its memory until it is finished. Offsets and lengths are in
/// bytes.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are explained beside each request")]
pub enum Io {
    /// Read from `offset` into `range` of the buffer.
    Read { offset: u64, buffer: Buffer, range: Range<usize> },
    /// Write `range` of the buffer to `offset`; `durable`: the data is on stable storage at the
    /// end.
    Write { offset: u64, buffer: Buffer, range: Range<usize>, durable: bool },
    /// As `Read`, with the tuples of the blocks, one after the other, into the front of `tags`.
    ReadTagged { offset: u64, buffer: Buffer, range: Range<usize>, tags: Buffer },
    /// As `Write`, with the tuples of the blocks at the front of `tags`.
    WriteTagged { offset: u64, buffer: Buffer, range: Range<usize>, tags: Buffer, durable: bool },
    /// All earlier writes are on stable storage at the end.
    Flush,
    /// The bytes need not be kept.
    Discard { offset: u64, len: u64 },
    /// The bytes read as zeros afterwards; `punch`: their space may be freed.
    Zero { offset: u64, len: u64, punch: bool },
    /// The bytes will be read soon.
    Prefetch { offset: u64, len: u64 },
}

/// A finished request, with its memory.
#[derive(Debug)]
pub struct Finished {
    /// The slot that the request was started with.
    pub slot: u32,
    /// The request's memory, if it had any.
    pub buffer: Option<Buffer>,
    /// The request's memory for tuples, if it had any.
    pub tags: Option<Buffer>,
    /// The request's result.
    pub result: Result<()>,
}

impl Finished {
    /// Returns a finished request without memory.
    pub fn bare(slot: u32, result: Result<()>) -> Self {
        Self { slot, buffer: None, tags: None, result }
    }

    /// Returns a finished request with the memory of `io`.
    pub fn of(slot: u32, io: Io, result: Result<()>) -> Self {
        let (buffer, tags) = io.into_memory();
        Self { slot, buffer, tags, result }
    }
}

/// The result of starting a request.
#[derive(Debug)]
pub enum Started {
    /// The request is over already.
    Finished(Finished),
    /// `finish` or `woken` returns the request after a completion of the ring.
    Pending,
}

/// A queue's connection to a device, used by one thread.
///
/// # Contract
/// Offsets and lengths are multiples of the geometry's block and lie within the device. `slot` is
/// below the channel's depth, and no other request in flight has it. Completions of the ring for
/// [`RingToken::lower`] go to `finish`, those for [`RingToken::channel`] to `woken`.
///
/// Requests with tuples go to devices with tags ([`Geometry::tag_size`]). They move as a whole:
/// after [`Immediate::Blocked`], of no bytes, the whole request is started. The caller never has
/// two of them in flight for one block if one of them writes.
pub trait Channel: Send {
    /// Reads without waiting. Memory need not be aligned.
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate;

    /// Writes without waiting. Memory need not be aligned. The data is not durable yet.
    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate;

    /// Reads blocks and their tuples without waiting: all of them, or none. `tags` has the length
    /// of their tuples.
    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Immediate {
        let _ = (data, tags);
        Immediate::Failed(IoKind::Read.untagged(offset))
    }

    /// Writes blocks and their tuples without waiting, as
    /// [`read_tagged_now`](Channel::read_tagged_now).
    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Immediate {
        let _ = (data, tags);
        Immediate::Failed(IoKind::Write.untagged(offset))
    }

    /// Starts a request that may wait.
    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started;

    /// Takes a completion from the ring; `None` when the request is not over (the rest of it was
    /// started again).
    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished>;

    /// Handles an event that the channel waits for independently of its requests: a socket, a
    /// timeout, a wakeup by a library's thread. Adds requests that are over to `over`.
    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>);
}
