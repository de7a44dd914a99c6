//! /dev/ublkcN: the driver's side of one device.
//!
//! ```text
//!   mmap    at queue * 4096 descriptors: one for each tag, written before its fetch completes
//!   pread   at 2 GiB + queue << 41 + tag << 25: the plaintext of a write
//!   pwrite  at the same offset: the plaintext of a read
//! ```
//!
//! On a device of another user than root, pread and pwrite are not possible: the kernel copies to
//! and from a buffer for each tag, whose address is in the tag's commands. The kernel writes to the
//! buffer while it fetches for the tag; the buffer is this process's while it has a request of the
//! tag.

#![expect(unsafe_code, reason = "memory that is shared with ublk's driver")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::abi as sys;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// How long the device's node may take to appear, and to become accessible to this user.
pub(super) const APPEARS: Duration = Duration::from_secs(10);

pub(super) fn path(id: u32) -> String {
    format!("/dev/ublkc{id}")
}

/// Returns the path of the block device.
pub(super) fn disk(id: u32) -> PathBuf {
    format!("/dev/ublkb{id}").into()
}

/// Opens the device's node, which may have been made just now. Errors are retried until `until`.
pub(super) fn open(id: u32, until: Instant) -> io::Result<File> {
    loop {
        match File::options().read(true).write(true).open(path(id)) {
            // A udev rule may still have to change the node's owner; an old server may still have
            // it open.
            Err(e) if Instant::now() < until => {
                log::debug!("{}: {e}", path(id));
                thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

/// Returns the payload of a command for a queue's tag.
pub(super) fn command(queue: u16, tag: u16, result: i32, address: u64) -> [u8; 16] {
    let mut payload = [0; 16];
    const _: () = assert!(size_of::<sys::ublksrv_io_cmd>() == 16, "queue, tag, result, address");
    payload[..2].copy_from_slice(&queue.to_ne_bytes());
    payload[2..4].copy_from_slice(&tag.to_ne_bytes());
    payload[4..8].copy_from_slice(&result.to_ne_bytes());
    payload[8..].copy_from_slice(&address.to_ne_bytes());
    payload
}

/// A hardware queue of the device.
pub(super) struct HardwareQueue {
    file: Arc<File>,
    number: u16,
    depth: u16,
    descriptors: Mapped,
    /// The buffers of all tags and the length of one, where the kernel copies.
    buffers: Option<(Mapped, usize)>,
}

impl HardwareQueue {
    /// Maps the descriptors. With `longest` the kernel copies, at most that many bytes a request.
    pub(super) fn new(file: Arc<File>, number: u16, depth: u16, longest: Option<usize>) -> io::Result<Self> {
        const EACH: usize = size_of::<sys::ublksrv_io_desc>();
        const _: () = assert!(EACH == 24);
        let page = rustix::param::page_size();
        let offset = (sys::UBLK_MAX_QUEUE_DEPTH as usize * EACH).next_multiple_of(page) * usize::from(number);
        let len = (usize::from(depth) * EACH).next_multiple_of(page);
        let descriptors = Mapped::file(&file, offset as u64 + u64::from(sys::UBLKSRV_CMD_BUF_OFFSET), len)?;
        let buffers = longest.map(|each| io::Result::Ok((Mapped::memory(usize::from(depth) * each)?, each)));
        Ok(Self { file, number, depth, descriptors, buffers: buffers.transpose()? })
    }

    /// Returns the descriptor of a request that the driver has handed over; `None` for an invalid
    /// tag.
    pub(super) fn descriptor(&self, tag: u16) -> Option<sys::ublksrv_io_desc> {
        let first = self.descriptors.at.cast::<sys::ublksrv_io_desc>();
        // SAFETY: the mapping holds a descriptor for each tag below the depth. The kernel has
        // written this one before it handed the request over; even if it wrote again meanwhile, any
        // bytes make a valid value.
        (tag < self.depth).then(|| unsafe { first.add(tag.into()).read_volatile() })
    }

    /// Returns the address for the tag's commands: of its buffer, or 0.
    pub(super) fn address(&self, tag: u16) -> u64 {
        self.buffer(tag, 0).map_or(0, |buffer| buffer as u64)
    }

    /// Leaks the tags' buffers: they stay mapped until the process ends.
    pub(super) fn leave_buffers(&mut self) {
        std::mem::forget(self.buffers.take());
    }

    /// Returns the tag's buffer, if the queue has buffers of at least `len` bytes.
    fn buffer(&self, tag: u16, len: usize) -> Option<*mut u8> {
        let (memory, each) = self.buffers.as_ref().filter(|(_, each)| tag < self.depth && len <= *each)?;
        // SAFETY: within the mapping, which has a buffer for each tag below the depth.
        Some(unsafe { memory.at.as_ptr().add(usize::from(tag) * each) })
    }

    /// Copies a write's plaintext into `data`.
    pub(super) fn read(&self, tag: u16, data: &mut [u8]) -> io::Result<()> {
        if let Some(buffer) = self.buffer(tag, data.len()) {
            // SAFETY: the buffer is as long, and the kernel is done with it until the tag's next
            // command.
            unsafe { ptr::copy_nonoverlapping(buffer, data.as_mut_ptr(), data.len()) };
            return Ok(());
        }
        self.file.read_exact_at(data, self.data_at(tag))
    }

    /// Copies a read's plaintext from `data`.
    pub(super) fn write(&self, tag: u16, data: &[u8]) -> io::Result<()> {
        if let Some(buffer) = self.buffer(tag, data.len()) {
            // SAFETY: as in `read`.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), buffer, data.len()) };
            return Ok(());
        }
        self.file.write_all_at(data, self.data_at(tag))
    }

    fn data_at(&self, tag: u16) -> u64 {
        u64::from(sys::UBLKSRV_IO_BUF_OFFSET)
            + (u64::from(self.number) << sys::UBLK_QID_OFF)
            + (u64::from(tag) << sys::UBLK_TAG_OFF)
    }
}

impl AsFd for HardwareQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Mapped memory.
struct Mapped {
    at: NonNull<u8>,
    len: usize,
}

impl Mapped {
    fn file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, offset) }?;
        Ok(Self { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    fn memory(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let at = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        Ok(Self { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole; what was in it is copied out, and the queue's
        // worker has waited for all commands that name it.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}
