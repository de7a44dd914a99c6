//! The socket for callers' ioctls.
//!
//! ```text
//!   request   the ioctl's number u32, the buffer's length u32, the buffer
//!   answer    errno u32, 0 for none; the buffer's length u32, the buffer
//! ```
//!
//! Numbers have the machine's byte order.
//!
//! Two requests are no ioctls: one keeps a key that a caller has added to its keyring; the other
//! grants a key to the next ioctl, which names it (`keys.rs`).
//!
//! A connection carries any number of requests, one after the other. Each connection has a thread:
//! commands may wait for a disk, and `DEV_WAIT` for an event. Root and the server's own user may
//! connect, according to the kernel, and each request must come from them, since other processes
//! inherit connections (`sender.rs`). A connection that other programs keep carries no requests
//! after [`STAY`].

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_passcred, socket_peercred};
use rustix::process::{Resource, getrlimit};
use underseal_cipher::Key;

use crate::header::{MOST, Message, VERSION};
use crate::sender::RequestReader;
pub use crate::sender::{thread_may_ask, user_of_thread};
use crate::{Caller, Command, Error, GrantedKeys, Mapper, Result};

/// The type of device mapper's ioctls (`_IOC_TYPE`).
const DM_IOCTL: u32 = 0xfd;
/// The requests that are no ioctls: keep a key, and grant a key to the next ioctl.
const KEEP: u32 = 0x4b01;
const GRANT: u32 = 0x4b02;
/// The request after which a connection only keeps the server from ending. Its length is 0; the
/// answer confirms the server.
pub const STAY: u32 = 0x5354;
/// The largest number of connections at a time.
const MOST_CLIENTS: usize = 1000;
/// How long the server waits when it has no descriptor left for a caller.
const SHORTAGE: Duration = Duration::from_millis(100);
/// How long a caller may take for the rest of a request, and for receiving an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The connected callers.
#[derive(Debug, Clone, Default)]
pub struct Callers(Arc<AtomicUsize>);

impl Callers {
    /// The count while no caller is let in.
    const CLOSED: usize = usize::MAX;

    /// Returns the number of callers.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// Lets no caller in any more, and returns true when none is connected. A connection that comes
    /// later ends before a byte of it is read.
    pub fn close(&self) -> bool {
        self.0.compare_exchange(0, Self::CLOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Lets callers in again after [`Callers::close`].
    pub fn reopen(&self) {
        let _ = self.0.compare_exchange(Self::CLOSED, 0, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Counts one more caller. Returns `None` for the caller after `most`, and while closed.
    fn enter(&self, most: usize) -> Option<Client> {
        let one_more = |count| (count < most).then(|| count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Client(self.0.clone()))
    }
}

/// Serves callers until the listener is closed or fails.
///
/// # Errors
/// The errors of the listening socket.
pub fn serve(listener: &UnixListener, mapper: &Mapper, callers: &Callers) -> io::Result<()> {
    // Accepted sockets inherit it from the listener, before their callers' bytes can arrive.
    set_socket_passcred(listener, true)?;
    let most = most_clients();
    let mut is_short = false;
    loop {
        let (socket, _) = match listener.accept() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
            // Callers that end release the missing descriptors or memory.
            Err(e) if is_shortage(&e) => {
                if !std::mem::replace(&mut is_short, true) {
                    log::error!("no caller can be accepted for now: {e}");
                }
                thread::sleep(SHORTAGE);
                continue;
            }
            accepted => accepted?,
        };
        is_short = false;
        if !is_allowed(&socket) {
            continue;
        }
        let Some(one) = callers.enter(most) else {
            if callers.count() != Callers::CLOSED {
                log::warn!("there are already {most} callers");
            }
            continue;
        };
        let mapper = mapper.clone();
        let began = thread::Builder::new().name("ioctl".into()).spawn(move || {
            if let Err(e) = talk(&socket, &mapper) {
                log::debug!("a caller has gone: {e}");
            }
            drop(one);
        });
        if let Err(e) = began {
            log::error!("no thread for a caller: {e}");
        }
    }
}

/// Returns the largest number of callers at a time: half of the descriptors are reserved for
/// tables.
fn most_clients() -> usize {
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    limit.map_or(MOST_CLIENTS, |limit| MOST_CLIENTS.min(limit / 2))
}

fn is_shortage(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// A connection, as long as it is served.
struct Client(Arc<AtomicUsize>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Returns true when the connected process belongs to root or to this process's user.
fn is_allowed(socket: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    match socket_peercred(socket) {
        Ok(peer) if peer.uid.is_root() || peer.uid == own => true,
        Ok(peer) => {
            log::warn!("user {} is refused", peer.uid.as_raw());
            false
        }
        Err(e) => {
            log::warn!("the user of a connection is unknown: {e}");
            false
        }
    }
}

/// Answers a caller's requests until the connection ends.
fn talk(socket: &UnixStream, mapper: &Mapper) -> io::Result<()> {
    socket.set_write_timeout(Some(PATIENCE))?;
    let mut keys = GrantedKeys::default();
    let mut requests = RequestReader::of(socket)?;
    loop {
        socket.set_read_timeout(None)?;
        let mut head = [0; 8];
        match requests.read(&mut head)? {
            0 => return Ok(()),
            n => {
                socket.set_read_timeout(Some(PATIENCE))?;
                requests.read_exact(&mut head[n..])?;
            }
        }
        let [a, b, c, d, e, f, g, h] = head;
        let (request, len) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        if request == STAY {
            return stay(socket);
        }
        if len as usize > MOST {
            send(socket, Some(Errno::NOMEM), &[])?;
            return Err(io::Error::other("a buffer is too long"));
        }
        let mut buffer = Key::zeroed(len as usize).map_err(io::Error::other)?;
        requests.read_exact(buffer.as_mut_bytes())?;
        let done = match request {
            KEEP => Some(mapper.kept().keep(buffer.as_bytes())),
            GRANT => Some(keys.grant(buffer.as_bytes(), mapper)),
            _ => None,
        };
        if let Some(done) = done {
            let errno = done.inspect_err(|e| log::warn!("{e} ({})", e.errno())).err().map(|e| e.errno());
            send(socket, errno, &[])?;
            continue;
        }
        let caller = Caller { is_there: &|| is_connected(socket), keys: &std::mem::take(&mut keys) };
        match answer(mapper, request, buffer, &caller) {
            Ok(message) => send(socket, None, message.answer())?,
            Err(e) => {
                // Programs often ask whether a device exists.
                let asked = matches!(e.errno(), Errno::NXIO | Errno::INTR);
                let level = if asked { log::Level::Debug } else { log::Level::Warn };
                log::log!(level, "ioctl {request:#x}: {e} ({})", e.errno());
                // The version is a part of every answer.
                let version = VERSION.map(u32::to_ne_bytes).concat();
                send(socket, Some(e.errno()), &version)?;
            }
        }
    }
}

/// Waits until all copies of the connection are closed. Received bytes are dropped.
fn stay(mut socket: &UnixStream) -> io::Result<()> {
    send(socket, None, &[])?;
    socket.set_read_timeout(None)?;
    while socket.read(&mut [0; 64])? > 0 {}
    Ok(())
}

/// Carries out an ioctl.
///
/// # Errors
/// The errno that the kernel returns.
pub fn answer(mapper: &Mapper, request: u32, buffer: Key, caller: &Caller<'_>) -> Result<Message> {
    if (request >> 8) & 0xff != DM_IOCTL {
        return Err(Error::new(Errno::NOTTY, "no ioctl of device mapper's"));
    }
    let mut message = Message::parse(buffer)?;
    let command = Command::from_number(request & 0xff)?;
    mapper.answer(command, &mut message, caller)?;
    Ok(message)
}

fn send(mut socket: &UnixStream, errno: Option<Errno>, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let errno = errno.map_or(0, |errno| u32::try_from(errno.raw_os_error()).unwrap_or(0));
    let mut head = [0; 8];
    head[..4].copy_from_slice(&errno.to_ne_bytes());
    head[4..].copy_from_slice(&len.to_ne_bytes());
    socket.write_all(&head)?;
    socket.write_all(bytes)
}

/// Returns true when the other side is still connected.
fn is_connected(socket: &UnixStream) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_caller_is_let_in_once_a_server_without_callers_is_closed() {
        let callers = Callers::default();
        let one = callers.enter(2).unwrap();
        assert!(!callers.close());
        let two = callers.enter(2).unwrap();
        assert!(callers.enter(2).is_none());
        drop((one, two));
        assert!(callers.close());
        assert!(callers.enter(2).is_none());
        callers.reopen();
        assert!(callers.enter(2).is_some());
        assert_eq!(callers.count(), 0);
    }
}
