//! A table server whose back end is gone: it continues, and waits for another back end.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use underseal_export::control::Line;
use underseal_export::net::Socket;

use super::{SOON, Server, Suspended};
use crate::dm::SERVER_SOCKET;
use crate::dm::orders::Answer;
use crate::error::{Error, Result};

/// The interval at which the server checks that its file is still mounted.
const LOOK: Duration = Duration::from_millis(500);

impl Server {
    /// Waits for another back end, which connects to the socket beside the file. Returns `None`
    /// when the file is unmounted, or was never shown.
    pub(super) fn next_back_end(&mut self, why: &Error) -> Option<Line> {
        self.shown.as_ref()?;
        log::warn!("the back end is gone ({}): the table is served on", why.what());
        if self.given.is_some() {
            // If the other server has begun to take the mount, it soon ends or has the mount.
            let retrieved = self.retrieve(None);
            let kept = match self.given {
                Some(Suspended::ForGiving) => retrieved.and_then(|()| self.keep()),
                _ => retrieved,
            };
            if let Err((_, why)) = kept {
                log::error!("the table cannot be resumed: {why}");
            }
        }
        let shown = self.shown.as_ref()?;
        let socket = shown.file().with_file_name(SERVER_SOCKET);
        let next = wait_at(&socket, LOOK, || shown.is_over());
        next.map(|socket| Line::new(Socket::from(OwnedFd::from(socket))))
    }

    /// Sends a new back end this server's facts and descriptors.
    pub(super) fn present_to(&mut self, line: &Line) -> Result<()> {
        let devices = self.opened.as_ref().map(|opened| opened.devices()).unwrap_or_default();
        let locks = self.locks.iter().map(|lock| lock.as_fd());
        let fds: Vec<_> = devices.iter().map(|file| file.as_fd()).chain(locks).collect();
        let suspended = self.mapping().is_ok_and(|mapping| mapping.is_stopped());
        let remembered = self.remembered.as_ref().map(|key| key.as_bytes()).unwrap_or_default();
        Ok(line.send(&Answer::Adopted { suspended }, &fds, &[remembered], Instant::now() + SOON)?)
    }
}

/// Waits at a socket for a back end, until `is_over` returns true.
fn wait_at(socket: &Path, each: Duration, is_over: impl Fn() -> bool) -> Option<UnixStream> {
    let next = listen_once_possible(socket, each, &is_over).and_then(|on| wait(&on, each, &is_over));
    let _ = fs::remove_file(socket);
    next
}

/// Listens at a socket as soon as its file system has room for that. Returns `None` when `is_over`
/// returns true before.
fn listen_once_possible(socket: &Path, each: Duration, is_over: impl Fn() -> bool) -> Option<UnixListener> {
    let mut is_logged = false;
    while !is_over() {
        match listen(socket) {
            Ok(listener) => return Some(listener),
            Err(e) if !is_logged => {
                log::error!("{}: no other back end can have the table for now: {e}", socket.display());
                is_logged = true;
            }
            Err(_) => {}
        }
        thread::sleep(each);
    }
    None
}

fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    let _ = fs::remove_file(socket);
    UnixListener::bind(socket)
}

/// Waits for a connection from this process's user, until `is_over` returns true.
fn wait(listener: &UnixListener, each: Duration, is_over: impl Fn() -> bool) -> Option<UnixStream> {
    let each = Timespec::try_from(each).ok()?;
    loop {
        if is_over() {
            return None;
        }
        let mut polled = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        if !poll(&mut polled, Some(&each)).is_ok_and(|ready| ready > 0) {
            continue;
        }
        let Ok((socket, _)) = listener.accept() else { continue };
        match socket_peercred(&socket) {
            Ok(peer) if peer.uid == rustix::process::geteuid() => return Some(socket),
            _ => log::warn!("another user is not let in"),
        }
    }
}
