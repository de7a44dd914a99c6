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

use super::{SOON, Server};
use crate::dm::orders::Answer;
use crate::error::Result;

/// How often the server looks whether its file is still mounted.
const LOOK: Duration = Duration::from_millis(500);

impl Server {
    /// Waits for another back end, which connects to the socket beside the file. None: the file is
    /// unmounted, or there is none.
    pub(super) fn next_back_end(&self, why: &underseal_export::Error) -> Option<Line> {
        let shown = self.shown.as_ref()?;
        log::warn!("the back end is gone ({}): the table is served on", underseal_error::with_causes(why));
        let socket = shown.carried.place.path.with_file_name(super::super::SERVER_SOCKET);
        let next = match listen(&socket) {
            Ok(listener) => wait(&listener, || shown.serves.is_finished()),
            Err(e) => {
                log::error!("{}: no other back end can have the table: {e}", socket.display());
                None
            }
        };
        let _ = fs::remove_file(&socket);
        next.map(|socket| Line::new(Socket::from(OwnedFd::from(socket))))
    }

    /// Says what it has to a back end that has come.
    pub(super) fn present_to(&self, line: &Line) -> Result<()> {
        let devices = self.opened.as_ref().map(|opened| opened.devices()).unwrap_or_default();
        let locks = self.locks.iter().map(|lock| lock.as_fd());
        let fds: Vec<_> = devices.iter().map(|file| file.as_fd()).chain(locks).collect();
        let suspended = self.mapping().is_ok_and(|mapping| mapping.is_stopped());
        let remembered = self.remembered.as_ref().map(|key| key.as_bytes()).unwrap_or_default();
        Ok(line.send(&Answer::Adopted { suspended }, &fds, &[remembered], Instant::now() + SOON)?)
    }
}

fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    let _ = fs::remove_file(socket);
    UnixListener::bind(socket)
}

/// Waits for a connection of this process's own user's, until there is nothing more to wait for.
fn wait(listener: &UnixListener, is_over: impl Fn() -> bool) -> Option<UnixStream> {
    let each = Timespec::try_from(LOOK).ok()?;
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
