//! How requests come from the kernel and replies go back: a descriptor of /dev/fuse for each
//! thread.
//!
//! Nothing else touches the descriptor, so another way to the same requests (FUSE over io_uring,
//! since Linux 6.14) is another file with these functions.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, readv, writev};
use rustix::ioctl::{Updater, ioctl, opcode};

use crate::wire::{Body, notify, reply_header};

/// One thread's way to the kernel. A request is answered on the descriptor that it came from.
#[derive(Debug)]
pub struct FuseChannel {
    device: OwnedFd,
}

/// What came of asking for a request.
#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedRequest {
    /// So many bytes of it.
    Request(usize),
    /// Nothing is there now.
    Nothing,
    /// The mount is gone.
    Ended,
}

impl FuseChannel {
    /// Another descriptor for a session's requests; one that does not wait for them, if `flags` say
    /// so.
    #[expect(unsafe_code, reason = "an ioctl")]
    pub(crate) fn of(session: BorrowedFd<'_>, flags: OFlags) -> io::Result<Self> {
        let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | flags, Mode::empty())?;
        let mut source = session.as_raw_fd().cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit descriptor number and changes no memory.
        unsafe { ioctl(&device, Updater::<{ opcode::read::<u32>(229, 0) }, u32>::new(&mut source))? };
        Ok(Self { device })
    }

    /// A descriptor that requests come from whole, and that takes replies whole.
    pub(crate) fn over(device: OwnedFd) -> Self {
        Self { device }
    }

    /// Takes the next request into `memory`, one part after the other. That is to be as large as a
    /// longest WRITE.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn receive(&self, memory: &mut [IoSliceMut<'_>]) -> io::Result<ReceivedRequest> {
        loop {
            match readv(&self.device, memory) {
                // The end of a script.
                Ok(0) => return Ok(ReceivedRequest::Ended),
                Ok(len) => return Ok(ReceivedRequest::Request(len)),
                // ENOENT: whoever asked was interrupted before the request was taken.
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
    /// When the kernel does not take the reply.
    pub fn reply(&self, unique: u64, answer: Result<&[u8], Errno>) -> io::Result<()> {
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(e) => (-e.raw_os_error(), &[][..]),
        };
        let header = reply_header(unique, error, body.len());
        // A reply is taken whole or not at all.
        match writev(&self.device, &[IoSlice::new(&header), IoSlice::new(body)]) {
            // Nobody waits for it any more: interrupted, or the mount is gone, as the next request
            // will tell.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Makes the kernel forget what it remembers of a file: its attributes, and what it has of its
    /// bytes from an offset on, if there is one. It waits for requests that are under way in those
    /// bytes: not for a thread that answers them.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget(&self, node: u64, from: Option<u64>) -> io::Result<()> {
        let mut body = Vec::with_capacity(24);
        // A negative offset stands for the attributes alone, no length for all that follows.
        let from = from.map_or(u64::MAX, |from| from & i64::MAX as u64);
        Body(&mut body).u64(node).u64(from).u64(0);
        let header = reply_header(0, notify::INVAL_INODE, body.len());
        match writev(&self.device, &[IoSlice::new(&header), IoSlice::new(&body)]) {
            // It remembers nothing of the file, or the mount is gone.
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
