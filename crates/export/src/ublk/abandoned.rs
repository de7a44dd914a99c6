//! A device whose recovery a process began and did not finish: the process died when only some of
//! the queues, or none, had fetched.
//!
//! Linux before 6.15 does not handle this, and each case leaves the device unusable:
//!
//! ```text
//!   no queue has fetched, descriptors were mapped   only the dead process may map them
//!   some queues have fetched                        START_USER_RECOVERY crashes in the first
//!                                                   queue without a task
//! ```
//!
//! START_USER_RECOVERY resets a device properly when every queue has a task that has exited. So a
//! thread becomes the task of each queue without one, and exits. The device is quiesced meanwhile:
//! the driver hands out no request.

#![expect(unsafe_code, reason = "commands of ublk's driver")]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::Instant;

use super::abi as sys;
use underseal_device::Ring;

use super::character::{self, command};

/// Returns true when the running driver needs this help.
pub(super) fn are_left_behind() -> bool {
    super::pause::kernel().is_none_or(|version| version < (6, 15))
}

/// Gives every queue of a quiesced device a task that has exited. Fails with EBUSY when another
/// process still has the device's node open at `until`.
pub(super) fn give_tasks(info: &sys::ublksrv_ctrl_dev_info, until: Instant) -> io::Result<()> {
    let file = character::open(info.dev_id, until)?;
    let (queues, depth) = (info.nr_hw_queues, info.queue_depth);
    let thread = thread::Builder::new().name("ublk-tasks".into());
    let thread = thread.spawn(move || (0..queues).try_for_each(|queue| fetch(&file, queue, depth)))?;
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Fetches for all tags of a queue in one system call, which no signal can interrupt. A queue that
/// has a task refuses.
fn fetch(file: &File, queue: u16, depth: u16) -> io::Result<()> {
    let mut ring = Ring::new(depth.into()).map_err(|e| io::Error::other(e.to_string()))?;
    for tag in 0..depth {
        // SAFETY: the command refers to no memory: the driver copies by pread and pwrite on a
        // device that can be recovered.
        unsafe {
            ring.command(file.as_fd(), sys::UBLK_U_IO_FETCH_REQ, command(queue, tag, 0, 0), tag.into())
        }?;
    }
    ring.submit()
}
