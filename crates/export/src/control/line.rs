//! The messages that two servers exchange during a handover: JSON with descriptors and bytes behind
//! it, and the commit word.
//!
//! ```text
//!   16 bytes: text length, number of descriptors, number of bytes behind the text; little-endian
//!   the text, the bytes
//! ```
//!
//! The new server takes the volume with the commit word, and has the volume as soon as the word is
//! sent. An old server that stops waiting shuts its side of the socket down first: after that the
//! word can no longer be sent, and a word sent before can still be read. So at no moment do both
//! servers have the volume, and at no moment is its owner unknown.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, recv, recvmsg, sendmsg, shutdown,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::net::{Deadlined, Socket, timespec};
use crate::{Error, ErrorKind, Result};

/// The longest text.
const MOST_TEXT: usize = 1 << 20;
/// The most descriptors of one message.
pub(super) const MOST_FDS: usize = 64;
/// The commit word: no message begins with its bytes. The kernel queues it as a whole.
const TAKEN: [u8; 8] = *b"\xffTAKEN\xff\n";

/// An end of the handover channel.
#[derive(Debug)]
pub struct Line(Socket);

/// A message's head: the message, its descriptors, and how many bytes follow.
#[derive(Debug)]
pub struct Heard<T> {
    /// The message.
    pub message: T,
    /// The message's descriptors.
    pub fds: Vec<OwnedFd>,
    /// How many bytes are to be [read](Line::read) next.
    pub bytes: u64,
}

impl Line {
    /// A channel over a Unix socket.
    pub fn new(socket: Socket) -> Self {
        Self(socket)
    }

    /// Sends a message with descriptors, followed by bytes.
    ///
    /// # Errors
    /// `Timeout`, `Io`.
    pub fn send(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
        bytes: &[&[u8]],
        until: Instant,
    ) -> Result<()> {
        let text = serde_json::to_vec(message).map_err(io::Error::other)?;
        if text.len() > MOST_TEXT || fds.len() > MOST_FDS {
            return Err(Error::new(ErrorKind::Unsupported, "the message is too long"));
        }
        let behind: usize = bytes.iter().map(|part| part.len()).sum();
        let mut head = [0; 16];
        head[..4].copy_from_slice(&u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        head[4..8].copy_from_slice(&u32::try_from(fds.len()).unwrap_or(u32::MAX).to_le_bytes());
        head[8..].copy_from_slice(&(behind as u64).to_le_bytes());
        let mut to = Deadlined { socket: &self.0, deadline: until };
        let sent = self.send_with(&head, fds, until)?;
        to.write_all(&head[sent..])?;
        to.write_all(&text)?;
        bytes.iter().try_for_each(|part| to.write_all(part))?;
        Ok(())
    }

    /// Sends the beginning of a message together with its descriptors.
    fn send_with(&self, head: &[u8], fds: &[BorrowedFd<'_>], until: Instant) -> Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        loop {
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(Error::new(ErrorKind::Unsupported, "there are too many descriptors"));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match sendmsg(&self.0, &[IoSlice::new(head)], &mut ancillary, flags) {
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(rustix::io::Errno::INTR) => {}
                sent => return Ok(sent.map_err(io::Error::from)?),
            }
        }
    }

    /// Receives a message.
    ///
    /// # Errors
    /// `Timeout`, `Io`; `Protocol` when the bytes are no message.
    pub fn receive<T: DeserializeOwned>(&self, until: Instant) -> Result<Heard<T>> {
        let mut head = [0; 16];
        let (n, fds) = self.receive_with(&mut head, until)?;
        let mut from = Deadlined { socket: &self.0, deadline: until };
        from.read_exact(&mut head[n..])?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, count) = (number(0) as usize, number(4) as usize);
        let bytes = u64::from(number(8)) | u64::from(number(12)) << 32;
        if len > MOST_TEXT || count != fds.len() {
            return Err(Error::new(ErrorKind::Protocol, "a message is none of this protocol"));
        }
        let mut text = vec![0; len];
        from.read_exact(&mut text)?;
        let message = serde_json::from_slice(&text).map_err(|e| {
            Error::new(ErrorKind::Protocol, "a message is none of this protocol").with_source(e)
        })?;
        Ok(Heard { message, fds, bytes })
    }

    fn receive_with(&self, head: &mut [u8], until: Instant) -> Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        loop {
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = match recvmsg(&self.0, &mut [IoSliceMut::new(head)], &mut ancillary, flags) {
                Err(rustix::io::Errno::AGAIN) => {
                    self.wait(PollFlags::IN, until)?;
                    continue;
                }
                Err(rustix::io::Errno::INTR) => continue,
                received => received.map_err(io::Error::from)?,
            };
            if received.bytes == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            let fds = ancillary.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            });
            return Ok((received.bytes, fds.flatten().collect()));
        }
    }

    /// Reads bytes that follow a message.
    ///
    /// # Errors
    /// `Timeout`, `Io`.
    pub fn read(&self, bytes: &mut [u8], until: Instant) -> Result<()> {
        Ok(Deadlined { socket: &self.0, deadline: until }.read_exact(bytes)?)
    }

    /// Sends the commit word: from then on the volume is this process's. After an error it remains
    /// the old server's.
    ///
    /// # Errors
    /// `Io` when the old server has ended, or has stopped waiting.
    pub fn take(&self) -> Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let taken = rustix::io::retry_on_intr(|| rustix::net::send(&self.0, &TAKEN, flags));
        match taken.map_err(io::Error::from)? {
            n if n == TAKEN.len() => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::WriteZero).into()),
        }
    }

    /// Waits until `until` for the commit word, and returns whether the new server has sent it.
    /// After `false` the new server cannot take the volume any more.
    pub fn is_taken(&self, until: Instant) -> bool {
        // The reads below find out why the wait ended.
        let _ = self.wait(PollFlags::IN, until);
        if let Err(e) = shutdown(&self.0, Shutdown::Read) {
            // `shutdown` does not fail on a Unix socket. Without it the new server could still take
            // the volume.
            log::error!(
                "hand-over: whether the volume is taken cannot be decided, so this process gives it up: {e}"
            );
            return true;
        }
        let mut word = [0; TAKEN.len()];
        let read = rustix::io::retry_on_intr(|| recv(&self.0, &mut word[..], RecvFlags::DONTWAIT));
        matches!(read, Ok((n, _)) if n == TAKEN.len()) && word == TAKEN
    }

    /// Waits until `until` for the new server to close its side.
    pub(super) fn is_left(&self, until: Instant) {
        // `poll` always reports that the peer has closed.
        let _ = self.wait(PollFlags::empty(), until);
    }

    /// Waits for `events`, at most until `until`.
    fn wait(&self, events: PollFlags, until: Instant) -> Result<()> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            match poll(&mut [PollFd::from_borrowed_fd(self.0.as_fd(), events)], Some(&timespec(left))) {
                Err(rustix::io::Errno::INTR) | Ok(0) => {}
                polled => return polled.map(drop).map_err(|e| io::Error::from(e).into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    fn pair() -> (Line, Line) {
        let (one, other) = UnixStream::pair().unwrap();
        (Line::new(Socket::new(one.into())), Line::new(Socket::new(other.into())))
    }

    fn soon() -> Instant {
        Instant::now() + underseal_testing::PATIENCE
    }

    #[test]
    fn a_message_has_its_descriptors_and_its_bytes() {
        let (one, other) = pair();
        let file = tempfile::tempfile().unwrap();
        file.set_len(4711).unwrap();
        let long = vec![7; 3 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                one.send(&"first", &[], &[], soon()).unwrap();
                one.send(&"second", &[file.as_fd(), file.as_fd()], &[b"ab", &long], soon()).unwrap();
                one.send(&"third", &[], &[], soon()).unwrap();
            });
            let first: Heard<String> = other.receive(soon()).unwrap();
            assert_eq!((first.message.as_str(), first.fds.len(), first.bytes), ("first", 0, 0));
            let second: Heard<String> = other.receive(soon()).unwrap();
            assert_eq!((second.message.as_str(), second.fds.len()), ("second", 2));
            let carried = std::fs::File::from(second.fds.into_iter().next().unwrap());
            assert_eq!(carried.metadata().unwrap().len(), 4711);
            let mut bytes = vec![0; usize::try_from(second.bytes).unwrap()];
            other.read(&mut bytes, soon()).unwrap();
            assert!(bytes[..2] == *b"ab" && bytes[2..] == long);
            assert_eq!(other.receive::<String>(soon()).unwrap().message, "third");
        });
    }

    #[test]
    fn who_took_it_has_it_and_who_is_late_has_not() {
        let (old, new) = pair();
        new.take().unwrap();
        assert!(old.is_taken(soon()));
        let (old, new) = pair();
        new.take().unwrap();
        drop(new);
        assert!(old.is_taken(soon()), "what was said before the end counts");
        let (old, new) = pair();
        assert!(!old.is_taken(Instant::now() + Duration::from_millis(1)));
        new.take().unwrap_err();
        let (old, new) = pair();
        drop(new);
        assert!(!old.is_taken(soon()));
        let (old, new) = pair();
        drop(old);
        new.take().unwrap_err();
    }

    #[test]
    fn of_two_that_decide_at_the_same_time_one_has_it() {
        for _ in 0..2000 {
            let (old, new) = pair();
            let (kept, taken) = std::thread::scope(|scope| {
                let taken = scope.spawn(move || new.take().is_ok());
                (!old.is_taken(Instant::now()), taken.join().unwrap())
            });
            assert_ne!(kept, taken, "both have it, or neither");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let (one, other) = UnixStream::pair().unwrap();
        let line = Line::new(Socket::new(other.into()));
        (&one).write_all(&[0xff; 16]).unwrap();
        assert_eq!(line.receive::<String>(soon()).unwrap_err().kind(), ErrorKind::Protocol);
        (&one).write_all(&[0; 16]).unwrap();
        assert_eq!(line.receive::<String>(soon()).unwrap_err().kind(), ErrorKind::Protocol);
        drop(one);
        assert_eq!(line.receive::<String>(soon()).unwrap_err().kind(), ErrorKind::Io);
    }
}
