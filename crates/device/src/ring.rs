//! A queue's io_uring: the only place where its thread waits.

#![expect(unsafe_code, reason = "io_uring: the kernel reads and writes memory that its entries name")]

mod kernel;
pub mod restrictions;
mod token;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::kernel::KernelRing;
use self::token::Marks;
pub use self::token::{LowerToken, RingToken};
use crate::{Error, ErrorKind, Result, monotonic};

/// A completion: the result of an operation, or an event.
#[derive(Debug, Clone, Copy)]
pub struct RingCompletion {
    /// The operation or event.
    pub token: RingToken,
    /// The result of a system call: a count, or a negative error number.
    pub result: i32,
}

impl From<cqueue::Entry> for RingCompletion {
    fn from(entry: cqueue::Entry) -> Self {
        Self { token: RingToken(entry.user_data()), result: entry.result() }
    }
}

/// A command of 80 bytes for a driver.
#[derive(Debug, Clone, Copy)]
pub struct LongCommand<'a> {
    /// The driver's number for it.
    pub operation: u32,
    /// The driver's structure.
    pub payload: [u8; 80],
    /// Memory of the caller whose addresses the driver gets.
    pub buffers: &'a [IoSlice<'a>],
}

/// A queue's io_uring.
pub struct Ring {
    ring: KernelRing,
    marks: Marks,
    /// Timeouts to come, the next one first: time and token. The kernel knows of the next one only.
    timeouts: BinaryHeap<Reverse<(Duration, u64)>>,
    /// Completions that channels made themselves, or that were taken early from the kernel to make
    /// room.
    taken: VecDeque<RingCompletion>,
    /// The number of completions to come for channels, without timeouts.
    expected: usize,
}

impl Ring {
    /// Makes a ring for up to `entries` operations at a time, for the calling thread only.
    ///
    /// # Errors
    /// `Memory` when there is none, or its user may lock no more; `Ring` when the kernel has none
    /// (before 5.6), or a sandbox or `kernel.io_uring_disabled` forbids it.
    pub fn new(entries: u32) -> Result<Self> {
        Self::with_completions(entries, 0)
    }

    /// As [`Ring::new`], with room for `completions` completions that are not taken yet; at least
    /// twice `entries`.
    ///
    /// Before Linux 5.19 a ring takes no operations while its completions have no room.
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

    /// As [`Ring::new`], for threads that use the ring one after the other.
    pub(crate) fn passed_on(entries: u32) -> Result<Self> {
        Self::made(restrictions::build((entries, 0), false, |_| Ok(())))
    }

    /// As [`Ring::with_completions`], for [long commands](Ring::long_command) too. Call it before
    /// the sandbox.
    ///
    /// # Errors
    /// `Ring` as for [`Ring::new`], and when the kernel, before 6.0, has no rings of this kind.
    pub fn with_long_commands(entries: u32, completions: u32) -> Result<Self> {
        Self::of(restrictions::build_long(entries, completions).map(KernelRing::Long))
    }

    fn made(ring: io::Result<IoUring>) -> Result<Self> {
        Self::of(ring.map(KernelRing::Short))
    }

    fn of(ring: io::Result<KernelRing>) -> Result<Self> {
        let ring = ring.map_err(|e| {
            let (kind, context) = match e.kind() {
                io::ErrorKind::OutOfMemory => (
                    ErrorKind::Memory,
                    "no memory for an io_uring, or its user may lock no more (RLIMIT_MEMLOCK, `ulimit -l`)",
                ),
                _ => (
                    ErrorKind::Ring,
                    "the kernel gives this process no io_uring (see kernel.io_uring_disabled and the container's seccomp \
                     profile)",
                ),
            };
            Error::new(kind, context).with_source(e)
        })?;
        Ok(Self {
            ring,
            marks: Marks::default(),
            timeouts: BinaryHeap::new(),
            taken: VecDeque::new(),
            expected: 0,
        })
    }

    /// Runs a lower channel. Completions of its requests have a token that [`RingToken::below`]
    /// opens, its other events one that [`RingToken::fork`] opens.
    pub fn nested<T>(&mut self, below: LowerToken, run: impl FnOnce(&mut Self) -> T) -> T {
        self.marked(self.marks.below(below), run)
    }

    /// Runs the `number`th of a queue's channels: its events have a token with the number
    /// ([`RingToken::as_channel`]). A queue with one channel need not call this.
    pub fn channel<T>(&mut self, number: usize, run: impl FnOnce(&mut Self) -> T) -> T {
        self.marked(Marks::of_channel(number), run)
    }

    fn marked<T>(&mut self, marks: Marks, run: impl FnOnce(&mut Self) -> T) -> T {
        let above = std::mem::replace(&mut self.marks, marks);
        let result = run(self);
        self.marks = above;
        result
    }

    /// Makes a completion at `deadline`, a time of [`monotonic`](crate::monotonic), or soon after.
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

    /// True when the kernel (from 5.11 on) can wait for completions and for a time at once.
    pub fn has_timeouts(&self) -> bool {
        self.ring.params().is_feature_ext_arg()
    }

    /// Watches a descriptor once: a completion with `RingToken::event(number)` comes when one of
    /// `events` (poll(2) bits) holds. The descriptor must stay open until then.
    ///
    /// # Errors
    /// When the ring cannot take an operation.
    pub fn watch(&mut self, fd: BorrowedFd<'_>, events: i16, number: u32) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), u32::from(events.cast_unsigned()))
            .build()
            .user_data(RingToken::event(number).0);
        // SAFETY: polling refers to no memory of this process.
        unsafe { self.push(&poll) }
    }

    /// Sends a command to a driver (`IORING_OP_URING_CMD`): a completion with
    /// `RingToken::event(number)` has the driver's result. The descriptor must stay open until
    /// then.
    ///
    /// # Errors
    /// When the ring cannot take an operation.
    ///
    /// # Safety
    /// Memory that the command refers to, as its driver understands it, stays valid, and untouched
    /// where the driver writes, until the completion has come.
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

    /// As [`command`](Ring::command), for a driver with commands of 80 bytes.
    ///
    /// # Errors
    /// When the ring cannot take an operation, or was made without [long
    /// commands](Ring::with_long_commands).
    ///
    /// # Safety
    /// As [`command`](Ring::command).
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
        // The offset of `len` in `struct io_uring_sqe`, which the library does not set for
        // commands.
        const LEN: usize = 24;
        let count = u32::try_from(buffers.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: an entry is the kernel's structure of 128 bytes, and nothing else.
        unsafe { (&raw mut entry).cast::<u8>().add(LEN).cast::<u32>().write(count) };
        // SAFETY: the caller's promise.
        if !unsafe { self.ring.push_long(&entry) } {
            self.submit()?;
            // SAFETY: as above.
            if !unsafe { self.ring.push_long(&entry) } {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
        }
        // The list of buffers belongs to the caller, and is read when the command is submitted.
        if buffers.is_empty() { Ok(()) } else { self.submit() }
    }

    /// Makes a completion with result 0 at once.
    pub(crate) fn post(&mut self, token: RingToken) {
        self.expected += 1;
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
        // SAFETY: polling refers to no memory of this process.
        unsafe { self.push(&poll) }
    }

    /// Hands an operation to the kernel at the next `submit` or `wait`.
    ///
    /// # Safety
    /// The memory that the operation refers to stays valid, and untouched where the kernel writes,
    /// until its completion has come.
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
        if !unsafe { self.ring.push(entry) } {
            self.submit()?;
            // SAFETY: as above.
            if !unsafe { self.ring.push(entry) } {
                return Err(io::Error::from_raw_os_error(libc::EBUSY));
            }
        }
        self.expected += usize::from(RingToken(marked).as_event().is_none());
        Ok(())
    }

    /// True when no channel waits for a completion or for a time: the ring has at most events of
    /// its owner.
    pub fn serves_no_channel(&self) -> bool {
        self.expected == 0 && self.timeouts.is_empty()
    }

    /// The time at which [`Ring::next_completion`] has a completion without an event of the kernel;
    /// for callers that wait elsewhere.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.taken.is_empty() {
            return Some(Instant::now());
        }
        let &Reverse((deadline, _)) = self.timeouts.peek()?;
        Some(Instant::now() + deadline.saturating_sub(monotonic()))
    }

    /// Submits operations to the kernel, without waiting.
    ///
    /// # Errors
    /// The kernel's, when it refuses the system call.
    pub fn submit(&mut self) -> io::Result<()> {
        if self.ring.has_submitted_all() {
            return Ok(());
        }
        self.enter(0, None)
    }

    /// Submits operations, without waiting, and lets the kernel make the completions that it makes
    /// only when this thread enters it.
    ///
    /// # Errors
    /// When the kernel refuses the system call.
    pub fn look(&mut self) -> io::Result<()> {
        self.enter(0, None)
    }

    /// Submits operations and waits for a completion.
    ///
    /// # Errors
    /// The kernel's, when it refuses the system call.
    pub fn wait(&mut self) -> io::Result<()> {
        self.enter(1, None)
    }

    /// As [`Ring::wait`], but no longer than until `deadline`.
    ///
    /// # Errors
    /// The kernel's, when it refuses the system call.
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
                // The deadline has come.
                Err(e) if e.raw_os_error() == Some(libc::ETIME) => return Ok(()),
                // Completions without room must be taken first (before Linux 5.19).
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

    /// Takes completions from the kernel. False when there are none.
    fn make_room(&mut self) -> bool {
        let before = self.taken.len();
        self.taken.extend(self.ring.completion().map(RingCompletion::from));
        self.taken.len() > before
    }

    /// Returns the next completion.
    pub fn next_completion(&mut self) -> Option<RingCompletion> {
        let taken = self.taken.pop_front();
        if let Some(next) = taken.or_else(|| self.ring.completion().next().map(RingCompletion::from)) {
            self.expected -= usize::from(next.token.as_event().is_none());
            return Some(next);
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
    /// Readable when the kernel has a completion.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has it open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

#[cfg(test)]
mod tests;
