//! Signals another process's event descriptor without ever waiting.

#![expect(unsafe_code, reason = "an eventfd that another process made")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use io_uring::{IoUring, opcode};

use crate::ring::restrictions;

/// An eventfd(2) whose owner is to be woken.
///
/// write(2) waits while the counter is full, unless the descriptor is non-blocking, which its owner
/// may change at any moment. The kernel itself never waits when it signals an eventfd, so a ring
/// does it, which reports its completions to the descriptor, and has no other operations. That
/// costs one system call, as write(2) does.
pub struct Signal {
    ring: IoUring,
}

impl Signal {
    /// Makes a signal for this eventfd, which stays the owner's.
    ///
    /// # Errors
    /// The kernel's: the descriptor is no eventfd, or no ring is available.
    pub fn new(event: impl AsFd) -> io::Result<Self> {
        let event = event.as_fd().as_raw_fd();
        let ring = restrictions::build((1, 0), false, |ring| ring.submitter().register_eventfd(event))?;
        Ok(Self { ring })
    }

    /// Adds one to the counter; a full counter stays full.
    ///
    /// # Errors
    /// When the kernel has no memory.
    pub fn send(&mut self) -> io::Result<()> {
        // An entry that was not submitted before is still in the queue, and serves as well.
        // SAFETY: the operation refers to no memory.
        let _ = unsafe { self.ring.submission().push(&opcode::Nop::new().build()) };
        loop {
            match self.ring.submit() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                sent => {
                    self.ring.completion().for_each(drop);
                    return sent.map(drop);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn count(event: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn every_signal_counts() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut signal = Signal::new(&event).unwrap();
        for n in 1..100 {
            (0..n).for_each(|_| signal.send().unwrap());
            assert_eq!(count(&event), n);
        }
    }

    #[test]
    fn a_full_counter_holds_nobody_up() {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut signal = Signal::new(&event).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..10).for_each(|_| signal.send().unwrap());
        assert!(count(&event) >= u64::MAX - 1);
        signal.send().unwrap();
        assert_eq!(count(&event), 1);
    }

    #[test]
    fn what_is_no_event_descriptor_is_refused() {
        let file = tempfile::tempfile().unwrap();
        assert!(Signal::new(&file).is_err());
    }
}
