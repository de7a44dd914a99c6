//! Receiving requests from the kernel and sending replies: a descriptor of /dev/fuse for each
//! thread.
//!
//! No other code uses the descriptor. The other transport of the same requests, FUSE over io_uring,
//! is `ring.rs`.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fcntl_setfl, open};
use rustix::io::{Errno, readv, writev};
use rustix::ioctl::{Updater, ioctl, opcode};

use crate::wire::{Body, notify, reply_header};

/// The node of the mount's root (`FUSE_ROOT_ID`).
const ROOT: u64 = 1;

/// The number of a NOTIFY_REPLY, which no other request has: an answer to it, from a server that
/// does not know the operation, answers nothing.
const WAKEUP: u64 = u64::MAX - 1;

/// A thread's descriptor for requests of FUSE. A request is answered on the descriptor that it came
/// from.
#[derive(Debug)]
pub struct FuseChannel {
    device: OwnedFd,
}

/// The result of a read for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedRequest {
    /// A request of this length.
    Request(usize),
    /// No request is waiting.
    Nothing,
    /// The mount is gone.
    Ended,
}

impl FuseChannel {
    /// A further descriptor for a session's requests, which is non-blocking if `flags` say so.
    #[expect(unsafe_code, reason = "an ioctl")]
    pub(crate) fn of(session: BorrowedFd<'_>, flags: OFlags) -> io::Result<Self> {
        let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty())?;
        let mut source = session.as_raw_fd().cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit descriptor number and changes no memory.
        unsafe { ioctl(&device, Updater::<{ opcode::read::<u32>(229, 0) }, u32>::new(&mut source))? };
        Ok(Self { device })
    }

    /// Returns a channel over a descriptor with whole messages as requests and replies.
    pub(crate) fn over(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Reads the next request into the parts of `memory`, which must have room for the longest
    /// WRITE.
    ///
    /// # Errors
    /// Errors of `readv(2)` other than a lost request and the mount's end.
    pub fn receive(&self, memory: &mut [IoSliceMut<'_>]) -> io::Result<ReceivedRequest> {
        loop {
            match readv(&self.device, memory) {
                // The end of a script.
                Ok(0) => return Ok(ReceivedRequest::Ended),
                Ok(len) => return Ok(ReceivedRequest::Request(len)),
                // ENOENT: the caller was interrupted before the request was taken.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(ReceivedRequest::Nothing),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(ReceivedRequest::Ended),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// When the kernel does not accept the reply.
    pub fn reply(&self, unique: u64, answer: Result<&[u8], Errno>) -> io::Result<()> {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(e) => (-e.raw_os_error(), &[][..]),
        };
        let header = reply_header(unique, error, body.len());
        // A reply is accepted as a whole or not at all.
        match writev(&self.device, &[IoSlice::new(&header), IoSlice::new(body)]) {
            // No caller waits for the reply any more: interrupted, or the mount is gone, which the
            // next read reports.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes Linux drop its cache of a file: its attributes, and its pages from an offset on, if an
    /// offset is given. The call waits for requests in flight in those pages: a thread that answers
    /// requests must not make the call.
    ///
    /// # Errors
    /// Errors of the notification other than an unknown file and the mount's end.
    pub fn forget(&self, node: u64, from: Option<u64>) -> io::Result<()> {
        let mut body = Vec::with_capacity(24);
        // A negative offset stands for the attributes alone, length 0 for all following bytes.
        let from = from.map_or(u64::MAX, |from| from & i64::MAX as u64);
        Body(&mut body).u64(node).u64(from).u64(0);
        self.notify(notify::INVAL_INODE, &body)
    }

    /// Puts a byte of a file into Linux's page of it. For Linux the file then reaches at least up
    /// to the end of that byte. The call waits as [`forget`](Self::forget) does.
    ///
    /// # Errors
    /// Errors of the notification other than an unknown file and the mount's end.
    pub fn store(&self, node: u64, offset: u64, byte: u8) -> io::Result<()> {
        let mut body = Vec::with_capacity(25);
        Body(&mut body).u64(node).u64(offset).u32(1).u32(0);
        body.push(byte);
        self.notify(notify::STORE, &body)
    }

    /// Makes reads wait for a request, or no longer.
    ///
    /// # Errors
    /// Errors of `fcntl(2)`.
    pub fn set_blocking(&self, blocks: bool) -> io::Result<()> {
        let flags = if blocks { OFlags::empty() } else { OFlags::NONBLOCK };
        Ok(fcntl_setfl(&self.device, flags)?)
    }

    /// Wakes a thread that waits in [`receive`](Self::receive), on any descriptor of the mount: it
    /// receives a NOTIFY_REPLY, which expects no answer. Linux is asked for none of its pages of
    /// the root.
    ///
    /// # Errors
    /// Errors of the notification other than the mount's end.
    pub fn wake_reader(&self) -> io::Result<()> {
        let mut body = Vec::with_capacity(32);
        Body(&mut body).u64(WAKEUP).u64(ROOT).u64(0).u32(0).u32(0);
        self.notify(notify::RETRIEVE, &body)
    }

    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let header = reply_header(0, code, body.len());
        match writev(&self.device, &[IoSlice::new(&header), IoSlice::new(body)]) {
            // Linux caches nothing of the file, or the mount is gone.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for FuseChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
