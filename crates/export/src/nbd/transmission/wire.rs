//! The connection's bytes, without waiting: a plain socket, or TLS over it.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use crate::nbd::{Bytes, Transport};
use crate::net::Socket;

/// Receives and sends as much as possible at once; `WouldBlock` means that nothing was possible.
pub(super) struct Wire {
    transport: Transport,
    /// Bytes that the old server of a handover had received, and how many of them are taken: they
    /// precede those in the socket.
    ahead: (Bytes, usize),
    /// Bytes that the old server had not sent yet, and how many of them are sent.
    owed: (Bytes, usize),
}

impl Wire {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, ahead: Default::default(), owed: Default::default() }
    }

    /// The wire of a connection that the old server of a handover has served.
    pub(super) fn carried(transport: Transport, ahead: Bytes, owed: Bytes) -> Self {
        Self { transport, ahead: (ahead, 0), owed: (owed, 0) }
    }

    /// Returns the rest of the bytes that the old server had received.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.ahead.0[self.ahead.1..]
    }

    /// Returns the rest of the bytes that the old server had not sent.
    pub(super) fn owed(&self) -> &[u8] {
        &self.owed.0[self.owed.1..]
    }

    /// Takes bytes that the old server had received, as many as the buffer holds.
    fn take_ahead(&mut self, buffer: &mut [u8]) -> usize {
        let n = self.ahead().len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.ahead()[..n]);
        self.ahead.1 += n;
        if self.ahead().is_empty() {
            self.ahead = Default::default();
        }
        n
    }

    /// Sends the bytes that the old server had not sent.
    fn pay(&mut self) -> io::Result<()> {
        while !self.owed().is_empty() {
            let n = send(self.transport.socket(), &[IoSlice::new(self.owed())])?;
            self.owed.1 += n;
        }
        if self.owed.1 > 0 {
            self.owed = Default::default();
        }
        Ok(())
    }

    /// Fills as much of `buffer` as has arrived; 0 is the end of the stream.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.ahead().is_empty() {
            return Ok(self.take_ahead(buffer));
        }
        let stream = match &mut self.transport {
            Transport::Plain(socket) => return receive(socket, buffer),
            Transport::Tls(stream) => stream,
        };
        loop {
            match stream.session.reader().read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // A peer that closes without TLS's close_notify has ended all the same: no later
                // bytes are accepted.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            if stream.session.read_tls(&mut NoWait(&stream.socket))? == 0 {
                return Ok(0);
            }
            stream.session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Sends as many of the bytes, in order, as the socket accepts.
    pub(super) fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.pay()?;
        let stream = match &mut self.transport {
            Transport::Plain(socket) => return send(socket, bytes),
            Transport::Tls(stream) => stream,
        };
        push_tls(stream)?;
        let taken = stream.session.writer().write_vectored(bytes)?;
        match push_tls(stream) {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(taken),
        }
    }

    /// Sends bytes that an earlier call accepted but the socket did not. Returns true when none are
    /// left.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        match &mut self.transport {
            Transport::Plain(_) => match self.pay() {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Err(e) => Err(e),
            },
            Transport::Tls(stream) => match push_tls(stream) {
                Ok(()) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Err(e) => Err(e),
            },
        }
    }

    /// Returns true when bytes may be waiting that are no longer in the socket.
    pub(super) fn may_hold_more(&self) -> bool {
        matches!(self.transport, Transport::Tls(_)) || !self.ahead().is_empty()
    }

    /// Ends the stream in this direction.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.transport.finish()
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

fn push_tls(stream: &mut crate::nbd::TlsStream) -> io::Result<()> {
    while stream.session.wants_write() {
        stream.session.write_tls(&mut NoWait(&stream.socket))?;
    }
    Ok(())
}

fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
    let (n, _) = rustix::io::retry_on_intr(|| recv(socket, &mut *buffer, RecvFlags::DONTWAIT))?;
    Ok(n)
}

fn send(socket: &Socket, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let send = || sendmsg(socket, bytes, &mut SendAncillaryBuffer::default(), flags);
    Ok(rustix::io::retry_on_intr(send)?)
}

/// The socket for rustls, also without waiting.
struct NoWait<'a>(&'a Socket);

impl Read for NoWait<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(self.0, buffer)
    }
}

impl Write for NoWait<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send(self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        send(self.0, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
