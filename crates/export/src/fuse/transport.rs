//! How requests come from the kernel and replies go back: a descriptor of /dev/fuse for each thread.
//!
//! Nothing else in this export touches the descriptor, so another way to the same requests (FUSE over io_uring, since
//! Linux 6.14) is another file with these functions.
//!
//! A thread never sleeps here: it asks without waiting, and lets its queue's ring watch the descriptor. The queue has
//! more to wait for than requests (its lower device, its workers, a volume that is suspended).

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, readv, writev};
use rustix::ioctl::{Updater, ioctl, opcode};

use super::protocol::{HEAD, reply_header};

/// One thread's way to the kernel. A request is answered on the descriptor that it came from.
pub(super) struct Transport {
    device: OwnedFd,
}

/// What came of asking for a request.
pub(super) enum Received {
    /// So many bytes: the head, then the payload.
    Request(usize),
    /// Nothing is there now.
    Nothing,
    /// The mount is gone.
    Ended,
}

impl Transport {
    /// Another descriptor for a session's requests.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn of(session: BorrowedFd<'_>) -> io::Result<Self> {
        let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let mut source = session.as_raw_fd().cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit descriptor number and changes no memory.
        unsafe { ioctl(&device, Updater::<{ opcode::read::<u32>(229, 0) }, u32>::new(&mut source))? };
        Ok(Self { device })
    }

    /// A descriptor that somebody else than the kernel is behind, which does not wait.
    pub(super) fn over(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Takes the next request, if there is one.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn receive(&self, head: &mut [u8; HEAD], payload: &mut [u8]) -> io::Result<Received> {
        loop {
            match readv(&self.device, &mut [IoSliceMut::new(head), IoSliceMut::new(payload)]) {
                // The end of a script.
                Ok(0) => return Ok(Received::Ended),
                Ok(len) => return Ok(Received::Request(len)),
                // ENOENT: whoever asked was interrupted before the request was taken.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Received::Ended),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Answers a request with `body`.
    ///
    /// # Errors
    /// When the kernel does not take the reply.
    pub(super) fn reply(&self, unique: u64, body: &[u8]) -> io::Result<()> {
        self.send(&reply_header(unique, 0, body.len()), body)
    }

    /// Answers a request with an error.
    ///
    /// # Errors
    /// When the kernel does not take the reply.
    pub(super) fn refuse(&self, unique: u64, error: Errno) -> io::Result<()> {
        self.send(&reply_header(unique, -error.raw_os_error(), 0), &[])
    }

    fn send(&self, header: &[u8], body: &[u8]) -> io::Result<()> {
        // A reply is taken whole or not at all.
        match writev(&self.device, &[IoSlice::new(header), IoSlice::new(body)]) {
            // Nobody waits for it any more: interrupted, or the mount is gone, as the next request will tell.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}
