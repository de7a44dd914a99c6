//! A mount, from its handshake to its end.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use underseal_sandbox::Helper;

use crate::channel::FuseChannel;
use crate::init::{Init, capability};
use crate::mount::{MountFailure, MountSettings, mount};
use crate::point::{Point, Unmounter};

/// A mount with a completed handshake. Dropping it unmounts lazily, unless the mount is gone.
#[derive(Debug)]
pub struct FuseSession {
    /// The descriptor of the mount; the threads' descriptors are cloned from it.
    first: FuseChannel,
    /// `None` when another process is responsible for unmounting.
    at: Option<Unmounter>,
    /// The features agreed in the handshake.
    agreed: u64,
}

impl FuseSession {
    /// Mounts on a file or folder.
    ///
    /// # Errors
    /// The reason why the system, its helper or its age prevents it.
    pub fn mount(point: &Arc<Point>, options: &MountSettings, init: &Init) -> Result<Self, MountFailure> {
        let device = mount(point, options)?;
        let identity = point.identity()?;
        point.is_mounted(identity);
        if let Some(helper) = Helper::get() {
            helper.mounted(&identity.to_bytes())?;
        }
        let mut session =
            Self { first: FuseChannel::over(device), at: Some(Unmounter::of(point)), agreed: 0 };
        session.agreed = init.shake_hands(&session.first)?;
        Ok(session)
    }

    /// A mount that another process has made, by its descriptor. That process remains responsible
    /// for unmounting until this process takes over.
    pub fn over(device: OwnedFd) -> Self {
        Self { first: FuseChannel::over(device), at: None, agreed: 0 }
    }

    /// Returns the minor device number of the mount, whose major number is 0, as `stat` has it of
    /// the mount's files. Earlier kernels do not show it of a descriptor.
    pub fn device_number(&self) -> Option<u32> {
        let info = format!("/proc/self/fdinfo/{}", self.as_fd().as_raw_fd());
        let info = std::fs::read_to_string(info).ok()?;
        info.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()
    }

    /// Returns true when the kernel waits for [entries](crate::RingEntries) in all of its
    /// [queues](crate::queues), and sends requests there then.
    pub fn is_over_io_uring(&self) -> bool {
        self.agreed & capability::OVER_IO_URING != 0
    }

    /// A descriptor for one more thread. `waits`: the descriptor blocks until a request arrives.
    ///
    /// # Errors
    /// Errors of `open(2)` and the clone request.
    pub fn channel(&self, waits: bool) -> io::Result<FuseChannel> {
        FuseChannel::of(self.first.as_fd(), if waits { OFlags::empty() } else { OFlags::NONBLOCK })
    }

    /// Ends a mount whose requests have ended. Returns true if the mount was still in the mount
    /// table: another program has aborted its connection (fusectl's `abort`, `umount --force`). The
    /// mount is then unmounted lazily; a mount that another process has made there meanwhile stays.
    pub fn close(mut self) -> bool {
        self.at.take().is_some_and(|at| at.unmount(true).is_ok())
    }

    /// Returns true when the kernel has hung up.
    fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(&self.first, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::ERR)
    }
}

impl AsFd for FuseSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.first.as_fd()
    }
}

impl Drop for FuseSession {
    fn drop(&mut self) {
        if let Some(at) = self.at.take()
            && !self.is_gone()
        {
            // A drop cannot report the error; the mount is dead when the descriptor is closed.
            let _ = at.unmount(true);
        }
    }
}
