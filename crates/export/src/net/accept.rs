//! Waiting for clients at several sockets at once.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::{Listener, timespec};

/// How long listeners are not polled after a failed accept (out of descriptors, memory or threads).
pub(crate) const RECOVER: Duration = Duration::from_millis(100);

/// Until `stop` is readable, lets `welcome` accept one client of each listener a turn, so that no
/// listener starves another. The result of `welcome` is how long not to poll the listeners. Fails
/// when the system cannot wait.
pub(crate) fn until_stopped(
    stop: impl AsFd,
    listeners: &[Listener],
    mut welcome: impl FnMut(&Listener) -> Option<Duration>,
) -> rustix::io::Result<()> {
    let mut pause: Option<Duration> = None;
    loop {
        let wait = pause.take();
        let listeners = if wait.is_none() { listeners } else { &[] };
        let mut fds = vec![PollFd::new(&stop, PollFlags::IN)];
        fds.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        match poll(&mut fds, wait.map(timespec).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e),
        }
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
        let ready = fds[1..].iter().zip(listeners).filter(|(fd, _)| !fd.revents().is_empty());
        pause = ready.filter_map(|(_, listener)| welcome(listener)).max();
    }
}
