//! A thread whose requests come through io_uring.
//!
//! ```text
//!   entries  --arrived-->  this thread  --reply-->  entries
//!                              |   ^
//!                      slow    v   |  replies (`Returned`)
//!                          threads for slow requests
//! ```

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use underseal_device::{LongCommand, Mailbox, POLLIN, Ring, Wakeup};
use underseal_fuse::{EntryEvent, FuseChannel, HomeProcessors, RingEntries, RingShare};

use super::dispatch::FsWorker;
use super::{Answer, LARGEST};

/// The ring's number for replies of other threads. Lower numbers belong to entries.
const RETURNED: u32 = 1 << 31;

/// After this many replies, or a reply of this length, replies go to the kernel before the next
/// request is served.
const DUE: usize = 8;
const LONG: usize = 64 << 10;

/// An entry's room for payload: the longest read or write, and the extents that it covers partly.
pub(super) const PAYLOAD: usize = LARGEST as usize + 2 * crate::EXTENT;

/// Replies of threads for slow requests, with the numbers of the entries.
pub(super) struct Returned {
    replies: Mailbox<(u32, Answer<Vec<u8>>)>,
    wakeup: Wakeup,
}

impl Returned {
    pub(super) fn send(&self, number: u32, reply: Answer<Vec<u8>>) {
        if self.replies.send((number, reply)) {
            self.wakeup.ring();
        }
    }
}

/// A thread that serves requests, with its ring.
pub(super) struct RingWorker {
    worker: FsWorker,
    ring: Ring,
    channel: Arc<FuseChannel>,
    entries: RingEntries,
    arrived: VecDeque<u32>,
    returned: Arc<Returned>,
    refused: Option<Errno>,
    unsent: usize,
    home: HomeProcessors,
}

impl RingWorker {
    /// Returns the calling thread's worker, after its entries were sent to the kernel.
    pub(super) fn new(worker: FsWorker, channel: Arc<FuseChannel>, share: &RingShare) -> io::Result<Self> {
        let mut ring = Ring::with_long_commands(share.entries() + 1, 0).map_err(io::Error::other)?;
        let returned = Returned { replies: Mailbox::new(share.entries() as usize), wakeup: Wakeup::new()? };
        ring.watch(returned.wakeup.as_fd(), POLLIN, RETURNED)?;
        let mut this = Self {
            worker,
            ring,
            channel,
            entries: RingEntries::new(share)?,
            arrived: VecDeque::new(),
            returned: Arc::new(returned),
            refused: None,
            unsent: 0,
            home: HomeProcessors::of(share),
        };
        let (ring, channel) = (&mut this.ring, &this.channel);
        this.entries.register(|command, number| give(ring, channel, command, number))?;
        this.ring.submit()?;
        // So that a refused entry is noticed at once.
        this.reap()?;
        match this.refused {
            Some(errno) if !this.entries.are_in_every_queue() => Err(errno.into()),
            _ => Ok(this),
        }
    }

    /// Serves until the mount is gone.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let mut replies = VecDeque::new();
        while self.entries.live() > 0 {
            if self.arrived.is_empty() && self.returned.replies.may_sleep(|| false) {
                let waited = self.ring.wait();
                self.returned.replies.awake();
                waited?;
            } else {
                self.ring.submit()?;
            }
            self.unsent = 0;
            self.reap()?;
            if !self.arrived.is_empty() {
                self.home.arrived(self.arrived.len());
            }
            self.returned.replies.take(&mut replies);
            for (number, reply) in replies.drain(..) {
                let reply = reply.and_then(|bytes| {
                    let payload = self.entries.payload(number).and_then(|all| all.get_mut(..bytes.len()));
                    payload.ok_or(Errno::IO)?.copy_from_slice(&bytes);
                    Ok(bytes.len())
                });
                self.reply(number, reply)?;
            }
            while let Some(number) = self.arrived.pop_front() {
                let Self { worker, entries, home, returned, .. } = self;
                if let Some(answer) = worker.serve_entry(entries, number, home, returned)? {
                    self.reply(number, answer)?;
                }
            }
        }
        match self.refused {
            Some(errno) => Err(errno.into()),
            None => Ok(()),
        }
    }

    /// Handles the ring's completions.
    fn reap(&mut self) -> io::Result<()> {
        while let Some(completion) = self.ring.next_completion() {
            match completion.token.as_event() {
                Some(RETURNED) => {
                    self.returned.wakeup.heard();
                    self.ring.watch(self.returned.wakeup.as_fd(), POLLIN, RETURNED)?;
                }
                Some(number) => match self.entries.answered(number, completion.result) {
                    EntryEvent::Request => self.arrived.push_back(number),
                    EntryEvent::Gone => {}
                    EntryEvent::Refused(errno) => self.refused = Some(errno),
                },
                None => {}
            }
        }
        Ok(())
    }

    fn reply(&mut self, number: u32, answer: Answer<usize>) -> io::Result<()> {
        let Some(command) = self.entries.reply(number, answer) else { return Ok(()) };
        give(&mut self.ring, &self.channel, &command, number)?;
        self.unsent += 1;
        if self.unsent >= DUE || answer.is_ok_and(|len| len >= LONG) {
            self.ring.submit()?;
            self.unsent = 0;
        }
        Ok(())
    }
}

#[expect(unsafe_code, reason = "a command for a driver")]
fn give(ring: &mut Ring, channel: &FuseChannel, command: &LongCommand<'_>, number: u32) -> io::Result<()> {
    // SAFETY: the memory belongs to the entries. The kernel writes to it in calls of this thread,
    // while no request is in it; it is unmapped when no entry is live (see `RingEntries`).
    unsafe { ring.long_command(channel.as_fd(), command, number) }
}
