//! Discards on a block device.
//!
//! Linux has a command for them in io_uring from 6.12 on. Before, there is an ioctl, which waits: a
//! thread of the channel makes it, and then wakes the queue's thread. fallocate with a punched
//! hole, as for a file, is different: on a block device it writes zeros, and fails where the disk
//! would need zeros sent to it.

#![expect(unsafe_code, reason = "BLKDISCARD and its kin, which rustix does not have")]

use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use io_uring::{opcode, squeue, types};
use rustix::io::Errno;

use super::Shared;
use crate::wakeup::Wakeup;

/// `_IO(0x12, 0)`, for io_uring, and `_IO(0x12, 119)` (linux/blkdev.h, linux/fs.h).
const BLOCK_URING_CMD_DISCARD: u32 = 0x12 << 8;
const BLKDISCARD: u64 = 0x12 << 8 | 119;

/// The ring operation for a discard of whole blocks.
pub(super) fn command(fd: types::Fd, offset: u64, len: u64) -> squeue::Entry {
    let mut more = [0; 16];
    more[..8].copy_from_slice(&len.to_ne_bytes());
    opcode::UringCmd16::new(fd, BLOCK_URING_CMD_DISCARD).addr(Some(offset)).cmd(more).build()
}

/// True when the error means that the kernel does not have the command.
pub(super) fn is_unknown(e: Errno) -> bool {
    matches!(e, Errno::INVAL | Errno::OPNOTSUPP)
}

/// A thread that makes discards, one after the other.
pub(super) struct Trimmer {
    orders: Option<Sender<Arc<DiscardOrder>>>,
    thread: Option<JoinHandle<()>>,
}

/// A discard for the thread.
pub(super) struct DiscardOrder {
    range: [u64; 2],
    /// The result in the form of a ring's: 0, or a negative error number.
    result: AtomicI32,
    wakeup: Wakeup,
}

impl Trimmer {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Self, Errno> {
        let (orders, taken) = mpsc::channel::<Arc<DiscardOrder>>();
        let work = move || {
            for order in taken {
                order.result.store(discard(&shared.file, order.range), SeqCst);
                order.wakeup.ring();
            }
        };
        let thread = thread::Builder::new().name("trim".into()).spawn(work);
        let thread = thread.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        Ok(Self { orders: Some(orders), thread: Some(thread) })
    }

    pub(super) fn order(&self, offset: u64, len: u64) -> Result<Arc<DiscardOrder>, Errno> {
        let wakeup = Wakeup::new().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::NOMEM))?;
        let order = Arc::new(DiscardOrder { range: [offset, len], result: AtomicI32::new(0), wakeup });
        let sent = self.orders.as_ref().is_some_and(|orders| orders.send(order.clone()).is_ok());
        if sent { Ok(order) } else { Err(Errno::IO) }
    }
}

impl Drop for Trimmer {
    /// Ends the thread, so that the device closes with its channels.
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl DiscardOrder {
    pub(super) fn result(&self) -> i32 {
        self.result.load(SeqCst)
    }
}

impl AsFd for DiscardOrder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

fn discard(file: &File, range: [u64; 2]) -> i32 {
    // SAFETY: the kernel reads an offset and a length.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } == 0 {
        return 0;
    }
    -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
