//! Requests that come through io_uring: the thread's entries, and the commands that answer them.

#![expect(unsafe_code, reason = "commands of FUSE over io_uring")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;
use underseal_datapath::Buffer;
use underseal_device::LongCommand;
use underseal_fuse::{EntryEvent, HomeProcessors, RingEntries, RingShare};

use super::{Origin, Worker};
use crate::export_loop::Took;
use crate::{Error, ErrorKind, Result};

/// The number of unsent replies after which the thread submits them before it takes more requests.
const DUE: usize = 8;
const DUE_BYTES: usize = 64 << 10;

/// A thread's entries.
pub(super) struct ThreadEntries {
    ring: RingEntries,
    /// The entries whose requests have arrived, or wait for room.
    arrived: VecDeque<u32>,
    /// The number of replies that are not submitted yet, and their bytes.
    unsent: (usize, usize),
    /// The error with which the kernel refused entries.
    refused: Option<Errno>,
    is_registered: bool,
    home: HomeProcessors,
}

impl ThreadEntries {
    pub(super) fn new(share: &RingShare) -> io::Result<Self> {
        let home = HomeProcessors::of(share);
        let arrived = VecDeque::with_capacity(share.entries() as usize);
        Ok(Self {
            ring: RingEntries::new(share)?,
            arrived,
            unsent: (0, 0),
            refused: None,
            is_registered: false,
            home,
        })
    }

    /// Returns true when a request has arrived that has not begun.
    pub(super) fn has_waiting(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Returns true when the kernel has any of the entries.
    pub(super) fn are_live(&self) -> bool {
        self.ring.live() > 0
    }

    pub(super) fn is_due(&self) -> bool {
        self.unsent.0 >= DUE || self.unsent.1 >= DUE_BYTES
    }

    pub(super) fn payload(&mut self, number: u32) -> Option<&mut [u8]> {
        self.ring.payload(number)
    }
}

impl Worker {
    /// Registers this thread's entries with the kernel. Once all threads have done so, the kernel
    /// passes requests through them.
    pub(in super::super) fn register(&mut self) -> Result<()> {
        let refused =
            |e| Error::new(ErrorKind::FuseDevice, "the kernel takes no requests' memory").with_source(e);
        let Some(entries) = &mut self.entries else { return Ok(()) };
        let (queue, channel) = (&mut self.queue, &self.channel);
        // SAFETY: the memory is the entries' own. The kernel writes to it in calls of this thread,
        // while no request is in it; it is unmapped when no entry is live (see `RingEntries`).
        let give = |command: &LongCommand<'_>, number: u32| unsafe {
            queue.long_command(channel.as_fd(), command, number)
        };
        entries.ring.register(give).map_err(refused)?;
        self.queue.poll().map_err(refused)?;
        // The kernel refuses an entry at once.
        while self.note_event() {}
        let Some(entries) = &mut self.entries else { return Ok(()) };
        entries.is_registered = entries.ring.are_in_every_queue();
        match entries.refused {
            Some(errno) if !entries.is_registered => Err(refused(errno.into())),
            _ => Ok(()),
        }
    }

    /// Handles the kernel's completion of an entry's command.
    pub(super) fn entry_answered(&mut self, number: u32, result: i32) {
        let Some(entries) = &mut self.entries else { return };
        match entries.ring.answered(number, result) {
            EntryEvent::Request => entries.arrived.push_back(number),
            EntryEvent::Gone => self.ended |= !entries.are_live(),
            EntryEvent::Refused(errno) => {
                if entries.refused.replace(errno).is_none() {
                    log::warn!("the kernel refuses memory for requests of the mount: {errno}");
                }
                self.ended |= entries.is_registered && !entries.are_live();
            }
        }
    }

    /// Notes that the thread has slept, and how many requests have arrived.
    pub(super) fn has_woken(&mut self) {
        if let Some(entries) = &mut self.entries
            && entries.has_waiting()
        {
            entries.home.arrived(entries.arrived.len());
        }
    }

    /// Starts a request that has arrived in an entry; returns `None` when none has.
    pub(super) fn take_from_entries(&mut self) -> Result<Option<Took>> {
        if self.entries.is_none() {
            return Ok(None);
        }
        while self.note_event() {}
        let Some(entries) = &mut self.entries else { return Ok(None) };
        let Some(&number) = entries.arrived.front() else { return Ok(None) };
        if self.request_table.is_full() {
            return Ok(Some(Took::NoRoom));
        }
        let front = entries.ring.front(number, &mut self.head);
        let nonsense = |_| Error::new(ErrorKind::Protocol, "the kernel sent a request that makes no sense");
        let len = front.map_err(nonsense)?;
        entries.home.begins(&entries.ring.parts(number).map_err(nonsense)?);
        let before = entries.unsent.0;
        if !self.begin(Origin::Entry(number), len)? {
            return Ok(Some(Took::NoRoom));
        }
        let Some(entries) = &mut self.entries else { return Ok(None) };
        entries.arrived.pop_front();
        let answered = entries.unsent.0 > before;
        Ok(Some(Took::Request(if answered { 0 } else { self.last })))
    }

    /// Takes the first bytes of an entry's payload out, for the queue.
    pub(super) fn take_payload(&mut self, number: u32, len: usize) -> Option<(Buffer, Buffer)> {
        self.entries.as_mut()?.ring.take_payload(number, len)
    }

    pub(super) fn put_back(&mut self, number: u32, parts: (Buffer, Buffer)) {
        if let Some(entries) = &mut self.entries {
            entries.ring.put_back(number, parts);
        }
    }

    /// Joins the part of a payload that the queue had with the rest.
    pub(super) fn payload_is_back(&mut self, number: u32, data: Option<Buffer>, rest: Buffer) -> Result<()> {
        // Without that part the kernel would write the next request to memory that may be in use.
        let gone = || Error::new(ErrorKind::Io, "a request's memory did not come back from the queue");
        self.put_back(number, (data.ok_or_else(gone)?, rest));
        Ok(())
    }

    /// Answers a read whose bytes are in the entry's payload.
    pub(super) fn commit_read(&mut self, origin: Origin, len: usize) -> io::Result<()> {
        match origin {
            Origin::Entry(number) => self.commit(number, Ok(len)),
            Origin::Channel => Ok(()),
        }
    }

    /// Answers the request in an entry, and waits in the same entry for the next request.
    pub(super) fn commit(
        &mut self,
        number: u32,
        answer: std::result::Result<usize, Errno>,
    ) -> io::Result<()> {
        let Some(entries) = &mut self.entries else { return Ok(()) };
        let Some(command) = entries.ring.reply(number, answer) else { return Ok(()) };
        entries.unsent.0 += 1;
        entries.unsent.1 += answer.unwrap_or(0);
        // SAFETY: as in `register`.
        unsafe { self.queue.long_command(self.channel.as_fd(), &command, number) }
    }

    /// Notes that the kernel has all replies, or will have them before the thread sleeps.
    pub(super) fn handed_over(&mut self) {
        if let Some(entries) = &mut self.entries {
            entries.unsent = (0, 0);
        }
    }
}
