//! One io_uring a queue: the one place where its thread waits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};

use crate::{Error, ErrorKind, Result, monotonic};

/// Tells whose completion it is.
///
/// A device that stands on others may have several operations in flight for one request. Its lower channels see slots
/// of their own, `slot << bits | part`, inside [`Ring::nested`]; the token then tells each of them its own number:
///
/// ```text
///   63     47    39     31              0
///   event   depth  bits  slot of the lowest channel = slot of the queue << bits | parts on the way down
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(u64);

impl Token {
    const EVENT: u64 = 1 << 63;
    const BITS: u32 = 32;
    const DEPTH: u32 = 40;

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
        (self.0 & Self::EVENT == 0).then(|| self.low() >> (self.0 >> Self::BITS & 0x1f))
    }

    /// The token as a lower channel knows it that was started in [`Ring::nested`] with as many `bits`; `None` when the
    /// operation is the channel's own.
    pub fn below(self, bits: u32) -> Option<Self> {
        (self.0 >> Self::DEPTH & 0xff != 0).then(|| Self(self.0 - Self::nesting(bits)))
    }

    fn nesting(bits: u32) -> u64 {
        1 << Self::DEPTH | u64::from(bits) << Self::BITS
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
    /// What the tokens of the channel that is running are marked with.
    nesting: u64,
    /// Timeouts that have not come, the next first: when, and whose. The kernel is told of the next one only.
    timeouts: BinaryHeap<Reverse<(Duration, u64)>>,
    /// Completions that channels made themselves.
    posted: VecDeque<u64>,
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
        Ok(Self { ring, nesting: 0, timeouts: BinaryHeap::new(), posted: VecDeque::new() })
    }

    /// Runs a lower channel whose slots are `slot << bits | part`; the completions come with a token that
    /// [`Token::below`] opens.
    pub fn nested<T>(&mut self, bits: u32, run: impl FnOnce(&mut Self) -> T) -> T {
        let above = self.nesting;
        self.nesting += Token::nesting(bits);
        let result = run(self);
        self.nesting = above;
        result
    }

    /// Gives a completion at `deadline`, a time of [`monotonic`](crate::monotonic), or soon after.
    ///
    /// # Errors
    /// When the kernel (before 5.11) cannot wait for completions and for a time at once.
    pub fn timeout(&mut self, token: Token, deadline: Duration) -> io::Result<()> {
        if !self.has_timeouts() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.timeouts.push(Reverse((deadline, token.0 | self.nesting)));
        Ok(())
    }

    /// Whether the kernel (from 5.11 on) can wait for completions and for a time at once.
    pub fn has_timeouts(&self) -> bool {
        self.ring.params().is_feature_ext_arg()
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

    /// Gives a driver a command of its own (`IORING_OP_URING_CMD`): a completion with `Token::event(number)` brings what it
    /// answers. The descriptor must stay open until then.
    ///
    /// # Errors
    /// When the ring cannot take an operation.
    ///
    /// # Safety
    /// Memory that the command refers to, as its driver understands it, stays valid, and untouched where the driver writes,
    /// until the completion has come.
    pub unsafe fn command(
        &mut self,
        fd: BorrowedFd<'_>,
        operation: u32,
        payload: [u8; 16],
        number: u32,
    ) -> io::Result<()> {
        let command = opcode::UringCmd16::new(types::Fd(fd.as_raw_fd()), operation)
            .cmd(payload)
            .build()
            .user_data(Token::event(number).0);
        // SAFETY: the caller's promise.
        unsafe { self.push(&command) }
    }

    /// Gives a completion with result 0 at once: of a request that ended with another one's completion.
    pub(crate) fn post(&mut self, token: Token) {
        self.posted.push_back(token.0 | self.nesting);
    }

    /// As [`Ring::watch`], for a request to the lower device.
    ///
    /// # Errors
    /// When the ring cannot take an operation.
    pub(crate) fn poll(&mut self, fd: BorrowedFd<'_>, events: i16, token: Token) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.cast_unsigned()))
            .build()
            .user_data(token.0);
        // SAFETY: polling refers to no memory of ours.
        unsafe { self.push(&poll) }
    }

    /// Hands an operation to the kernel at the next `submit` or `wait`.
    ///
    /// # Safety
    /// The memory that the operation refers to stays valid, and untouched where the kernel writes, until its completion
    /// has come.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        let nested;
        let entry = if self.nesting == 0 {
            entry
        } else {
            nested = entry.clone().user_data(entry.get_user_data() | self.nesting);
            &nested
        };
        // SAFETY: the caller's promise.
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// When [`Ring::next_completion`] has something whatever the kernel does; for those who do not wait here.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.posted.is_empty() {
            return Some(Instant::now());
        }
        let &Reverse((deadline, _)) = self.timeouts.peek()?;
        Some(Instant::now() + deadline.saturating_sub(monotonic()))
    }

    /// Gives the kernel what was pushed, without waiting.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter(0, None)
    }

    /// Gives the kernel what was pushed and waits until there is a completion.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait(&mut self) -> io::Result<()> {
        self.enter(1, None)
    }

    /// As [`Ring::wait`], but no longer than until `deadline`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn wait_until(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let limit = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.enter(1, limit)
    }

    fn enter(&mut self, want: usize, limit: Option<Duration>) -> io::Result<()> {
        let want = if self.posted.is_empty() { want } else { 0 };
        loop {
            let next = self.timeouts.peek().filter(|_| want > 0);
            let left = next.map(|&Reverse((deadline, _))| deadline.saturating_sub(monotonic()));
            let entered = match left.into_iter().chain(limit).min() {
                None => self.ring.submit_and_wait(want),
                Some(Duration::ZERO) => self.ring.submit(),
                Some(left) => {
                    let left = types::Timespec::from(left);
                    let until = types::SubmitArgs::new().timespec(&left);
                    self.ring.submitter().submit_with_args(want, &until)
                }
            };
            match entered {
                Ok(_) => return Ok(()),
                // EBUSY: completions overflow; they must be taken out first, and one is there. ETIME: the time has come.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::ETIME)) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// The next completion that has come.
    pub fn next_completion(&mut self) -> Option<Completion> {
        if let Some(token) = self.posted.pop_front() {
            return Some(Completion { token: Token(token), result: 0 });
        }
        if let Some(entry) = self.ring.completion().next() {
            return Some(Completion { token: Token(entry.user_data()), result: entry.result() });
        }
        let &Reverse((deadline, token)) = self.timeouts.peek()?;
        if deadline > monotonic() {
            return None;
        }
        self.timeouts.pop();
        Some(Completion { token: Token(token), result: -libc::ETIME })
    }
}

impl AsFd for Ring {
    /// Readable when there is a completion of the kernel's.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_tokens_tell_each_channel_its_slot() {
        let mut ring = Ring::new(4).unwrap();
        let (outer, inner) = (5u32, (5 << 4 | 3) << 2 | 1);
        let past = monotonic();
        ring.nested(4, |ring| ring.nested(2, |ring| ring.timeout(Token::lower(inner), past))).unwrap();
        ring.timeout(Token::lower(outer), past).unwrap();
        let mut seen = Vec::new();
        while seen.len() < 2 {
            ring.wait().unwrap();
            seen.extend(std::iter::from_fn(|| ring.next_completion()).map(|c| c.token));
        }
        seen.sort_by_key(|t| t.below(4).is_none());
        let second = seen[0].below(4).unwrap();
        let third = second.below(2).unwrap();
        let slots = [seen[0], second, third, seen[1]].map(|t| t.as_lower().unwrap());
        assert_eq!(slots, [outer, outer << 4 | 3, inner, outer]);
        assert_eq!((third, third.below(0)), (Token::lower(inner), None));
    }

    #[test]
    fn timeouts_come_in_their_order_and_not_early() {
        let mut ring = Ring::new(4).unwrap();
        let start = monotonic();
        let deadline = |slot: u32| start + Duration::from_millis(u64::from(slot) * 3);
        // More than the ring takes at a time.
        (0..20).rev().for_each(|slot| ring.timeout(Token::lower(slot), deadline(slot)).unwrap());
        let mut seen = Vec::new();
        while seen.len() < 20 {
            ring.wait().unwrap();
            while let Some(completion) = ring.next_completion() {
                let slot = completion.token.as_lower().unwrap();
                assert!(monotonic() >= deadline(slot));
                assert_eq!(completion.result, -libc::ETIME);
                seen.push(slot);
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..20));
    }
}
