//! Requests as from a kernel, without a kernel: for fuzzing.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::{self, JoinHandle};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use crate::channel::FuseChannel;

/// The length of the longest accepted reply: longer replies do not fit through a socket.
const LONGEST: usize = 192 << 10;

/// A thread that serves as for a mount, and a script in Linux's place.
pub struct KernelScript<E> {
    kernel: OwnedFd,
    thread: JoinHandle<Result<(), E>>,
}

impl<E: Send + 'static> KernelScript<E> {
    /// Starts serving. With `waits`, the thread's descriptor blocks, as in
    /// [`FuseSession::channel`](crate::FuseSession::channel).
    ///
    /// # Errors
    /// When the system has no descriptor or thread left.
    pub fn start(
        waits: bool,
        serve: impl FnOnce(FuseChannel) -> Result<(), E> + Send + 'static,
    ) -> io::Result<Self> {
        // As with /dev/fuse, requests and replies are whole messages.
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

    /// Waits for a reply; empty when the thread has ended.
    ///
    /// # Errors
    /// Errors of `read(2)`.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut reply = vec![0; LONGEST];
        // The fuzzer has an alarm.
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&self.kernel, &mut reply))?;
        reply.truncate(len);
        Ok(reply)
    }

    /// Ends the script: requests in flight are finished.
    ///
    /// # Errors
    /// The thread's error, if the thread ended before.
    ///
    /// # Panics
    /// When the thread panicked.
    pub fn end(self) -> Result<(), E> {
        drop(self.kernel);
        self.thread.join().expect("a thread of a mount panicked")
    }
}
