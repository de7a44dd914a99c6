//! One io_uring a queue: the one place where its thread waits.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant;

use io_uring::{IoUring, opcode, squeue, types};

use crate::{Error, ErrorKind, Result};

/// Tells whose completion it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(u64);

impl Token {
    const EVENT: u64 = 1 << 63;

    /// A request to the lower device, by its slot.
    pub fn lower(slot: u32) -> Self {
        Self(u64::from(slot))
    }

    /// An event on a descriptor that the ring watches, by the watcher's own number.
    pub fn event(number: u32) -> Self {
        Self(u64::from(number) | Self::EVENT)
    }

    /// The event's number, if it is one.
    pub fn as_event(self) -> Option<u32> {
        (self.0 & Self::EVENT != 0).then_some(self.low())
    }

    /// The slot, if it is a request to the lower device.
    pub fn as_lower(self) -> Option<u32> {
        (self.0 & Self::EVENT == 0).then_some(self.low())
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is the number")]
    fn low(self) -> u32 {
        self.0 as u32
    }
}

/// Something that the ring was waiting for.
#[derive(Debug, Clone, Copy)]
pub struct Completion {
    /// Whose.
    pub token: Token,
    /// As the system call would have returned: a count, or a negative error number.
    pub result: i32,
}

/// A queue's io_uring.
pub struct Ring {
    ring: IoUring,
}

impl Ring {
    /// A ring for up to `entries` operations at a time. It belongs to the thread that makes it.
    ///
    /// # Errors
    /// `Ring` when the kernel has none (before 5.6), or a sandbox or `kernel.io_uring_disabled` forbids it.
    pub fn new(entries: u32) -> Result<Self> {
        let entries = entries.next_power_of_two();
        let mut builder = IoUring::builder();
        // Completions are handled when this thread enters the kernel anyway, instead of by interrupting it.
        builder.setup_clamp().setup_coop_taskrun().setup_single_issuer();
        let ring = builder.build(entries).or_else(|e| match e.raw_os_error() {
            // Kernels before 6.0 do not know the two hints.
            Some(libc::EINVAL) => IoUring::builder().setup_clamp().build(entries),
            _ => Err(e),
        });
        let ring = ring.map_err(|e| {
            Error::new(
                ErrorKind::Ring,
                "the kernel gives this process no io_uring (see kernel.io_uring_disabled and the container's seccomp \
                 profile)",
            )
            .with_source(e)
        })?;
        Ok(Self { ring })
    }

    /// Watches a descriptor once: a completion with `Token::event(number)` comes when one of `events` (poll(2) bits)
    /// holds. The descriptor must stay open until then.
    ///
    /// # Errors
    /// When the ring cannot take an operation.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: i16, number: u32) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.cast_unsigned()))
            .build()
            .user_data(Token::event(number).0);
        // SAFETY: polling refers to no memory of ours.
        unsafe { self.push(&poll) }
    }

    /// Hands an operation to the kernel at the next `submit` or `wait`.
    ///
    /// # Safety
    /// The memory that the operation refers to stays valid, and untouched where the kernel writes, until its completion
    /// has come.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Gives the kernel what was pushed, without waiting.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter(0)
    }

    /// Gives the kernel what was pushed and waits until there is a completion.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait(&mut self) -> io::Result<()> {
        self.enter(1)
    }

    /// As [`Ring::wait`], but no longer than until `deadline`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait_until(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let Some(deadline) = deadline else { return self.wait() };
        let left = types::Timespec::from(deadline.saturating_duration_since(Instant::now()));
        let args = types::SubmitArgs::new().timespec(&left);
        match self.ring.submitter().submit_with_args(1, &args) {
            Ok(_) => Ok(()),
            Err(e) if matches!(e.raw_os_error(), Some(libc::ETIME | libc::EBUSY | libc::EINTR)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn enter(&mut self, want: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) => return Ok(()),
                // EBUSY: completions overflow; they must be taken out first, and one is there.
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The next completion that has come.
    pub fn next_completion(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        Some(Completion { token: Token(entry.user_data()), result: entry.result() })
    }
}
