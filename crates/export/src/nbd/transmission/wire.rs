//! The connection's bytes, never waiting: a socket, bare or under TLS.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use crate::nbd::{Bytes, Transport};
use crate::net::Socket;

/// Receives and sends what it can at once; `WouldBlock` says that it can do nothing.
pub(super) struct Wire {
    transport: Transport,
    /// What another process had received of this connection, and how much of that is taken: it
    /// comes before what the socket has.
    ahead: (Bytes, usize),
    /// What that one owed the client, and how much of that is sent.
    owed: (Bytes, usize),
}

impl Wire {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, ahead: Default::default(), owed: Default::default() }
    }

    /// The wire of a connection that another process has served until now.
    pub(super) fn carried(transport: Transport, ahead: Bytes, owed: Bytes) -> Self {
        Self { transport, ahead: (ahead, 0), owed: (owed, 0) }
    }

    /// What is left of what another process had received.
    pub(super) fn ahead(&self) -> &[u8] {
        &self.ahead.0[self.ahead.1..]
    }

    /// What is left of what that one owed the client.
    pub(super) fn owed(&self) -> &[u8] {
        &self.owed.0[self.owed.1..]
    }

    /// Takes what came ahead, as much as there is room for.
    fn take_ahead(&mut self, buffer: &mut [u8]) -> usize {
        let n = self.ahead().len().min(buffer.len());
        buffer[..n].copy_from_slice(&self.ahead()[..n]);
        self.ahead.1 += n;
        if self.ahead().is_empty() {
            self.ahead = Default::default();
        }
        n
    }

    /// Sends what another process owed.
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
                // A peer that closes without a TLS goodbye has ended all the same: nothing after it
                // is believed.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            if stream.session.read_tls(&mut NoWait(&stream.socket))? == 0 {
                return Ok(0);
            }
            stream.session.process_new_packets().map_err(io::Error::other)?;
        }
    }

    /// Sends as many of the bytes, in order, as the socket takes.
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

    /// Sends what an earlier call took but the socket did not. True when nothing is left.
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

    /// True when bytes may be waiting that the socket no longer has.
    pub(super) fn may_hold_more(&self) -> bool {
        matches!(self.transport, Transport::Tls(_)) || !self.ahead().is_empty()
    }

    /// Says goodbye: no more bytes will come from this side.
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

/// The socket for rustls, not waiting either.
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
