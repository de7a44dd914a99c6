//! Replies of other threads to a channel whose thread sleeps in its ring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{Mailbox, POLLIN, Ring, RingToken, Wakeup, monotonic};

/// Events of a channel: a reply has come, or it is time to listen again.
const WAKEUP: u8 = 0;
const CLOCK: u8 = 1;
/// The delay before the next try, when the ring was full.
const SOON: Duration = Duration::from_millis(10);

/// Sends a channel's replies, from any thread, also after the channel was closed.
pub struct ReplySender<T> {
    mailbox: Mailbox<T>,
    wakeup: Wakeup,
}

impl<T> ReplySender<T> {
    /// Sends a reply, without waiting.
    pub fn send(&self, reply: T) {
        if self.mailbox.send(reply) {
            self.wakeup.ring();
        }
    }
}

/// The channel's side: the replies that it waits for. It uses the [tokens](RingToken::channel) 0
/// and 1.
pub struct ReplyReceiver<T> {
    replies: Arc<ReplySender<T>>,
    come: VecDeque<T>,
    count: usize,
    /// The next reply triggers the wakeup, or one has.
    expects: bool,
    /// The ring watches the wakeup, or waits for the next try to do so.
    listens: bool,
    ticks: bool,
}

impl<T> ReplyReceiver<T> {
    /// Makes a receiver for `depth` replies at a time.
    ///
    /// # Errors
    /// The system's, when it has no descriptor for the wakeup.
    pub fn new(depth: u32) -> io::Result<Self> {
        let replies = Arc::new(ReplySender { mailbox: Mailbox::new(depth as usize), wakeup: Wakeup::new()? });
        let come = VecDeque::with_capacity(depth as usize);
        Ok(Self { replies, come, count: 0, expects: false, listens: false, ticks: false })
    }

    /// The sender of the replies.
    pub fn replies(&self) -> Arc<ReplySender<T>> {
        self.replies.clone()
    }

    /// Notes that another reply will come.
    pub fn expect(&mut self, ring: &mut Ring) {
        self.count += 1;
        self.listen(ring);
    }

    /// The replies that have come, when the ring has woken the channel.
    pub fn woken(&mut self, ring: &mut Ring, token: RingToken) -> impl Iterator<Item = T> + use<'_, T> {
        match token.what() {
            WAKEUP => {
                self.listens = false;
                self.expects = false;
                self.replies.wakeup.heard();
            }
            _ => self.ticks = false,
        }
        self.replies.mailbox.take(&mut self.come);
        self.count -= self.come.len();
        if self.count > 0 {
            self.listen(ring);
        }
        self.come.drain(..)
    }

    /// Makes the ring wake the channel for the next reply, or for those that have come already. One
    /// wakeup serves all replies that come until then.
    fn listen(&mut self, ring: &mut Ring) {
        if !std::mem::replace(&mut self.expects, true) && !self.replies.mailbox.may_sleep(|| false) {
            self.replies.wakeup.ring();
        }
        if !self.listens {
            match ring.poll(self.replies.wakeup.as_fd(), POLLIN, RingToken::channel(WAKEUP)) {
                Ok(()) => self.listens = true,
                Err(_) if self.ticks => {}
                Err(_) => self.ticks = ring.timeout(RingToken::channel(CLOCK), monotonic() + SOON).is_ok(),
            }
        }
    }
}
