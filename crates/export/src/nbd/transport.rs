//! The bytes between client and server: a socket, or TLS over it.
//!
//! ```text
//!   Transport = Plain(Socket) | Tls(TlsStream { session, socket })      blocking Read + Write
//! ```
//!
//! The handshake never reads ahead: the bytes behind its last option are still in the socket or,
//! with TLS, in the session, which stays with the transport.

use std::{
    io::{self, Read, Write},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::net::Shutdown;
use rustls::ServerConnection;

use crate::net::Socket;

/// A client's connection after its handshake. Reads and writes block.
#[derive(Debug)]
pub enum Transport {
    /// Plain bytes.
    Plain(Socket),
    /// TLS.
    Tls(Box<TlsStream>),
}

impl Transport {
    /// Returns the socket.
    pub fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.socket,
        }
    }

    /// Ends the stream in this direction: TLS's close_notify, then a shutdown. Reading from the
    /// client remains possible.
    ///
    /// # Errors
    /// The error of a client that has disconnected.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Self::Tls(stream) = self {
            stream.session.send_close_notify();
            stream.flush()?;
        }
        Ok(rustix::net::shutdown(self.socket(), Shutdown::Write)?)
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

/// A TLS session and its socket, for a caller that drives both. The session may hold plain text
/// that came with the handshake's last record: read it before waiting for the socket.
#[derive(Debug)]
pub struct TlsStream {
    /// The session, after its handshake.
    pub session: ServerConnection,
    /// The socket that carries its records.
    pub socket: Socket,
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        rustls::Stream::new(&mut self.session, &mut self.socket).read(buffer)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        rustls::Stream::new(&mut self.session, &mut self.socket).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        rustls::Stream::new(&mut self.session, &mut self.socket).flush()
    }
}
