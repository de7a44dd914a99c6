//! A kernel's requests without a kernel: for fuzzing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::device::Device;
use super::dispatch::Worker;
use super::{Fs, MountConfig, Sealing, identity};

/// The longest reply that is taken: longer ones do not go through a socket whole.
const LONGEST: usize = 192 << 10;

/// A thread that serves a folder as for a mount, and what stands in the kernel's place.
#[doc(hidden)]
pub struct Script {
    kernel: OwnedFd,
    thread: JoinHandle<io::Result<()>>,
}

impl Script {
    /// Serves a lower folder.
    ///
    /// # Errors
    /// When there is no such folder, or the system refuses.
    #[doc(hidden)]
    pub fn new(lower: &Path, sealing: Option<Sealing>) -> io::Result<Self> {
        let root = open(lower, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let fs = Arc::new(Fs::new(root, lower, sealing, &MountConfig::default())?);
        // As with /dev/fuse a request comes whole, and a reply goes whole.
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let mut worker = Worker::new(fs, Device::over(device));
        let thread = thread::Builder::new().name("ecryptfs-script".into()).spawn(move || {
            identity::detach()?;
            worker.run()
        })?;
        Ok(Self { kernel, thread })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the thread has ended.
    #[doc(hidden)]
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.kernel, request, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for a reply; nothing when the thread has ended.
    ///
    /// # Errors
    /// When the system refuses.
    #[doc(hidden)]
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut reply = vec![0; LONGEST];
        // The fuzzer has an alarm.
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&self.kernel, &mut reply))?;
        reply.truncate(len);
        Ok(reply)
    }

    /// Ends it.
    ///
    /// # Errors
    /// Why the thread ended, if it did so before.
    ///
    /// # Panics
    /// When the thread panicked.
    #[doc(hidden)]
    pub fn end(self) -> io::Result<()> {
        drop(self.kernel);
        self.thread.join().expect("a thread of a mount panicked")
    }
}
