//! The socket for the device's notifications (`VHOST_USER_SET_BACKEND_REQ_FD`).
//!
//! The crate vhost accepts that socket but cannot send the one notification that is needed: that
//! the configuration has changed. So the message with the socket is taken here, before the crate
//! sees it; all other messages are the crate's.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketType, recv,
    recvmsg, send,
};

/// The length of a message's header: request, flags, length of the payload.
const HEADER: usize = 12;
const SET_BACKEND_REQ_FD: u32 = 21;
const CONFIG_CHANGE_MSG: u32 = 2;
/// Flags: the version, and whether a message is or needs a reply.
const VERSION: u32 = 1;
const IS_REPLY: u32 = 1 << 2;
const WANTS_REPLY: u32 = 1 << 3;

/// Waits for a message, and takes it if it brings the socket. Returns `None` for any other message,
/// which stays in the connection.
pub(super) fn take(from: &UnixStream, acknowledges: bool) -> io::Result<Option<UnixStream>> {
    let mut header = [0; HEADER];
    let (_, seen) = recv(from, &mut header[..], RecvFlags::PEEK)?;
    if seen < HEADER || word(&header, 0) != SET_BACKEND_REQ_FD {
        return Ok(None);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut header)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let brought = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let socket = brought.filter(|fd| word(&header, 8) == 0 && is_unix_stream(fd));
    let socket = socket.ok_or_else(|| io::Error::other("a channel for the device that is no socket"))?;
    if acknowledges && word(&header, 4) & WANTS_REPLY != 0 {
        let reply = [SET_BACKEND_REQ_FD, VERSION | IS_REPLY, 8, 0, 0].map(u32::to_ne_bytes).concat();
        send(from, &reply, SendFlags::NOSIGNAL)?;
    }
    Ok(Some(socket.into()))
}

/// Notifies the front end that the configuration has changed, without waiting: a front end that
/// does not read is not notified, which is an error.
pub(super) fn tell_of_change(to: &UnixStream) -> io::Result<()> {
    let message = [CONFIG_CHANGE_MSG, VERSION, 0].map(u32::to_ne_bytes).concat();
    send(to, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

fn is_unix_stream(fd: &OwnedFd) -> bool {
    socket_domain(fd) == Ok(AddressFamily::UNIX) && socket_type(fd) == Ok(SocketType::STREAM)
}

fn word(header: &[u8; HEADER], at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};

    use super::*;

    fn header(request: u32, flags: u32, len: u32) -> Vec<u8> {
        [request, flags, len].map(u32::to_ne_bytes).concat()
    }

    fn send_with(to: &UnixStream, message: &[u8], fd: std::os::fd::BorrowedFd<'_>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(to, &[io::IoSlice::new(message)], &mut ancillary, SendFlags::empty()).unwrap();
    }

    #[test]
    fn the_channel_is_taken_and_every_other_message_is_left() {
        use std::os::fd::AsFd;
        let (ours, mut front) = UnixStream::pair().unwrap();
        let (mut told, channel) = UnixStream::pair().unwrap();
        front.write_all(&header(1, VERSION, 0)).unwrap();
        assert!(take(&ours, true).unwrap().is_none());
        (&ours).read_exact(&mut [0; HEADER]).expect("it is still there");

        send_with(&front, &header(SET_BACKEND_REQ_FD, VERSION | WANTS_REPLY, 0), channel.as_fd());
        let taken = take(&ours, true).unwrap().unwrap();
        let mut reply = [0; HEADER + 8];
        front.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..HEADER], header(SET_BACKEND_REQ_FD, VERSION | IS_REPLY, 8));
        assert_eq!(reply[HEADER..], [0; 8]);
        tell_of_change(&taken).unwrap();
        let mut message = [0; HEADER];
        told.read_exact(&mut message).unwrap();
        assert_eq!(message[..], header(CONFIG_CHANGE_MSG, VERSION, 0));

        // A front end that does not read does not block the device.
        let full = std::iter::repeat_with(|| tell_of_change(&taken)).find_map(Result::err).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        drop(told);
        assert_eq!(tell_of_change(&taken).unwrap_err().kind(), io::ErrorKind::BrokenPipe);

        let file = std::fs::File::open("/dev/null").unwrap();
        send_with(&front, &header(SET_BACKEND_REQ_FD, VERSION, 0), file.as_fd());
        assert!(take(&ours, true).is_err());
        front.write_all(&header(SET_BACKEND_REQ_FD, VERSION, 0)).unwrap();
        assert!(take(&ours, true).is_err(), "nothing came with it");
        drop(front);
        assert!(take(&ours, true).unwrap().is_none(), "the end is the handler's");
    }
}
