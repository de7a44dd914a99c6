//! A client's socket, and its reads and writes within a deadline.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};

/// A connected stream socket, Unix or TCP, in blocking mode. It is closed when its last owner is
/// dropped; the server keeps it until the handler returns, so that it can be shut down.
#[derive(Debug)]
pub struct Socket(Arc<OwnedFd>);

impl Socket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(Arc::new(fd))
    }

    pub(crate) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl From<OwnedFd> for Socket {
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(self, buffer, RecvFlags::empty())
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self, bytes, SendFlags::empty())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket with a deadline for reads and writes. The socket's mode and timeouts stay unchanged, so
/// that nothing has to be reset for the transmission phase.
pub(crate) struct Deadlined<'a> {
    pub(crate) socket: &'a Socket,
    pub(crate) deadline: Instant,
}

impl Deadlined<'_> {
    fn wait(&self, readiness: PollFlags) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match poll(&mut [PollFd::new(self.socket, readiness)], Some(&timespec(left))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn within(
        &self,
        readiness: PollFlags,
        mut attempt: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(readiness)?,
                // A client that sends byte by byte never makes a read wait, so the time is checked
                // here, too.
                Ok(_) if Instant::now() >= self.deadline => return Err(io::ErrorKind::TimedOut.into()),
                done => return done,
            }
        }
    }
}

impl Deadlined<'_> {
    /// Reads as `read`, but returns bytes that arrive just after the deadline instead of losing
    /// them.
    pub(crate) fn read_what_came(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match receive(self.socket, buffer, RecvFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                done => return done,
            }
        }
    }
}

impl Read for Deadlined<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.within(PollFlags::IN, || receive(self.socket, buffer, RecvFlags::DONTWAIT))
    }
}

impl Write for Deadlined<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.within(PollFlags::OUT, || send(self.socket, bytes, SendFlags::DONTWAIT))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

fn receive(socket: &Socket, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let (received, _) = rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *buffer, flags))?;
    Ok(received)
}

/// Sends without SIGPIPE: a client that has disconnected must cause an error, not a signal.
fn send(socket: &Socket, bytes: &[u8], flags: SendFlags) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| rustix::net::send(socket, bytes, flags | SendFlags::NOSIGNAL))?)
}
