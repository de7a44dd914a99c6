//! A kernel's requests without a kernel: for fuzzing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use underseal_datapath::Mapping;

use super::files::Files;
use super::server::Shared;
use super::transport::Transport;
use super::worker::Worker;
use crate::Result;

/// The longest reply that is taken: longer ones do not go through a socket whole.
const LONGEST: usize = 192 << 10;

/// A thread that serves a volume as for a mount, and what stands in the kernel's place.
#[doc(hidden)]
pub struct Script {
    kernel: OwnedFd,
    thread: JoinHandle<Result<()>>,
}

impl Script {
    /// Serves the volume as one file, or its segments as the files of a folder.
    ///
    /// # Errors
    /// When the system has no descriptor or thread left.
    #[doc(hidden)]
    pub fn new(mapping: Arc<Mapping>, folder: bool, cache: bool) -> io::Result<Self> {
        // As with /dev/fuse a request comes whole, and a reply goes whole.
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        fcntl_setfl(&device, OFlags::NONBLOCK)?;
        let files = if folder { Files::folder(&mapping) } else { Files::one(&mapping) };
        let shared = Arc::new(Shared::new(mapping, files, cache, PathBuf::from("script"))?);
        let thread = thread::Builder::new()
            .name("fuse-script".into())
            .spawn(move || Worker::new(shared, Transport::over(device))?.run())?;
        Ok(Self { kernel, thread })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the thread has ended.
    #[doc(hidden)]
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.kernel, request, rustix::net::SendFlags::NOSIGNAL)?;
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

    /// Ends it: what is in flight is finished.
    ///
    /// # Errors
    /// Why the thread ended, if it did so before.
    ///
    /// # Panics
    /// When the thread panicked.
    #[doc(hidden)]
    pub fn end(self) -> Result<()> {
        drop(self.kernel);
        self.thread.join().expect("a thread of a mount panicked")
    }
}
