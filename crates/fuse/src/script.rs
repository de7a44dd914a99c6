//! A kernel's requests without a kernel: for fuzzing.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use crate::channel::FuseChannel;

/// The longest reply that is taken: longer ones do not go through a socket whole.
const LONGEST: usize = 192 << 10;

/// A thread that serves as for a mount, and what stands in the kernel's place.
pub struct KernelScript<E> {
    kernel: OwnedFd,
    thread: JoinHandle<Result<(), E>>,
}

impl<E: Send + 'static> KernelScript<E> {
    /// Serves. `waits`: the thread's descriptor does, as
    /// [`FuseSession::channel`](crate::FuseSession::channel) says.
    ///
    /// # Errors
    /// When the system has no descriptor or thread left.
    pub fn start(
        waits: bool,
        serve: impl FnOnce(FuseChannel) -> Result<(), E> + Send + 'static,
    ) -> io::Result<Self> {
        // As with /dev/fuse a request comes whole, and a reply goes whole.
        let (kernel, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        if !waits {
            fcntl_setfl(&device, OFlags::NONBLOCK)?;
        }
        let body = move || serve(FuseChannel::over(device));
        let thread = thread::Builder::new().name("fuse-script".into()).spawn(body)?;
        Ok(Self { kernel, thread })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn send(&self, request: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.kernel, request, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for a reply; nothing when the thread has ended.
    ///
    /// # Errors
    /// When the system refuses.
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
    pub fn end(self) -> Result<(), E> {
        drop(self.kernel);
        self.thread.join().expect("a thread of a mount panicked")
    }
}
