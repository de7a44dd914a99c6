//! Where a queue's thread waits: in its ring, or in an event loop of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use underseal_device::{POLLIN, Ring};

use super::{BELL, Queue};
use crate::post::QueueMessage;

/// How long a queue has nothing to do until it gives the memory of large requests back.
const IDLE: Duration = Duration::from_secs(1);

/// Whether a queue's thread may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepDecision {
    /// Not now: there is something to [`poll`](Queue::poll) for.
    None,
    /// Until its descriptor is readable.
    Ready,
    /// Until its descriptor is readable, or it is so late.
    Until(Instant),
}

impl Queue {
    /// Waits until a request in flight moves on or a watched descriptor becomes ready.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait(&mut self) -> io::Result<()> {
        if self.has_something_to_do() {
            return self.poll();
        }
        let mut idle = None;
        if self.may_sleep() {
            idle = self.idle_until();
            let waited = self.ring.wait_until(idle);
            self.post.awake();
            waited?;
        }
        self.woke(idle);
        self.reap();
        Ok(())
    }

    /// Hands over to the kernel what was started, and takes what has come back, without waiting.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn poll(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.rests) {
            self.post.awake();
            self.woke(self.idle_until());
        }
        self.ring.submit()?;
        self.reap();
        Ok(())
    }

    /// Looks for completions and messages, as a thread does that would sleep otherwise. True when
    /// there is something to do.
    ///
    /// # Errors
    /// When the kernel refuses the ring's system call.
    pub fn look(&mut self) -> io::Result<bool> {
        let found = self.has_something_to_do();
        self.ring.look()?;
        self.reap();
        Ok(found || !self.ready.is_empty() || !self.events.is_empty())
    }

    /// For how long its thread looks before it sleeps, at most.
    pub fn busy_poll(&self) -> Duration {
        self.mapping.busy_poll()
    }

    /// Gets ready to wait elsewhere than in [`wait`](Queue::wait): in an event loop that this queue
    /// is a part of. Does what can be done, hands over what was started, and says how long the loop
    /// may wait for the queue's descriptor (poll(2) for reading; every other way to wait for one
    /// will do). After that comes [`poll`](Queue::poll), whatever ended the wait, and completions
    /// are taken, before anything else.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn rest(&mut self) -> io::Result<SleepDecision> {
        let busy = self.has_something_to_do() || !self.ready.is_empty() || !self.events.is_empty();
        self.ring.submit()?;
        if busy || !self.may_sleep() {
            return Ok(SleepDecision::None);
        }
        self.rests = true;
        let deadline = [self.idle_until(), self.ring.next_deadline()];
        Ok(deadline.into_iter().flatten().min().map_or(SleepDecision::Ready, SleepDecision::Until))
    }

    /// Something came of looking around, or will.
    fn has_something_to_do(&mut self) -> bool {
        let ended = self.ready.len();
        self.refresh();
        self.settle();
        // What a resumed volume lets go on may be over at once.
        self.ready.len() != ended
            || !self.long_zeros.is_empty()
            || self.work_on_backlog()
            || self.take_surplus_back()
    }

    /// Whoever sends something from now on wakes this thread.
    fn may_sleep(&self) -> bool {
        let (control, version) = (self.mapping.control(), self.settings.version);
        self.post.may_sleep(|| control.version() != version)
    }

    /// When it has had nothing to do for so long that it gives memory for large requests back, if
    /// it has any.
    fn idle_until(&self) -> Option<Instant> {
        let swollen = self.requests == 0 && self.arena.is_swollen() && self.ring.has_timeouts();
        swollen.then(|| self.now + IDLE)
    }

    /// The thread has slept; `idle` may have come.
    fn woke(&mut self, idle: Option<Instant>) {
        self.now = Instant::now();
        if idle.is_some_and(|end| end <= self.now) {
            self.arena.shrink();
        }
    }

    /// Takes what has come.
    pub(super) fn reap(&mut self) {
        while let Some(completion) = self.ring.next_completion() {
            if completion.token.as_event() == Some(BELL) {
                self.post.heard();
                // Without a bell nobody could wake this thread: then it looks for letters whenever
                // it wakes.
                if let Err(e) = self.ring.watch(self.post.bell(), POLLIN, BELL) {
                    log::error!("a queue's bell cannot be watched: {e}");
                }
                continue;
            }
            if let Some(device) = completion.token.as_channel() {
                let (channel, mut over) = (&mut self.channels[device], std::mem::take(&mut self.over));
                let wake =
                    |ring: &mut Ring| channel.woken(ring, completion.token, completion.result, &mut over);
                self.ring.channel(device, wake);
                over.drain(..).for_each(|done| self.finished(done));
                self.over = over;
                continue;
            }
            let Some(index) = completion.token.as_lower() else {
                self.events.extend(completion.token.as_event().map(|number| (number, completion.result)));
                continue;
            };
            let device = self.slots.get(index).device;
            let channel = &mut self.channels[device];
            let finish = |ring: &mut Ring| channel.finish(ring, completion.token, completion.result);
            if let Some(done) = self.ring.channel(device, finish) {
                self.finished(done);
            }
        }
        self.refresh();
        self.read_letters();
        self.write_long_zeros();
        self.settle();
    }

    pub(super) fn read_letters(&mut self) {
        self.post.take(&mut self.letters);
        while let Some(letter) = self.letters.pop_front() {
            match letter {
                QueueMessage::Task(task) => self.task_over(task),
                QueueMessage::Look => {
                    self.mapping.control().has_looked(&self.post, self.slots.oldest_below())
                }
                QueueMessage::Granted(index) => {
                    // Who had the sectors may have moved them.
                    self.renew();
                    self.begin(index);
                }
            }
        }
    }
}

impl AsFd for Queue {
    /// Readable when there is something to [`poll`](Queue::poll) for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
