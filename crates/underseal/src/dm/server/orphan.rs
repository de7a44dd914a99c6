//! A table server whose back end is gone: it serves on, and waits for another back end.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use underseal_export::control::Line;
use underseal_export::net::Socket;

use super::{SOON, Server, Suspended};
use crate::dm::orders::Answer;
use crate::dm::{GIVEN_SOCKET, SERVER_SOCKET};
use crate::error::{Error, Result};

/// How often the server looks whether its file is still mounted.
const LOOK: Duration = Duration::from_millis(500);
/// How long, and how often, a server that has given its mount away looks for who has taken it.
const APPEARING: Duration = Duration::from_secs(2);
const LOOK_FOR_TAKER: Duration = Duration::from_millis(20);

impl Server {
    /// Waits for another back end, which connects to the socket beside the file. None: the file is
    /// unmounted, or there is none.
    pub(super) fn next_back_end(&mut self, why: &Error) -> Option<Line> {
        self.shown.as_ref()?;
        log::warn!("the back end is gone ({}): the table is served on", why.what());
        if self.given.is_some()
            && let Some(socket) = self.while_given()
        {
            return Some(Line::new(Socket::from(OwnedFd::from(socket))));
        }
        let shown = self.shown.as_ref()?;
        let socket = shown.carried.place.path.with_file_name(SERVER_SOCKET);
        let next = wait_at(&socket, LOOK, || shown.serves.is_finished());
        next.map(|socket| Line::new(Socket::from(OwnedFd::from(socket))))
    }

    /// Waits for a back end after the mount was given to another server, which may have taken it and
    /// waits under the other name: then this process ends. Where none has taken it, requests wait for
    /// this one, so it serves again, unless it was suspended before.
    fn while_given(&mut self) -> Option<UnixStream> {
        let place = &self.shown.as_ref()?.carried.place.path;
        let (given, taker) = (place.with_file_name(GIVEN_SOCKET), place.with_file_name(SERVER_SOCKET));
        let until = Instant::now() + APPEARING;
        let next = wait_at(&given, LOOK_FOR_TAKER, || taker.exists() || Instant::now() > until);
        if next.is_none() && taker.exists() {
            log::info!("another server has the table");
            std::process::exit(0);
        }
        if next.is_none()
            && self.given == Some(Suspended::ForGiving)
            && let Err((_, why)) = self.keep()
        {
            log::error!("the table cannot go on: {why}");
        }
        next
    }

    /// Says what it has to a back end that has come.
    pub(super) fn present_to(&mut self, line: &Line) -> Result<()> {
        // No other server has taken the mount that this one gave.
        if self.given == Some(Suspended::ForGiving)
            && let Err((_, why)) = self.keep()
        {
            log::error!("the table cannot go on: {why}");
        }
        let devices = self.opened.as_ref().map(|opened| opened.devices()).unwrap_or_default();
        let locks = self.locks.iter().map(|lock| lock.as_fd());
        let fds: Vec<_> = devices.iter().map(|file| file.as_fd()).chain(locks).collect();
        let suspended = self.mapping().is_ok_and(|mapping| mapping.is_stopped());
        let remembered = self.remembered.as_ref().map(|key| key.as_bytes()).unwrap_or_default();
        Ok(line.send(&Answer::Adopted { suspended }, &fds, &[remembered], Instant::now() + SOON)?)
    }
}

/// Waits at a socket for a back end, until `is_over` says that there is nothing more to wait for.
fn wait_at(socket: &Path, each: Duration, is_over: impl Fn() -> bool) -> Option<UnixStream> {
    let next = match listen(socket) {
        Ok(listener) => wait(&listener, each, is_over),
        Err(e) => {
            log::error!("{}: no other back end can have the table: {e}", socket.display());
            None
        }
    };
    let _ = fs::remove_file(socket);
    next
}

fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    let _ = fs::remove_file(socket);
    UnixListener::bind(socket)
}

/// Waits for a connection of this process's own user's, until there is nothing more to wait for.
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
