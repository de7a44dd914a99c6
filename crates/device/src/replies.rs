//! What other threads answer to a channel, whose own thread sleeps in its ring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{Mailbox, POLLIN, Ring, RingToken, Wakeup, monotonic};

/// What a channel is woken for: an answer is there, or it is time to try again to listen for one.
const BELL: u8 = 0;
const CLOCK: u8 = 1;
/// How soon to try again, when the ring was full.
const SOON: Duration = Duration::from_millis(10);

/// Where a channel's answers are sent, by any thread, also when the channel has gone.
pub struct ReplySender<T> {
    mailbox: Mailbox<T>,
    bell: Wakeup,
}

impl<T> ReplySender<T> {
    /// Sends an answer. It waits for nobody.
    pub fn send(&self, reply: T) {
        if self.mailbox.send(reply) {
            self.bell.ring();
        }
    }
}

/// The channel's own side: the answers that it waits for. It takes the [tokens](RingToken::channel)
/// 0 and 1.
pub struct ReplyReceiver<T> {
    replies: Arc<ReplySender<T>>,
    come: VecDeque<T>,
    count: usize,
    /// The next answer rings the bell, or one has.
    expects: bool,
    /// The ring waits for the bell, or for a time to try that again.
    listens: bool,
    ticks: bool,
}

impl<T> ReplyReceiver<T> {
    /// For `depth` answers at a time.
    ///
    /// # Errors
    /// When the system has no descriptor for the bell.
    pub fn new(depth: u32) -> io::Result<Self> {
        let replies = Arc::new(ReplySender { mailbox: Mailbox::new(depth as usize), bell: Wakeup::new()? });
        let come = VecDeque::with_capacity(depth as usize);
        Ok(Self { replies, come, count: 0, expects: false, listens: false, ticks: false })
    }

    /// Where they are sent.
    pub fn replies(&self) -> Arc<ReplySender<T>> {
        self.replies.clone()
    }

    /// One more is on its way.
    pub fn expect(&mut self, ring: &mut Ring) {
        self.count += 1;
        self.listen(ring);
    }

    /// What has come, when the ring has woken the channel.
    pub fn woken(&mut self, ring: &mut Ring, token: RingToken) -> impl Iterator<Item = T> + use<'_, T> {
        match token.what() {
            BELL => {
                self.listens = false;
                self.expects = false;
                self.replies.bell.heard();
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

    /// Sees to it that the ring wakes the channel when something comes, or has come already. One
    /// ring of the bell is enough for all that comes until then.
    fn listen(&mut self, ring: &mut Ring) {
        if !std::mem::replace(&mut self.expects, true) && !self.replies.mailbox.may_sleep(|| false) {
            self.replies.bell.ring();
        }
        if !self.listens {
            match ring.poll(self.replies.bell.as_fd(), POLLIN, RingToken::channel(BELL)) {
                Ok(()) => self.listens = true,
                Err(_) if self.ticks => {}
                Err(_) => self.ticks = ring.timeout(RingToken::channel(CLOCK), monotonic() + SOON).is_ok(),
            }
        }
    }
}
