//! A line to a process that may not answer in time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use underseal_export::Result;
use underseal_export::control::{Heard, Line};
use underseal_export::net::Socket;

/// How long a message may take that has begun.
const SOON: Duration = Duration::from_secs(30);

/// A line on which each request has one answer, late or not.
pub(super) struct TimedLine {
    line: Line,
    socket: OwnedFd,
    /// Answers that have not come in time: each is read before the next one, and dropped.
    owed: u32,
}

impl TimedLine {
    /// Over this socket.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        let socket = stream.as_fd().try_clone_to_owned()?;
        Ok(Self { line: Line::new(Socket::from(OwnedFd::from(stream))), socket, owed: 0 })
    }

    /// Returns another descriptor of the socket, which tells when the process ends.
    pub(super) fn socket(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    /// Sends a request, and receives its answer.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        request: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        bytes: &[&[u8]],
        until: Instant,
    ) -> Result<Heard<T>> {
        while self.owed > 0 {
            drop(self.receive::<T>(until)?);
        }
        self.send(request, fds, bytes)?;
        self.receive(until)
    }

    /// Sends a request, whose answer is [received](Self::receive) later.
    pub(super) fn send(
        &mut self,
        request: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        bytes: &[&[u8]],
    ) -> Result<()> {
        self.line.send(request, fds, bytes, Instant::now() + SOON)?;
        self.owed += 1;
        Ok(())
    }

    /// Receives the first answer that is owed.
    pub(super) fn receive<T: DeserializeOwned>(&mut self, until: Instant) -> Result<Heard<T>> {
        if !self.is_heard(until) {
            return Err(io::Error::from(io::ErrorKind::TimedOut).into());
        }
        // Once it has begun it is read to its end: half of it would be taken for the next one's.
        let heard = self.line.receive(Instant::now() + SOON)?;
        self.owed = self.owed.saturating_sub(1);
        Ok(heard)
    }

    /// Bytes behind a message.
    pub(super) fn read(&self, bytes: &mut [u8]) -> Result<()> {
        self.line.read(bytes, Instant::now() + SOON)
    }

    /// Whether the other side says something until then, or is gone.
    fn is_heard(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
                Err(Errno::INTR) => {}
                heard => return heard != Ok(0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_late_is_not_the_next_ones() {
        let (one, other) = UnixStream::pair().unwrap();
        let (mut line, mut server) = (TimedLine::new(one).unwrap(), TimedLine::new(other).unwrap());
        let soon = || Instant::now() + underseal_testing::PATIENCE;
        let late = line.ask::<u32>(&1, &[], &[], Instant::now() + Duration::from_millis(10));
        assert_eq!(late.unwrap_err().kind(), underseal_export::ErrorKind::Timeout);
        let serves = std::thread::spawn(move || {
            for _ in 0..2 {
                let asked = server.receive::<u32>(soon()).unwrap().message;
                server.send(&(asked * 10), &[], &[]).unwrap();
            }
        });
        assert_eq!(line.ask::<u32>(&2, &[], &[], soon()).unwrap().message, 20);
        serves.join().unwrap();
    }
}
