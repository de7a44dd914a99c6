//! A stream of requests, owned by one thread.
//!
//! ```text
//!   submit -> admit   held while the volume is suspended, or an earlier write overlaps
//!               |
//!             lock    where other requests may write the same sectors
//!               |
//!              run    moves a slot on, piece by piece, until it is over; nothing else moves slots
//!             parts     long requests and partly covered sectors: each part has a slot
//!             crypt     on this thread or on a worker
//!             share     hands parts of the backlog to workers
//! ```
//!
//! Decisions are made in modules beside `run`: `adaptive` (which thread), `order` (which write is
//! next), `settings_versions` (under which settings), `abandon` (whether anything is done at all).

#![expect(unsafe_code, reason = "a driver's commands, passed on to the ring")]

mod abandon;
mod adaptive;
mod admit;
mod lock;
mod options;
mod order;
mod run;
mod settings_versions;
mod wait;

pub use self::options::QueueOptions;
pub use self::wait::SleepDecision;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use underseal_device::{Arena, Buffer, Channel, Finished, LongCommand, POLLIN, Ring};

use self::adaptive::Adaptive;
use self::order::WriteQueue;
use self::settings_versions::SettingsVersions;
use crate::control::VolumeSettings;
use crate::inbox::{QueueInbox, QueueMessage};
use crate::piece::{CryptoFailure, ZEROS};
use crate::slot::Slots;
use crate::write_ordering::WriteOrdering;
use crate::{Completion, Error, Mapping, Request, Result, SharedBytes, SharedOwner};

/// Slots for one request: its parts, where it covers sectors in part, and itself.
const SLOTS_EACH: u32 = 4;
/// Slots for parts of requests that are shared among threads, for all requests together.
const SHARED_PARTS: u32 = 64;
/// The wakeup's number among the events of the ring.
const WAKEUP: u32 = u32::MAX;

/// A stream of requests, with its channels, ring, memory and requests in flight.
///
/// The owner submits until the queue is full, takes completions, and calls [`wait`](Queue::wait)
/// when neither is possible; in an event loop of another kind, [`rest`](Queue::rest), and
/// [`poll`](Queue::poll) when the queue's descriptor is readable.
///
/// A queue belongs to the thread that opened it: the kernel accepts entries of a ring from that
/// thread only.
pub struct Queue {
    _of_its_thread: PhantomData<*const ()>,
    mapping: Arc<Mapping>,
    /// A copy of the settings, renewed when the version differs.
    settings: VolumeSettings,
    /// The settings of requests in flight.
    settings_versions: SettingsVersions,
    inbox: Arc<QueueInbox>,
    messages: VecDeque<QueueMessage>,
    /// A channel for each lower device, by the device's number.
    channels: Box<[Box<dyn Channel>]>,
    ring: Ring,
    /// Completions of a channel after its wakeup.
    over: Vec<Finished>,
    arena: Arena,
    /// Unused lists of shared bytes.
    spare_shared: Vec<SharedBytes>,
    slots: Slots,
    depth: u32,
    /// Requests in flight, without parts.
    requests: u32,
    /// No request is begun or continued: see [`Queue::abandon`].
    is_abandoned: bool,
    /// Unused slots for parts of shared requests.
    spare_parts: u32,
    /// Requests that arrived while the volume was suspended.
    paused: VecDeque<u32>,
    /// Ranges of writes: a write that overlaps an earlier one waits for it.
    writes: WriteOrdering<u32>,
    /// Slots that may begin, because the request that they waited for is over.
    runnable: VecDeque<u32>,
    /// Slots that wait for memory: they try again whenever memory may have come back.
    starved: VecDeque<u32>,
    /// Long requests for zeros that let other requests of this queue go first.
    long_zeros: VecDeque<u32>,
    /// Bytes of zeros that may still begin in this turn.
    zeros_left: u64,
    order: WriteQueue,
    adaptive: Adaptive,
    ready: VecDeque<Completion>,
    /// Events, each with the ring's result.
    events: VecDeque<(u32, i32)>,
    max_request: usize,
    /// Bytes that have moved on, of all requests together.
    moved: u64,
    /// The clock at its last reading.
    now: Instant,
    /// The queue's thread waits in another event loop.
    rests: bool,
    /// The version under which this queue has reported that it settled.
    settled_at: u32,
}

impl Queue {
    /// Opens a queue for the calling thread.
    ///
    /// # Errors
    /// `Lower` when the system has no ring, descriptor or memory for it.
    pub fn open(mapping: Arc<Mapping>, options: QueueOptions) -> Result<Self> {
        Self::with_ring(mapping, options, |completions| {
            Ring::with_completions(options.depth + 8, completions)
        })
    }

    /// As [`open`](Queue::open), with room for `commands` [long commands](Queue::long_command) at a
    /// time. Call it before the sandbox.
    ///
    /// # Errors
    /// The kinds of [`Queue::open`]; `Lower` also when the kernel has no rings with long entries.
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
        // Completions of the lower device, and a few descriptors of the export.
        let mut ring = ring(count + 8).map_err(lower)?;
        let channels = mapping.devices().iter().map(|device| device.channel(count));
        let channels = channels.collect::<std::result::Result<_, _>>().map_err(lower)?;
        // Twice the longest request, so that one large request never waits for another. Encrypted
        // zeros and whole sectors need room too, however short requests are.
        let edges = if mapping.modifies() { 2 * mapping.sector() as usize } else { 0 };
        let longest = options.max_request.max(ZEROS.try_into().unwrap_or(usize::MAX)).saturating_add(edges);
        let tags = mapping.tags_for(longest as u64);
        let arena = Arena::new(longest.saturating_add(tags).saturating_mul(2)).map_err(lower)?;
        let no_wakeup =
            |e| Error::new(crate::ErrorKind::Lower, format!("no event descriptor for a queue: {e}"));
        let inbox = Arc::new(QueueInbox::new(count as usize).map_err(no_wakeup)?);
        ring.watch(inbox.wakeup(), POLLIN, WAKEUP).map_err(no_wakeup)?;
        let settings = mapping.control().register(inbox.clone());
        let depth = options.depth as usize;
        let mut queue = Self {
            _of_its_thread: PhantomData,
            settings_versions: SettingsVersions::new(&settings),
            settings,
            messages: VecDeque::with_capacity(count as usize),
            inbox,
            channels,
            ring,
            over: Vec::new(),
            arena,
            spare_shared: Vec::new(),
            slots: Slots::new(count),
            depth: options.depth,
            requests: 0,
            is_abandoned: false,
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

    /// Takes a request. Its completion may be ready at once.
    ///
    /// # Errors
    /// Returns the request when the queue has no slot or memory left: take completions, free their
    /// memory and try again.
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

    /// Writes the caller's scratch memory, which is encrypted in place; its contents are
    /// unspecified afterwards.
    ///
    /// The memory is free again when the call returns: bytes that cannot be written at once are
    /// copied first.
    ///
    /// # Errors
    /// `Full` as with [`submit`](Queue::submit); the memory is unchanged.
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
        // Memory is reserved before the encryption, for the case that the device would block.
        let mut buffer = self.arena.alloc(data.len()).ok_or(Full)?;
        let range = offset..offset + data.len() as u64;
        let straight = !durable && !self.is_abandoned && self.writes_straight(&range);
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

    /// Returns the next completion.
    pub fn next_completion(&mut self) -> Option<Completion> {
        while self.ready.is_empty() && self.work_on_backlog() {}
        self.ready.pop_front()
    }

    /// Returns memory for a write, or `None` when the arena has none of that size now.
    pub fn alloc(&mut self, len: usize) -> Option<Buffer> {
        self.arena.alloc(len)
    }

    /// Returns a list for the bytes of a request that lie in memory of `owner`.
    pub fn shared_bytes(&mut self, owner: Arc<dyn SharedOwner>) -> SharedBytes {
        let mut bytes = self.spare_shared.pop().unwrap_or_else(SharedBytes::new);
        bytes.set_owner(owner);
        bytes
    }

    /// Takes memory back. Memory of another queue, or a part of a buffer, is dropped.
    pub fn free(&mut self, buffer: Buffer) {
        if let Err(stranger) = self.arena.take_back(buffer) {
            log::error!("not a whole buffer of this queue: {stranger:?}");
        }
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.requests as usize
    }

    /// Returns the next completion that is ready, without crypto for waiting requests. For exports
    /// that have more requests to submit first, so that the queue knows how many there are.
    pub fn next_ready(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    /// True when crypto waits for this thread, which [`next_completion`](Queue::next_completion)
    /// does.
    pub fn has_backlog(&self) -> bool {
        !self.adaptive.is_empty()
    }

    /// Notes that time has passed without [`wait`](Queue::wait): an export that waits by itself
    /// calls this before it submits new requests.
    pub fn woken(&mut self) {
        self.tick();
    }

    /// The clock at its last reading: when the last completion was made.
    pub fn clock(&self) -> Instant {
        self.now
    }

    /// Notes that the export sent a reply at `sent` that was ready at `ready`.
    pub fn replied(&mut self, ready: Instant, sent: Instant) {
        let latency = sent.saturating_duration_since(ready);
        self.inbox.stats.reply.record(crate::stats::nanos(latency), 1);
    }

    /// Watches a descriptor of the export once: [`next_event`](Queue::next_event) returns `number`
    /// when one of `events` (poll(2) bits) holds. The descriptor must stay open until then or until
    /// the queue is dropped.
    ///
    /// # Errors
    /// The kernel's, when it refuses the entry.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: i16, number: u32) -> std::io::Result<()> {
        self.ring.watch(fd, events, number)
    }

    /// Sends a command to a driver through this queue's ring: [`next_event`](Queue::next_event)
    /// returns `number`, and [`next_answer`](Queue::next_answer) also the driver's result.
    ///
    /// # Errors
    /// The kernel's, when it refuses the entry.
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

    /// As [`command`](Queue::command), for a driver with commands of 80 bytes.
    ///
    /// # Errors
    /// The kernel's, when it refuses the entry, also for a queue without [long
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

    /// Returns the number of a watched descriptor that is ready, or of an answered command.
    pub fn next_event(&mut self) -> Option<u32> {
        self.next_answer().map(|(number, _)| number)
    }

    /// As [`next_event`](Queue::next_event), with the result that a system call would have
    /// returned.
    pub fn next_answer(&mut self) -> Option<(u32, i32)> {
        self.events.pop_front()
    }

    /// Continues slots that waited for memory, for earlier requests, or for their turn.
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

    /// Takes over changed settings, for requests that begin from now on.
    fn renew(&mut self) {
        if self.mapping.control().version() != self.settings.version {
            self.settings = self.mapping.control().settings();
            self.settings_versions.set(&self.settings);
        }
    }

    /// Takes over changed settings, and continues requests that waited for the change.
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

    /// Reports that this queue has settled: none of its requests is of an earlier version; on a
    /// suspended volume, none is in flight except those that are held.
    fn report(&mut self) {
        if self.settled_at == self.settings.version {
            return;
        }
        let paused = self.paused.len();
        let idle = if self.settings.suspended { self.requests as usize == paused } else { paused == 0 };
        if idle && self.settings_versions.old_are_over() {
            self.settled_at = self.settings.version;
            self.mapping.control().has_settled(&self.inbox, self.settings.version);
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
    /// Waits for requests in the lower device and with other threads, so that no late completion
    /// writes to freed memory. Requests that wait for a suspended volume, or for memory, are
    /// dropped.
    ///
    /// After a panic of this thread nothing is waited for: the thread may have been inside of a
    /// request that will never end. The channels keep memory that the kernel may write to.
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
        self.mapping.control().unregister(&self.inbox);
    }
}
