//! One thread's descriptor of /dev/fuse, and the memory that requests arrive in.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, writev};
use rustix::ioctl::{Updater, ioctl, opcode};

use super::reply;
use super::wire::WRITE_DATA;

/// A page, and the alignment at which bytes to write arrive.
const PAGE: usize = 4096;

/// The way to the kernel.
pub(super) struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Another descriptor for a session's requests.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn of(session: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut source = session.as_raw_fd().cast_unsigned();
        // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit descriptor number and changes no memory.
        unsafe { ioctl(&fd, Updater::<{ opcode::read::<u32>(229, 0) }, u32>::new(&mut source))? };
        Ok(Self { fd })
    }

    /// A descriptor that somebody else than the kernel is behind.
    pub(super) fn over(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Waits for a request. Nothing when the mount is gone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(super) fn receive(&self, inbox: &mut Inbox) -> io::Result<Option<usize>> {
        loop {
            match read(&self.fd, inbox.room()) {
                // The end of a script.
                Ok(0) => return Ok(None),
                Ok(len) => return Ok(Some(len)),
                // ENOENT: whoever asked was interrupted before the request was taken.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Answers a request.
    ///
    /// # Errors
    /// When the kernel does not take the reply.
    pub(super) fn reply(&self, unique: u64, body: Result<&[u8], Errno>) -> io::Result<()> {
        let (error, body) = match body {
            Ok(body) => (0, body),
            Err(e) => (-e.raw_os_error(), &[][..]),
        };
        // A reply is taken whole or not at all.
        match writev(&self.fd, &[IoSlice::new(&reply::header(unique, error, body.len())), IoSlice::new(body)])
        {
            // Nobody waits for it any more: interrupted, or the mount is gone, as the next request will tell.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Where a request arrives: so placed that the bytes of a WRITE begin at a page, where they are encrypted.
pub(super) struct Inbox {
    memory: Vec<u8>,
    start: usize,
}

impl Inbox {
    /// For requests of so many bytes of data. One page more is there to fill up the last extent.
    pub(super) fn new(max_write: usize) -> Self {
        let memory = vec![0; 3 * PAGE + max_write];
        // The only allocator that cannot tell is that of constant evaluation.
        let page = memory.as_ptr().align_offset(PAGE).min(PAGE);
        Self { start: page + PAGE - WRITE_DATA, memory }
    }

    fn room(&mut self) -> &mut [u8] {
        let end = self.memory.len() - PAGE;
        &mut self.memory[self.start..end]
    }

    /// The request of so many bytes.
    pub(super) fn request(&self, len: usize) -> &[u8] {
        &self.memory[self.start..self.start + len]
    }

    /// The data of a WRITE, and what memory there is behind it.
    pub(super) fn data(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + WRITE_DATA..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_arrives_at_a_page_with_a_page_to_spare() {
        let mut inbox = Inbox::new(1 << 20);
        assert_eq!(inbox.data().as_ptr().align_offset(PAGE), 0);
        assert!(inbox.data().len() >= (1 << 20) + PAGE);
        assert!(inbox.room().len() >= WRITE_DATA + (1 << 20), "else the kernel refuses to hand out requests");
    }
}
