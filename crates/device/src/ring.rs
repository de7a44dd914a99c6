//! One io_uring a queue: the one place where its thread waits.

pub mod restrictions;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::{Error, ErrorKind, Result, monotonic};

/// Tells whose completion it is.
///
/// A device that stands on others may have several operations in flight for one request. Its lower channels see slots
/// of their own, `slot << bits | part`, inside [`Ring::nested`]; the token then tells each of them its own number. What a
/// channel waits for by itself belongs to no request: its token leads to the channel, as a number at each fork of the way down.
///
/// ```text
///   63 62     54          37     32                 0
///   1  0      the number of an event
///   0  0      depth       bits   slot of the lowest channel = slot of the queue << bits | parts on the way down
///   0  1      depth  |  forks of the way (28 bits)  |  the queue's channel (20)  |  what it waits for (6)
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingToken(u64);

impl RingToken {
    const EVENT: u64 = 1 << 63;
    const CHANNEL: u64 = 1 << 62;
    const DEPTH: u32 = 54;
    const BITS: u32 = 32;
    /// Of a channel's token: where the way down begins, the queue's channel, and what that waits for.
    const FORKS: u32 = 26;
    const OWNER: u32 = 6;
    const WHAT: u64 = 0x3f;

    /// A request to the lower device, by its slot.
    pub fn lower(slot: u32) -> Self {
        Self(u64::from(slot))
    }

    /// Something that a channel waits for by itself, by the channel's own number for it (0 to 63).
    pub fn channel(what: u8) -> Self {
        Self(Self::CHANNEL | u64::from(what) & Self::WHAT)
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
        let is_lower = self.0 & (Self::EVENT | Self::CHANNEL) == 0;
        is_lower.then(|| self.low() >> (self.0 >> Self::BITS & 0x1f))
    }

    /// Which of the queue's channels is woken by it, as [`Ring::channel`] was told, if it is something that one waits for by itself.
    pub fn as_channel(self) -> Option<usize> {
        let channel = self.0 >> Self::OWNER & 0xf_ffff;
        (self.0 & Self::CHANNEL != 0).then_some(usize::try_from(channel).unwrap_or(usize::MAX))
    }

    /// What a channel has waited for.
    pub fn what(self) -> u8 {
        (self.0 & Self::WHAT) as u8
    }

    /// The token as a lower channel knows it that was started in [`Ring::nested`] with as many `bits`; `None` when the
    /// operation is the channel's own.
    pub fn below(self, bits: u32) -> Option<Self> {
        (self.depth() != 0).then(|| Self(self.0 - Self::nesting(bits)))
    }

    /// Which of `of` lower channels is woken, and the token as that one knows it; `None` when it is the channel itself.
    pub fn fork(self, of: usize) -> Option<(usize, Self)> {
        let bits = LowerToken::fork_bits(of);
        let forks = (self.0 & ((1 << Self::DEPTH) - 1)) >> Self::FORKS & ((1 << 28) - 1);
        let low = self.0 & ((1 << Self::FORKS) - 1);
        let head = (self.0 >> Self::DEPTH).checked_sub(1).filter(|_| self.depth() != 0)?;
        let number = usize::try_from(forks & ((1 << bits) - 1)).ok()?;
        Some((number, Self(head << Self::DEPTH | forks >> bits << Self::FORKS | low)))
    }

    fn depth(self) -> u64 {
        self.0 >> Self::DEPTH & 0xff
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

/// One of a channel's lower channels, as a token finds it again.
#[derive(Debug, Clone, Copy)]
pub struct LowerToken {
    bits: u32,
    number: usize,
    of: usize,
}

impl LowerToken {
    /// The only one, whose slots are those of the channel above.
    pub const ONLY: Self = Self { bits: 0, number: 0, of: 1 };

    /// The `number`th of so many, whose slots are `slot << bits | part`. The numbers on the way down to a channel that waits for
    /// something by itself have 28 bits together.
    pub fn new(bits: u32, number: usize, of: usize) -> Self {
        Self { bits, number, of }
    }

    fn fork_bits(of: usize) -> u32 {
        usize::BITS - of.saturating_sub(1).leading_zeros()
    }
}

/// What the tokens of the channel that is running are marked with.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    /// A request's.
    slots: u64,
    /// The channel's own, and how many bits of forks are in it.
    own: u64,
    forks: u32,
}

impl Marks {
    fn below(self, below: LowerToken) -> Self {
        let forks = self.forks + LowerToken::fork_bits(below.of);
        debug_assert!(RingToken::FORKS + forks <= RingToken::DEPTH, "the way down is too long for a token");
        let fork = (below.number as u64) << (RingToken::FORKS + self.forks);
        Self {
            slots: self.slots + RingToken::nesting(below.bits),
            own: self.own + (1 << RingToken::DEPTH) + fork,
            forks,
        }
    }

    fn mark(self, token: RingToken) -> RingToken {
        let mark = if token.0 & RingToken::CHANNEL == 0 { self.slots } else { self.own };
        RingToken(token.0 | mark)
    }
}

/// Something that the ring was waiting for.
#[derive(Debug, Clone, Copy)]
pub struct RingCompletion {
    /// Whose.
    pub token: RingToken,
    /// As the system call would have returned: a count, or a negative error number.
    pub result: i32,
}

impl From<cqueue::Entry> for RingCompletion {
    fn from(entry: cqueue::Entry) -> Self {
        Self { token: RingToken(entry.user_data()), result: entry.result() }
    }
}

/// A queue's io_uring.
pub struct Ring {
    ring: IoUring,
    marks: Marks,
    /// Timeouts that have not come, the next first: when, and whose. The kernel is told of the next one only.
    timeouts: BinaryHeap<Reverse<(Duration, u64)>>,
    /// Completions that channels made themselves, or that were taken from the kernel to make room
    /// there.
    taken: VecDeque<RingCompletion>,
}

impl Ring {
    /// A ring for up to `entries` operations at a time. It belongs to the thread that makes it.
    ///
    /// # Errors
    /// `Ring` when the kernel has none (before 5.6), or a sandbox or `kernel.io_uring_disabled` forbids it.
    pub fn new(entries: u32) -> Result<Self> {
        Self::with_completions(entries, 0)
    }

    /// As [`Ring::new`], with room for as many completions that were not taken yet; at least twice
    /// `entries`.
    ///
    /// Before Linux 5.19 a ring whose completions have no room takes no operations.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub fn with_completions(entries: u32, completions: u32) -> Result<Self> {
        let ring = restrictions::build((entries, completions), true, |_| Ok(()));
        // Kernels before 6.0 do not know the two hints.
        let is_unknown = ring.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL));
        Self::made(if is_unknown {
            restrictions::build((entries, completions), false, |_| Ok(()))
        } else {
            ring
        })
    }

    /// As [`Ring::new`], for threads that use it one after the other.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn passed_on(entries: u32) -> Result<Self> {
        Self::made(restrictions::build((entries, 0), false, |_| Ok(())))
    }

    fn made(ring: io::Result<IoUring>) -> Result<Self> {
        let ring = ring.map_err(|e| {
            Error::new(
                ErrorKind::Ring,
                "the kernel gives this process no io_uring (see kernel.io_uring_disabled and the container's seccomp \
                 profile)",
            )
            .with_source(e)
        })?;
        Ok(Self { ring, marks: Marks::default(), timeouts: BinaryHeap::new(), taken: VecDeque::new() })
    }

    /// Runs a lower channel. The completions of its requests come with a token that [`RingToken::below`] opens, what it waits for by
    /// itself with one that [`RingToken::fork`] opens.
    pub fn nested<T>(&mut self, below: LowerToken, run: impl FnOnce(&mut Self) -> T) -> T {
        self.marked(self.marks.below(below), run)
    }

    /// Runs the `number`th of a queue's channels: what it waits for by itself comes with a token that tells the number
    /// ([`RingToken::as_channel`]). Who has one channel only need not say so.
    pub fn channel<T>(&mut self, number: usize, run: impl FnOnce(&mut Self) -> T) -> T {
        self.marked(Marks { own: (number as u64) << RingToken::OWNER, ..Marks::default() }, run)
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

    /// Gives a completion with result 0 at once.
    pub fn post(&mut self, token: RingToken) {
        self.taken.push_back(RingCompletion { token: self.marks.mark(token), result: 0 });
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
        if unsafe { self.ring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.submit()?;
        // SAFETY: as above.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// When [`Ring::next_completion`] has something whatever the kernel does; for those who do not wait here.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.taken.is_empty() {
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

    /// Gives the kernel what was pushed, without waiting, and lets it make the completions that it
    /// makes only when this thread enters it.
    ///
    /// # Errors
    /// When the kernel refuses the system call.
    pub fn look(&mut self) -> io::Result<()> {
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
        loop {
            let want = if self.taken.is_empty() { want } else { 0 };
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
                // The time has come.
                Err(e) if e.raw_os_error() == Some(libc::ETIME) => return Ok(()),
                // Completions that have no room must be taken first (before Linux 5.19).
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    if !self.make_room() {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes what the kernel has completed. False when that is nothing.
    fn make_room(&mut self) -> bool {
        let before = self.taken.len();
        self.taken.extend(self.ring.completion().map(RingCompletion::from));
        self.taken.len() > before
    }

    /// The next completion that has come.
    pub fn next_completion(&mut self) -> Option<RingCompletion> {
        if let Some(taken) = self.taken.pop_front() {
            return Some(taken);
        }
        if let Some(entry) = self.ring.completion().next() {
            return Some(entry.into());
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
mod tests;
