//! A queue's way to the volume: what can be done at once, and what goes to a worker and comes back.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use underseal_device::{
    Bell, Channel, Finished, Io, Kind, Mailbox, Now, POLLIN, Ring, Started, Token, monotonic,
};

use super::jobs::Job;
use super::lower::AtOnce;
use super::{Shared, untagged};
use crate::core::{Step, Stop};

/// What a channel is woken for: a request is over, or it is time to try again to listen for that.
const BELL: u8 = 0;
const CLOCK: u8 = 1;
/// How soon to try again, when the ring was full.
const SOON: Duration = Duration::from_millis(10);

fn no_bell(e: std::io::Error) -> underseal_device::Error {
    underseal_device::Error::new(underseal_device::ErrorKind::Open, "no descriptor is left").with_source(e)
}

fn as_now(step: Step) -> Now {
    match step {
        Ok(()) => Now::Done,
        Err(Stop::Blocked(n)) => Now::Blocked(n),
        Err(Stop::Failed(e)) => Now::Failed(e),
    }
}

/// Where a channel's answers come.
pub(super) struct Replies {
    mailbox: Mailbox<Finished>,
    bell: Bell,
}

impl Replies {
    pub(super) fn send(&self, done: Finished) {
        if self.mailbox.send(done) {
            self.bell.ring();
        }
    }
}

/// A queue's channel.
pub(super) struct IntegrityChannel {
    at_once: AtOnce,
    shared: Arc<Shared>,
    replies: Arc<Replies>,
    come: VecDeque<Finished>,
    in_flight: usize,
    /// The ring waits for the bell, or for a time to try that again.
    listens: bool,
    ticks: bool,
}

impl IntegrityChannel {
    /// For `depth` requests at a time.
    pub(super) fn new(shared: Arc<Shared>, depth: u32) -> underseal_device::Result<Self> {
        let replies = Replies { mailbox: Mailbox::new(depth as usize), bell: Bell::new().map_err(no_bell)? };
        Ok(Self {
            at_once: AtOnce::new(&*shared.data, shared.meta.as_deref())?,
            shared,
            replies: Arc::new(replies),
            come: VecDeque::new(),
            in_flight: 0,
            listens: false,
            ticks: false,
        })
    }

    /// Sees to it that the ring wakes the channel when something comes, or has come already.
    fn listen(&mut self, ring: &mut Ring) {
        if !self.replies.mailbox.may_sleep(|| false) {
            self.replies.bell.ring();
        }
        if !self.listens {
            match ring.poll(self.replies.bell.as_fd(), POLLIN, Token::channel(BELL)) {
                Ok(()) => self.listens = true,
                Err(_) if self.ticks => {}
                Err(_) => self.ticks = ring.timeout(Token::channel(CLOCK), monotonic() + SOON).is_ok(),
            }
        }
    }

    fn after_write(&self, step: Step) -> Now {
        self.shared.rouse_keeper();
        as_now(step)
    }
}

impl Channel for IntegrityChannel {
    fn read_now(&mut self, offset: u64, data: &mut [u8]) -> Now {
        as_now(self.shared.core.read(&mut self.at_once, offset, data, &mut []))
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Now {
        if self.shared.geometry.tag_size > 0 {
            return Now::Failed(untagged(Kind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.at_once, offset, data, &[]);
        self.after_write(step)
    }

    fn read_tagged_now(&mut self, offset: u64, data: &mut [u8], tags: &mut [u8]) -> Now {
        if self.shared.geometry.tag_size == 0 {
            return Now::Failed(not_kept(Kind::Read, offset));
        }
        as_now(self.shared.core.read(&mut self.at_once, offset, data, tags))
    }

    fn write_tagged_now(&mut self, offset: u64, data: &[u8], tags: &[u8]) -> Now {
        if self.shared.geometry.tag_size == 0 {
            return Now::Failed(not_kept(Kind::Write, offset));
        }
        let step = self.shared.core.write(&mut self.at_once, offset, data, tags);
        // All of it or nothing: what was put into the journal is put there again.
        match self.after_write(step) {
            Now::Blocked(_) => Now::Blocked(0),
            now => now,
        }
    }

    fn start(&mut self, ring: &mut Ring, slot: u32, io: Io) -> Started {
        match self.shared.refused(io, slot) {
            Err(refused) => Started::Finished(refused),
            Ok(io) => {
                if let Some(Job { slot, io, .. }) =
                    self.shared.jobs.push(Job { slot, io, to: self.replies.clone() })
                {
                    let (kind, (offset, _)) = (io.kind(), io.extent());
                    let closed = kind.failed(offset, "the volume is closed", rustix::io::Errno::SHUTDOWN);
                    return Started::Finished(Finished::of(slot, io, Err(closed)));
                }
                self.in_flight += 1;
                self.listen(ring);
                Started::Pending
            }
        }
    }

    /// Nothing in the ring is a request's.
    fn finish(&mut self, _ring: &mut Ring, _token: Token, _result: i32) -> Option<Finished> {
        None
    }

    fn woken(&mut self, ring: &mut Ring, token: Token, _result: i32, over: &mut Vec<Finished>) {
        match token.what() {
            BELL => {
                self.listens = false;
                self.replies.bell.heard();
            }
            _ => self.ticks = false,
        }
        self.replies.mailbox.awake();
        self.replies.mailbox.take(&mut self.come);
        self.in_flight -= self.come.len();
        over.extend(self.come.drain(..));
        if self.in_flight > 0 {
            self.listen(ring);
        }
    }
}

fn not_kept(kind: Kind, offset: u64) -> underseal_device::Error {
    kind.failed(offset, "the volume makes its tags itself", rustix::io::Errno::OPNOTSUPP)
}
