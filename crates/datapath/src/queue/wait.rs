//! A queue's thread waits in the queue's ring, or in another event loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use underseal_device::{POLLIN, Ring};

use super::{Queue, WAKEUP};
use crate::inbox::QueueMessage;

/// The idle time after which a queue frees the memory of large requests.
const IDLE: Duration = Duration::from_secs(1);

/// Whether a queue's thread may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepDecision {
    /// The thread must not sleep: there is work for [`poll`](Queue::poll).
    None,
    /// Until the queue's descriptor is readable.
    Ready,
    /// Until the queue's descriptor is readable, or until this time.
    Until(Instant),
}

impl Queue {
    /// Waits until a request in flight moves on or a watched descriptor becomes ready.
    ///
    /// # Errors
    /// The kernel's, when it refuses the ring's system call.
    pub fn wait(&mut self) -> io::Result<()> {
        if self.has_something_to_do() {
            return self.poll();
        }
        let mut idle = None;
        if self.may_sleep() {
            idle = self.idle_until();
            let waited = self.ring.wait_until(idle);
            self.inbox.awake();
            waited?;
        }
        self.woke(idle);
        self.reap();
        Ok(())
    }

    /// Submits started I/O to the kernel, and takes completions, without waiting.
    ///
    /// # Errors
    /// The kernel's, when it refuses the ring's system call.
    pub fn poll(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.rests) {
            self.inbox.awake();
            self.woke(self.idle_until());
        }
        self.ring.submit()?;
        self.reap();
        Ok(())
    }

    /// Looks for completions and messages, as a thread does that would sleep otherwise. True when
    /// there is work.
    ///
    /// # Errors
    /// The kernel's, when it refuses the ring's system call.
    pub fn look(&mut self) -> io::Result<bool> {
        let found = self.has_something_to_do();
        self.ring.look()?;
        self.reap();
        Ok(found || !self.ready.is_empty() || !self.events.is_empty())
    }

    /// The longest time for which the queue's thread looks before it sleeps.
    pub fn busy_poll(&self) -> Duration {
        self.mapping.busy_poll()
    }

    /// Prepares the queue for a wait in another event loop. Does all possible work, submits started
    /// I/O, and returns how long the loop may wait for the queue's descriptor (poll(2) for reading,
    /// or an equivalent). After the wait, whatever ended it, the loop calls [`poll`](Queue::poll)
    /// and takes completions before anything else.
    ///
    /// # Errors
    /// The kernel's, when it refuses the ring's system call.
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

    /// Sets the function that wakes the thread from [`sleep_in`](Self::sleep_in). Other threads
    /// call it when the thread sleeps, there or in the ring.
    pub fn set_outside_wakeup(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.inbox.set_outside_wakeup(Box::new(wake));
    }

    /// Frees the memory of large requests that are over, as a [`wait`](Queue::wait) does after a
    /// time.
    pub fn shrink(&mut self) {
        if self.arena.is_swollen() {
            self.arena.shrink();
        }
    }

    /// Lets the thread of an idle queue sleep in `sleep`, which the [outside
    /// wakeup](Self::set_outside_wakeup) ends.
    /// Returns `None`, without that call, when a request is in flight, when a lower device waits
    /// for an event of its own, or when there is work for [`poll`](Queue::poll).
    pub fn sleep_in<T>(&mut self, sleep: impl FnOnce() -> T) -> Option<T> {
        let busy = self.requests > 0
            || !self.ring.serves_no_channel()
            || self.has_something_to_do()
            || !self.ready.is_empty()
            || !self.events.is_empty();
        if busy || !self.may_sleep() {
            return None;
        }
        let slept = sleep();
        self.inbox.awake();
        self.tick();
        Some(slept)
    }

    /// True when there was work, or when there is more.
    fn has_something_to_do(&mut self) -> bool {
        let ended = self.ready.len();
        self.refresh();
        self.settle();
        // Requests that a resume lets begin may complete at once.
        self.ready.len() != ended
            || !self.long_zeros.is_empty()
            || self.work_on_backlog()
            || self.take_surplus_back()
    }

    /// From now on a message from another thread wakes this thread.
    fn may_sleep(&self) -> bool {
        let (control, version) = (self.mapping.control(), self.settings.version);
        self.inbox.may_sleep(|| control.version() != version)
    }

    /// The time at which an idle queue frees memory for large requests, if it has any.
    fn idle_until(&self) -> Option<Instant> {
        let swollen = self.requests == 0 && self.arena.is_swollen() && self.ring.has_timeouts();
        swollen.then(|| self.now + IDLE)
    }

    /// Notes the end of a sleep, at or before `idle`.
    fn woke(&mut self, idle: Option<Instant>) {
        self.now = Instant::now();
        if idle.is_some_and(|end| end <= self.now) {
            self.arena.shrink();
        }
    }

    /// Takes completions and messages.
    pub(super) fn reap(&mut self) {
        while let Some(completion) = self.ring.next_completion() {
            if completion.token.as_event() == Some(WAKEUP) {
                self.inbox.heard();
                // Without the wakeup no other thread can wake this one: it then looks for messages
                // whenever it wakes.
                if let Err(e) = self.ring.watch(self.inbox.wakeup(), POLLIN, WAKEUP) {
                    log::error!("a queue's wakeup cannot be watched: {e}");
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
        self.inbox.take(&mut self.messages);
        while let Some(message) = self.messages.pop_front() {
            match message {
                QueueMessage::Task(task) => self.task_over(task),
                QueueMessage::Look => {
                    self.mapping.control().has_looked(&self.inbox, self.slots.oldest_below())
                }
                QueueMessage::Granted(index) => {
                    // The previous holder may have been a range mover, which changes the settings.
                    self.renew();
                    self.begin(index);
                }
            }
        }
    }
}

impl AsFd for Queue {
    /// Readable when there is work for [`poll`](Queue::poll).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }
}
