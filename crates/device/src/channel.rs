//! The two traits of a lower device, and the words they speak in.

use std::ops::Range;
use std::sync::Arc;

use crate::{Buffer, Error, Geometry, IoKind, Result, Ring, RingToken, Zone, ZoneAction, ZoneLimits};

/// A lower device: opened once, gives every queue a channel of its own.
pub trait Device: Send + Sync {
    /// Size and alignment. The size is that of opening time, or of the last
    /// [`refresh`](Device::refresh).
    fn geometry(&self) -> Geometry;

    /// Asks how large the device is now, and waits for the answer. From then on
    /// [`geometry`](Device::geometry) tells that, and every channel reaches it, also those that are
    /// open already. Nobody else is told.
    ///
    /// A device whose size cannot change says what it always said.
    ///
    /// # Errors
    /// `Open` when it cannot be asked, or something else is there now; then nothing changes.
    fn refresh(&self) -> Result<u64> {
        Ok(self.geometry().size)
    }

    /// A channel for the calling thread's queue, for up to `depth` requests at a time.
    ///
    /// # Errors
    /// When the system has no descriptor or memory left.
    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>>;

    /// What a failing request's log line calls the device.
    fn name(&self) -> &str;

    /// True when it compares what it reads with tags that it made of what was written, and fails
    /// what differs ([`Error::mismatch_at`]).
    fn verifies(&self) -> bool {
        false
    }

    /// Forgets what it has read and keeps in memory: who looks for damage wants what is on the
    /// disk.
    fn forget(&self) {}

    /// Has something done, once, when it has learnt that nothing can be read or written any more
    /// until it is opened again. It must not wait. Most devices never know.
    fn when_lost(&self, act: LossHandler) {
        let _ = act;
    }

    /// Has requests paused while a snapshot is made of what lies below. Most devices never hear of
    /// one.
    fn when_snapshot(&self, pause: Arc<dyn SnapshotPause>) {
        let _ = pause;
    }

    /// Lets go of what others wait for, before the last who has it does: no request is in flight,
    /// and none that comes now succeeds. Most devices have nothing that others wait for as long as
    /// that.
    fn let_go(&self) {}

    /// Of what it [verifies](Device::verifies), how many bytes it reads at the moment without
    /// comparing them, since their tags are still to be made.
    fn unverified(&self) -> u64 {
        0
    }

    /// Where data is allocated at and after `offset`, as one extent that ends at or before
    /// `offset + len`.
    ///
    /// A device that cannot tell says that all is data.
    fn extent(&self, offset: u64, len: u64) -> Extent {
        let _ = offset;
        Extent { len, hole: false }
    }

    /// Up to `most` zones from `offset` on, as they are now; there may be more.
    ///
    /// # Errors
    /// The system's; `ENOTTY` for a device without zones that it could tell of.
    fn report_zones(&self, offset: u64, most: usize) -> std::io::Result<Vec<Zone>> {
        let _ = (offset, most);
        Err(rustix::io::Errno::NOTTY.into())
    }

    /// How many zones may be in use at a time.
    fn zone_limits(&self) -> ZoneLimits {
        ZoneLimits::default()
    }

    /// Does something to the zones of a range, and waits for it.
    ///
    /// # Errors
    /// As [`report_zones`](Device::report_zones).
    fn act_on_zones(&self, action: ZoneAction, offset: u64, len: u64) -> std::io::Result<()> {
        let _ = (action, offset, len);
        Err(rustix::io::Errno::NOTTY.into())
    }
}

/// What is done when a device is lost.
pub type LossHandler = Arc<dyn Fn() + Send + Sync>;

/// Who lets requests wait for the moment of a snapshot.
pub trait SnapshotPause: Send + Sync {
    /// Nothing is written from now on, and all that was is stored. False: that is not so, and
    /// everything goes on.
    fn begin(&self) -> bool;

    /// The moment is over.
    fn end(&self);
}

/// A run of the device that is allocated, or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, at least 1.
    pub len: u64,
    /// True when nothing is stored there.
    pub hole: bool,
}

/// How a request was answered that may not wait.
#[derive(Debug)]
pub enum Immediate {
    /// All of it is done.
    Done,
    /// So many bytes are done; the rest would block.
    Blocked(usize),
    /// It failed.
    Failed(Error),
}

/// A request that may wait. It owns its memory until it is finished. Offsets and lengths are in
/// bytes.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are explained beside each request")]
pub enum Io {
    /// Fill `range` of the buffer from `offset`.
    Read { offset: u64, buffer: Buffer, range: Range<usize> },
    /// Write `range` of the buffer to `offset`; `durable`: it is on stable storage when it
    /// finishes.
    Write { offset: u64, buffer: Buffer, range: Range<usize>, durable: bool },
    /// As `Read`, and fill the front of `tags` with the tuples of these blocks, one after the
    /// other.
    ReadTagged { offset: u64, buffer: Buffer, range: Range<usize>, tags: Buffer },
    /// As `Write`, with the tuples of these blocks at the front of `tags`.
    WriteTagged { offset: u64, buffer: Buffer, range: Range<usize>, tags: Buffer, durable: bool },
    /// Everything written before is on stable storage when this finishes.
    Flush,
    /// The bytes need not be kept.
    Discard { offset: u64, len: u64 },
    /// The bytes read as zeros afterwards; `punch`: their space may be freed.
    Zero { offset: u64, len: u64, punch: bool },
    /// The bytes will be read soon.
    Prefetch { offset: u64, len: u64 },
}

/// A request that is over, with its memory.
#[derive(Debug)]
pub struct Finished {
    /// The token that it was started with.
    pub slot: u32,
    /// Its memory, when it had any.
    pub buffer: Option<Buffer>,
    /// Its memory for tuples, when it had any.
    pub tags: Option<Buffer>,
    /// How it ended.
    pub result: Result<()>,
}

impl Finished {
    /// A request without memory.
    pub fn bare(slot: u32, result: Result<()>) -> Self {
        Self { slot, buffer: None, tags: None, result }
    }

    /// A request that is over as it was given, with what it has.
    pub fn of(slot: u32, io: Io, result: Result<()>) -> Self {
        let (buffer, tags) = io.into_memory();
        Self { slot, buffer, tags, result }
    }
}

/// What became of a request that was started.
#[derive(Debug)]
pub enum Started {
    /// It is over already.
    Finished(Finished),
    /// It will come from `finish` or `woken`, after a completion out of the ring.
    Pending,
}

/// One queue's way to a device. It is used by one thread.
///
/// # Contract
/// Offsets and lengths are multiples of the geometry's block and lie within the device. `slot` is
/// below the channel's depth and no other request in flight has it. Completions that the ring gives
/// for [`RingToken::lower`] go to `finish`, those for [`RingToken::channel`] to `woken`.
///
/// Requests with tuples go to devices that keep some ([`Geometry::tag_size`]). They move as a
/// whole: what could not be moved at once ([`Immediate::Blocked`], of no bytes) is started anew. No
/// two of them are under way for one block if one of them writes: whoever asks sees to that.
pub trait Channel: Send {
    /// Reads without waiting. Memory need not be aligned.
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Immediate;

    /// Writes without waiting. Memory need not be aligned. What is done is not yet durable.
    fn write_now(&mut self, offset: u64, data: &[u8]) -> Immediate;

    /// Reads blocks and their tuples without waiting: all of them, or none. `tags` has as many
    /// bytes as they have.
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

    /// Takes a completion from the ring; `None` when the request goes on (it was cut short and was
    /// started again).
    fn finish(&mut self, ring: &mut Ring, token: RingToken, result: i32) -> Option<Finished>;

    /// Something has come that the channel waits for by itself, whichever requests are in flight: a
    /// socket, a time, the bell that a library's thread rings. Requests that are over with it are
    /// put into `over`.
    fn woken(&mut self, ring: &mut Ring, token: RingToken, result: i32, over: &mut Vec<Finished>);
}
