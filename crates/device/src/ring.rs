//! One io_uring a queue: the one place where its thread waits.

mod kernel;
pub mod restrictions;
mod token;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, squeue, types};

use self::kernel::KernelRing;
use self::token::Marks;
pub use self::token::{LowerToken, RingToken};
use crate::{Error, ErrorKind, Result, monotonic};

/// Something that the ring was waiting for.
#[derive(Debug, Clone, Copy)]
pub struct RingCompletion {
    /// Whose.
    pub token: RingToken,
    /// As the system call would have returned: a count, or a negative error number.
    pub result: i32,
}

/// A command for a driver whose commands have 80 bytes.
#[derive(Debug, Clone, Copy)]
pub struct LongCommand<'a> {
    /// The driver's number for it.
    pub operation: u32,
    /// The driver's structure.
    pub payload: [u8; 80],
    /// Memory of the caller's, whose addresses the driver gets.
    pub buffers: &'a [IoSlice<'a>],
}

/// A queue's io_uring.
pub struct Ring {
    ring: KernelRing,
    marks: Marks,
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
        let ring = restrictions::build(entries.next_power_of_two(), true, |_| Ok(()));
        // Kernels before 6.0 do not know the two hints.
        let is_unknown = ring.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL));
        if is_unknown { Self::passed_on(entries) } else { Self::made(ring) }
    }

    /// As [`Ring::new`], for threads that use it one after the other.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn passed_on(entries: u32) -> Result<Self> {
        Self::made(restrictions::build(entries.next_power_of_two(), false, |_| Ok(())))
    }

    /// As [`Ring::new`], for [long commands](Ring::long_command) too. It is for use before the
    /// sandbox.
    ///
    /// # Errors
    /// `Ring` as for [`Ring::new`], and when the kernel, before 6.0, has no rings of this kind.
    pub fn with_long_commands(entries: u32) -> Result<Self> {
        Self::of(restrictions::build_long(entries.next_power_of_two()).map(KernelRing::Long))
    }

    fn made(ring: io::Result<IoUring>) -> Result<Self> {
        Self::of(ring.map(KernelRing::Short))
    }

    fn of(ring: io::Result<KernelRing>) -> Result<Self> {
        let ring = ring.map_err(|e| {
            Error::new(
                ErrorKind::Ring,
                "the kernel gives this process no io_uring (see kernel.io_uring_disabled and the container's seccomp \
                 profile)",
            )
            .with_source(e)
        })?;
        Ok(Self { ring, marks: Marks::default(), timeouts: BinaryHeap::new(), posted: VecDeque::new() })
    }

    /// Runs a lower channel. The completions of its requests come with a token that [`RingToken::below`] opens, what it waits for by
    /// itself with one that [`RingToken::fork`] opens.
    pub fn nested<T>(&mut self, below: LowerToken, run: impl FnOnce(&mut Self) -> T) -> T {
        self.marked(self.marks.below(below), run)
    }

    /// Runs the `number`th of a queue's channels: what it waits for by itself comes with a token that tells the number
    /// ([`RingToken::as_channel`]). Who has one channel only need not say so.
    pub fn channel<T>(&mut self, number: usize, run: impl FnOnce(&mut Self) -> T) -> T {
        self.marked(Marks::of_channel(number), run)
    }

    fn marked<T>(&mut self, marks: Marks, run: impl FnOnce(&mut Self) -> T) -> T {
        let above = std::mem::replace(&mut self.marks, marks);
        let result = run(self);
        self.marks = above;
        result
    }

    /// Gives a completion at `deadline`, a time of [`monotonic`](crate::monotonic), or soon after.
    ///
    /// # Errors
    /// When the kernel (before 5.11) cannot wait for completions and for a time at once.
    pub fn timeout(&mut self, token: RingToken, deadline: Duration) -> io::Result<()> {
        if !self.has_timeouts() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        self.timeouts.push(Reverse((deadline, self.marks.mark(token).0)));
        Ok(())
    }

    /// Whether the kernel (from 5.11 on) can wait for completions and for a time at once.
    pub fn has_timeouts(&self) -> bool {
        self.ring.params().is_feature_ext_arg()
    }

    /// Watches a descriptor once: a completion with `RingToken::event(number)` comes when one of `events` (poll(2) bits)
    /// holds. The descriptor must stay open until then.
    ///
    /// # Errors
    /// When the ring cannot take an operation.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: i16, number: u32) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.cast_unsigned()))
            .build()
            .user_data(RingToken::event(number).0);
        // SAFETY: polling refers to no memory of ours.
        unsafe { self.push(&poll) }
    }

    /// Gives a driver a command of its own (`IORING_OP_URING_CMD`): a completion with `RingToken::event(number)` brings what it
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
            .user_data(RingToken::event(number).0);
        // SAFETY: the caller's promise.
        unsafe { self.push(&command) }
    }

    /// As [`command`](Ring::command), for a driver whose commands have 80 bytes.
    ///
    /// # Errors
    /// When the ring cannot take an operation, or was not made [for such
    /// commands](Ring::with_long_commands).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn long_command(
        &mut self,
        fd: BorrowedFd<'_>,
        command: &LongCommand<'_>,
        number: u32,
    ) -> io::Result<()> {
        let LongCommand { operation, payload, buffers } = *command;
        let built = opcode::UringCmd80::new(types::Fd(fd.as_raw_fd()), operation).cmd(payload);
        let built = built.addr(Some(buffers.as_ptr().addr() as u64)).build();
        let mut entry = built.user_data(RingToken::event(number).0);
        // `len` of `struct io_uring_sqe`, which the library does not set for commands.
        const LEN: usize = 24;
        // SAFETY: an entry is the kernel's structure of 128 bytes, and nothing else.
        unsafe { (&raw mut entry).cast::<u8>().add(LEN).cast::<u32>().write(buffers.len() as u32) };
        // SAFETY: the caller's promise.
        if !unsafe { self.ring.push_long(&entry) } {
            self.submit()?;
            // SAFETY: as above.
            if !unsafe { self.ring.push_long(&entry) } {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
        }
        // The list of buffers is the caller's, and is read when the command is submitted.
        if buffers.is_empty() { Ok(()) } else { self.submit() }
    }

    /// Gives a completion with result 0 at once.
    pub fn post(&mut self, token: RingToken) {
        self.posted.push_back(self.marks.mark(token).0);
    }

    /// As [`Ring::watch`], for a channel.
    ///
    /// # Errors
    /// When the ring cannot take an operation.
    pub fn poll(&mut self, fd: BorrowedFd<'_>, events: i16, token: RingToken) -> io::Result<()> {
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
        let marked = self.marks.mark(RingToken(entry.get_user_data())).0;
        let nested;
        let entry = if marked == entry.get_user_data() {
            entry
        } else {
            nested = entry.clone().user_data(marked);
            &nested
        };
        // SAFETY: the caller's promise.
        if unsafe { self.ring.push(entry) } {
            return Ok(());
        }
        self.submit()?;
        // SAFETY: as above.
        let pushed = unsafe { self.ring.push(entry) };
        if pushed { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EBUSY)) }
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
        if self.ring.has_submitted_all() {
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
    pub fn next_completion(&mut self) -> Option<RingCompletion> {
        if let Some(token) = self.posted.pop_front() {
            return Some(RingCompletion { token: RingToken(token), result: 0 });
        }
        if let Some(entry) = self.ring.completion().next() {
            return Some(RingCompletion { token: RingToken(entry.user_data()), result: entry.result() });
        }
        let &Reverse((deadline, token)) = self.timeouts.peek()?;
        if deadline > monotonic() {
            return None;
        }
        self.timeouts.pop();
        Some(RingCompletion { token: RingToken(token), result: -libc::ETIME })
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
        let (first, then) = (LowerToken::new(4, 0, 1), LowerToken::new(2, 0, 1));
        ring.nested(first, |ring| ring.nested(then, |ring| ring.timeout(RingToken::lower(inner), past)))
            .unwrap();
        ring.timeout(RingToken::lower(outer), past).unwrap();
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
        assert_eq!((third, third.below(0)), (RingToken::lower(inner), None));
    }

    #[test]
    fn tokens_of_its_own_find_each_channel() {
        let mut ring = Ring::new(4).unwrap();
        // A queue's fifth channel: a stripe of three, the last of which is a model of a stripe of two.
        let own = |what: u8| move |ring: &mut Ring| ring.post(RingToken::channel(what));
        ring.channel(4, |ring| {
            own(1)(ring);
            ring.nested(LowerToken::new(4, 2, 3), |ring| {
                own(2)(ring);
                ring.nested(LowerToken::ONLY, |ring| {
                    own(3)(ring);
                    ring.nested(LowerToken::new(4, 1, 2), own(63));
                });
                ring.post(RingToken::lower(7 << 4));
            });
        });
        own(5)(&mut ring);
        let mut tokens = std::iter::from_fn(|| ring.next_completion()).map(|c| c.token);
        let mut next = || tokens.next().unwrap();
        let first = next();
        assert_eq!((first.as_channel(), first.what(), first.fork(3)), (Some(4), 1, None));
        let (number, second) = next().fork(3).unwrap();
        assert_eq!((number, second.what(), second.fork(1)), (2, 2, None));
        let (number, third) = next().fork(3).unwrap().1.fork(1).unwrap();
        assert_eq!((number, third.what(), third.fork(2)), (0, 3, None));
        let (number, fourth) = next().fork(3).unwrap().1.fork(1).unwrap().1.fork(2).unwrap();
        assert_eq!((number, fourth.what(), fourth.fork(1)), (1, 63, None));
        assert_eq!((fourth.as_lower(), fourth.as_event(), fourth.as_channel()), (None, None, Some(4)));
        let request = next();
        assert_eq!((request.as_channel(), request.as_lower()), (None, Some(7)));
        assert_eq!((next().as_channel(), tokens.next()), (Some(0), None));
    }

    #[test]
    fn timeouts_come_in_their_order_and_not_early() {
        let mut ring = Ring::new(4).unwrap();
        let start = monotonic();
        let deadline = |slot: u32| start + Duration::from_millis(u64::from(slot) * 3);
        // More than the ring takes at a time.
        (0..20).rev().for_each(|slot| ring.timeout(RingToken::lower(slot), deadline(slot)).unwrap());
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
