//! One stream of requests, owned by one thread.
//!
//! ```text
//!   submit -> admit   held while the volume is suspended, or an earlier write overlaps
//!               |
//!             lock    where others may write the same sectors
//!               |
//!              run    a slot moves on piece by piece, until it is over; nothing else moves slots
//!             parts     too long, or sectors covered in part: each part is a slot of its own
//!             crypt     this thread, a worker
//!             share     what of the backlog others do
//! ```
//!
//! What is to be done next is decided beside it: `adaptive` (who), `order` (which write goes down),
//! `epochs` (under which volume).

mod adaptive;
mod admit;
mod epochs;
mod lock;
mod order;
mod run;
mod wait;

pub use self::wait::SleepDecision;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use underseal_device::{Arena, Buffer, Channel, Finished, LongCommand, POLLIN, Ring};

use self::adaptive::Adaptive;
use self::epochs::Epochs;
use self::order::WriteQueue;
use crate::claims::WriteOrdering;
use crate::control::VolumeSettings;
use crate::piece::{CryptoFailure, ZEROS};
use crate::post::{QueueInbox, QueueMessage};
use crate::slot::Slots;
use crate::{Completion, Error, Mapping, Request, Result, SharedBytes, SharedOwner};

/// How large a queue is.
#[derive(Debug, Clone, Copy)]
pub struct QueueOptions {
    /// Requests in flight at a time.
    pub depth: u32,
    /// The longest read or write, in bytes.
    pub max_request: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 128, max_request: 32 << 20 }
    }
}

/// Slots for the parts of one request that covers sectors in part, and for itself.
const SLOTS_EACH: u32 = 4;
/// Slots for parts of requests that are shared among threads, for all requests together.
const SHARED_PARTS: u32 = 64;
/// The bell's number among the events of the ring.
const BELL: u32 = u32::MAX;

/// One stream of requests: its channels, its ring, its memory, its requests in flight.
///
/// Submit until it is full, take completions, and [`wait`](Queue::wait) when there is nothing else to do; or, in an event loop
/// of another kind, [`rest`](Queue::rest), and [`poll`](Queue::poll) when its descriptor is readable.
///
/// It belongs to the thread that opened it: the kernel takes what a ring is given from that thread only.
pub struct Queue {
    _of_its_thread: PhantomData<*const ()>,
    mapping: Arc<Mapping>,
    /// Copies of what is set, renewed when the version differs.
    settings: VolumeSettings,
    /// What requests in flight run under.
    epochs: Epochs,
    post: Arc<QueueInbox>,
    letters: VecDeque<QueueMessage>,
    /// One a lower device, by its number.
    channels: Box<[Box<dyn Channel>]>,
    ring: Ring,
    /// What a channel that was woken has finished.
    over: Vec<Finished>,
    arena: Arena,
    /// Lists of shared bytes that are free.
    spare_shared: Vec<SharedBytes>,
    slots: Slots,
    depth: u32,
    /// Requests in flight: parts do not count.
    requests: u32,
    /// Slots left for parts of shared requests.
    spare_parts: u32,
    /// Requests that came while the volume was suspended.
    paused: VecDeque<u32>,
    /// Writes and their ranges: one that overlaps an earlier one waits for it.
    writes: WriteOrdering<u32>,
    /// Slots that may begin, because what they waited for is over.
    runnable: VecDeque<u32>,
    /// Slots that need memory which others have: they try again whenever something may have come back.
    starved: VecDeque<u32>,
    /// Long requests for zeros that let other requests of this queue go first.
    long_zeros: VecDeque<u32>,
    /// How many bytes of zeros this turn may still begin.
    zeros_left: u64,
    order: WriteQueue,
    adaptive: Adaptive,
    ready: VecDeque<Completion>,
    /// Each with what the ring answered.
    events: VecDeque<(u32, i32)>,
    max_request: usize,
    /// Bytes that have moved on, all requests together.
    moved: u64,
    /// The clock when it was last looked at.
    now: Instant,
    /// Its thread waits elsewhere.
    rests: bool,
    /// The version under which it was reported that this queue has settled.
    settled_at: u32,
}

impl Queue {
    /// A queue for the calling thread.
    ///
    /// # Errors
    /// `Lower` when the system has no ring, descriptor or memory for it.
    pub fn open(mapping: Arc<Mapping>, options: QueueOptions) -> Result<Self> {
        Self::with_ring(mapping, options, |completions| {
            Ring::with_completions(options.depth + 8, completions)
        })
    }

    /// As [`open`](Queue::open), for as many [long commands](Queue::long_command) at a time as
    /// `commands` says. It is for use before the sandbox.
    ///
    /// # Errors
    /// As there; `Lower` also when the kernel has no such rings.
    pub fn with_long_commands(mapping: Arc<Mapping>, options: QueueOptions, commands: u32) -> Result<Self> {
        Self::with_ring(mapping, options, |completions| {
            Ring::with_long_commands(options.depth + 8 + commands, completions + commands)
        })
    }

    fn with_ring(
        mapping: Arc<Mapping>,
        options: QueueOptions,
        ring: impl FnOnce(u32) -> underseal_device::Result<Ring>,
    ) -> Result<Self> {
        let lower = |e| {
            let names: Vec<_> = mapping.devices().iter().map(|device| device.name()).collect();
            Error::lower(&names.join(", "), e)
        };
        let count = options.depth * SLOTS_EACH + SHARED_PARTS;
        // Completions of the lower device, and a few descriptors of the export's.
        let mut ring = ring(count + 8).map_err(lower)?;
        let channels = mapping.devices().iter().map(|device| device.channel(count));
        let channels = channels.collect::<std::result::Result<_, _>>().map_err(lower)?;
        // The longest request and as much again, so one large request never waits for another. Encrypted zeros and
        // whole sectors need room too, however short requests are.
        let edges = if mapping.modifies() { 2 * mapping.sector() as usize } else { 0 };
        let longest = options.max_request.max(ZEROS.try_into().unwrap_or(usize::MAX)).saturating_add(edges);
        let tags = mapping.tags_for(longest as u64);
        let arena = Arena::new(longest.saturating_add(tags).saturating_mul(2)).map_err(lower)?;
        let no_bell =
            |e| Error::new(crate::ErrorKind::Lower, format!("no event descriptor for a queue: {e}"));
        let post = Arc::new(QueueInbox::new(count as usize).map_err(no_bell)?);
        ring.watch(post.bell(), POLLIN, BELL).map_err(no_bell)?;
        let settings = mapping.control().register(post.clone());
        let depth = options.depth as usize;
        let mut queue = Self {
            _of_its_thread: PhantomData,
            epochs: Epochs::new(&settings),
            settings,
            letters: VecDeque::with_capacity(count as usize),
            post,
            channels,
            ring,
            over: Vec::new(),
            arena,
            spare_shared: Vec::new(),
            slots: Slots::new(count),
            depth: options.depth,
            requests: 0,
            spare_parts: SHARED_PARTS,
            paused: VecDeque::with_capacity(depth),
            writes: WriteOrdering::new(depth),
            runnable: VecDeque::with_capacity(depth),
            starved: VecDeque::new(),
            long_zeros: VecDeque::with_capacity(depth),
            zeros_left: ZEROS,
            order: WriteQueue::new(count as usize),
            adaptive: Adaptive::new(count as usize),
            ready: VecDeque::with_capacity(depth * 2),
            events: VecDeque::with_capacity(depth + 8),
            max_request: options.max_request,
            moved: 0,
            now: Instant::now(),
            rests: false,
            settled_at: 0,
            mapping,
        };
        queue.report();
        Ok(queue)
    }

    /// Takes a request in. Its completion may be ready at once.
    ///
    /// # Errors
    /// Gives the request back when the queue has no slot or memory left: take completions, give their memory back and
    /// try again.
    pub fn submit(&mut self, tag: u64, request: Request) -> std::result::Result<(), Request> {
        self.refresh();
        if let Err(error) = self.check(&request) {
            self.refuse(tag, error, request.into_buffer());
            return Ok(());
        }
        if self.is_full() {
            return Err(request);
        }
        let request = match self.with_own_bytes(request) {
            Ok(request) => request,
            Err(data) => {
                self.refuse(tag, CryptoFailure::Lost.into(), Some(data));
                return Ok(());
            }
        };
        let slot = self.slot(tag, request)?;
        self.admit(slot);
        self.settle();
        Ok(())
    }

    /// Writes the caller's scratch memory, encrypting it in place; what is in it afterwards is unspecified.
    ///
    /// The memory is free again when this returns: what cannot be written at once is copied first.
    ///
    /// # Errors
    /// `Full` as with [`submit`](Queue::submit); the memory is as it was.
    pub fn write_in_place(
        &mut self,
        tag: u64,
        offset: u64,
        data: &mut [u8],
        durable: bool,
    ) -> std::result::Result<(), Full> {
        self.refresh();
        let checked = self.check_range(offset, data.len() as u64, true);
        if let Err(error) = checked.and_then(|()| self.check_length(data.len() as u64)) {
            self.refuse(tag, error, None);
            return Ok(());
        }
        if self.is_full() {
            return Err(Full);
        }
        // Reserved before anything is encrypted, so that there is a way on if the device would block.
        let mut buffer = self.arena.alloc(data.len()).ok_or(Full)?;
        let range = offset..offset + data.len() as u64;
        let straight = !durable && self.writes_straight(&range);
        if let Some(lock) = straight.then(|| self.lock_now(&range)).flatten() {
            let Ok(mut tags) = self.tags(data.len() as u64) else {
                self.unlock_now(range, lock);
                self.arena.free(buffer);
                return Err(Full);
            };
            let tuples = tags.as_deref_mut().unwrap_or_default();
            let (at, result) = self.write_now(range.clone(), data, tuples);
            if at == range.end || result.is_err() {
                self.unlock_now(range, lock);
                tags.into_iter().chain([buffer]).for_each(|memory| self.arena.free(memory));
                self.ready.push_back(Completion { tag, result, buffer: None });
                return Ok(());
            }
            buffer.copy_from_slice(data);
            self.write_rest(tag, range, at, (buffer, tags), lock);
        } else {
            buffer.copy_from_slice(data);
            match self.slot(tag, Request::Write { offset, data: buffer, durable }) {
                Ok(slot) => self.admit(slot),
                Err(Request::Write { data, .. }) => {
                    self.arena.free(data);
                    return Err(Full);
                }
                Err(_) => return Err(Full),
            }
        }
        self.settle();
        Ok(())
    }

    /// The next request that is over.
    pub fn next_completion(&mut self) -> Option<Completion> {
        while self.ready.is_empty() && self.work_on_backlog() {}
        self.ready.pop_front()
    }

    /// Memory for a write, or `None` when there is none of that size now.
    pub fn alloc(&mut self, len: usize) -> Option<Buffer> {
        self.arena.alloc(len)
    }

    /// A list for the bytes of a request that lie in memory of `owner`.
    pub fn shared_bytes(&mut self, owner: Arc<dyn SharedOwner>) -> SharedBytes {
        let mut bytes = self.spare_shared.pop().unwrap_or_else(SharedBytes::new);
        bytes.set_owner(owner);
        bytes
    }

    /// Takes memory back. What is not this queue's, or only a part of what it gave, is dropped.
    pub fn free(&mut self, buffer: Buffer) {
        if let Err(stranger) = self.arena.take_back(buffer) {
            log::error!("{stranger:?} that a queue did not give, or not as a whole");
        }
    }

    /// Requests that are neither completed nor failed yet.
    pub fn in_flight(&self) -> usize {
        self.requests as usize
    }

    /// The next request that is over already: work that waits for this thread is left waiting. For exports that have
    /// more requests to submit first, so that the queue sees how many there are.
    pub fn next_ready(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    /// True when work waits for this thread, which [`next_completion`](Queue::next_completion) does.
    pub fn has_backlog(&self) -> bool {
        !self.adaptive.is_empty()
    }

    /// Notes that time has passed without [`wait`](Queue::wait): an export that waited in a way of its own calls it before
    /// it submits what came.
    pub fn woken(&mut self) {
        self.tick();
    }

    /// The clock when it was last looked at: when the last completion was made.
    pub fn clock(&self) -> Instant {
        self.now
    }

    /// Notes that the export has sent at `sent` what was ready at `ready`.
    pub fn replied(&mut self, ready: Instant, sent: Instant) {
        let latency = sent.saturating_duration_since(ready);
        self.post.stats.reply.record(crate::stats::nanos(latency), 1);
    }

    /// Watches a descriptor of the export's once: [`next_event`](Queue::next_event) gives `number` when one of
    /// `events` (poll(2) bits) holds. The descriptor must stay open until then or until the queue is dropped.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: i16, number: u32) -> std::io::Result<()> {
        self.ring.watch(fd, events, number)
    }

    /// Gives a driver of the export's a command in this queue's ring: [`next_event`](Queue::next_event) gives `number`, and
    /// [`next_answer`](Queue::next_answer) also what the driver said.
    ///
    /// # Errors
    /// When the kernel refuses.
    ///
    /// # Safety
    /// As [`Ring::command`].
    pub unsafe fn command(
        &mut self,
        fd: BorrowedFd<'_>,
        operation: u32,
        payload: [u8; 16],
        number: u32,
    ) -> std::io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.ring.command(fd, operation, payload, number) }
    }

    /// As [`command`](Queue::command), for a driver whose commands have 80 bytes.
    ///
    /// # Errors
    /// When the kernel refuses, or the queue was not opened [for such
    /// commands](Queue::with_long_commands).
    ///
    /// # Safety
    /// As [`Ring::command`].
    pub unsafe fn long_command(
        &mut self,
        fd: BorrowedFd<'_>,
        command: &LongCommand<'_>,
        number: u32,
    ) -> std::io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.ring.long_command(fd, command, number) }
    }

    /// A watched descriptor that has become ready, or a command that was answered.
    pub fn next_event(&mut self) -> Option<u32> {
        self.next_answer().map(|(number, _)| number)
    }

    /// As [`next_event`](Queue::next_event), with the answer: as a system call would have returned it.
    pub fn next_answer(&mut self) -> Option<(u32, i32)> {
        self.events.pop_front()
    }

    /// Lets go on what was waiting for what has ended.
    fn settle(&mut self) {
        for _ in 0..self.starved.len() {
            if let Some(index) = self.starved.pop_front() {
                self.run(index);
            }
        }
        loop {
            while let Some(index) = self.runnable.pop_front() {
                self.take_lock(index);
            }
            if !self.write_in_order() {
                break;
            }
        }
        self.report();
    }

    /// Looks whether something was set, for requests that begin from now on.
    fn renew(&mut self) {
        if self.mapping.control().version() != self.settings.version {
            self.settings = self.mapping.control().settings();
            self.epochs.set(&self.settings);
        }
    }

    /// Looks whether something was set, and lets go on what waited for that.
    fn refresh(&mut self) {
        self.renew();
        if self.settled_at == self.settings.version {
            return;
        }
        if !self.settings.suspended {
            for _ in 0..self.paused.len() {
                if let Some(index) = self.paused.pop_front() {
                    self.admit_index(index);
                }
            }
        }
        self.settle();
    }

    /// Tells who waits for it that nothing is in flight here that began before the last change; or nothing at all, where
    /// the volume is suspended.
    fn report(&mut self) {
        if self.settled_at == self.settings.version {
            return;
        }
        let paused = self.paused.len();
        let idle = if self.settings.suspended { self.requests as usize == paused } else { paused == 0 };
        if idle && self.epochs.old_are_over() {
            self.settled_at = self.settings.version;
            self.mapping.control().has_settled(&self.post, self.settings.version);
        }
    }

    fn is_full(&self) -> bool {
        self.requests == self.depth
    }

    fn tick(&mut self) -> Instant {
        self.now = Instant::now();
        self.now
    }
}

/// The queue has no slot or memory left for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Drop for Queue {
    /// Waits for what the lower device and other threads have, so that nothing writes to memory that is gone. What waits
    /// for a suspended volume, or for memory that is gone with its user, is given up.
    ///
    /// When this thread panics, it may be amid a request that will never end: then nothing is waited for. The channels
    /// see to it that memory which the kernel may write to stays.
    fn drop(&mut self) {
        let panics = std::thread::panicking();
        while !panics
            && self.requests as usize > self.paused.len() + self.starved.len()
            && self.wait().is_ok()
        {
            self.ready.clear();
        }
        for index in self.slots.locked() {
            self.unlock(index);
        }
        self.mapping.control().unregister(&self.post);
    }
}
