//! Who waits at a socket besides the data path: accepts on a thread of its own and gives each client a short-lived one,
//! so many at a time and no more.
//!
//! ```text
//!   poll(stop, listeners) --> accept --> fewer than `limit`?  a thread: Attend::serve
//!                                        else                 Attend::turn_away, at once
//! ```
//!
//! It shares nothing with the threads that serve the volume.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use crate::nbd::transport::timespec;
use crate::nbd::{Listener, Socket};
use crate::{Error, ErrorKind, Result};

/// What is done with a client.
pub(crate) trait Attend: Send + Sync + 'static {
    /// Serves it, on a thread of its own.
    fn serve(&self, client: Socket);

    /// Sends it away, on the thread that accepts: this must not wait.
    fn turn_away(&self, client: Socket);
}

/// Dropping it stops accepting. Clients that are being served end by themselves.
#[derive(Debug)]
pub(crate) struct Attendant {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// How long to leave listeners alone when one cannot accept (out of descriptors, memory or threads).
const RECOVER: Duration = Duration::from_millis(100);

impl Attendant {
    /// Accepts on the listeners from now on. `name` is what threads are called, at most 15 letters.
    ///
    /// # Errors
    /// `Listen` when there is no descriptor or thread to be had.
    pub(crate) fn start(
        name: &str,
        listeners: Vec<Listener>,
        limit: usize,
        attend: Arc<impl Attend>,
    ) -> Result<Self> {
        let failed =
            |e: std::io::Error| Error::new(ErrorKind::Listen, format!("{name}: cannot start")).with_source(e);
        let stop =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
        let stop = Arc::new(stop);
        let (stopped, thread_name) = (stop.clone(), name.to_owned());
        let body = move || accept(&thread_name, &stopped, &listeners, limit, &attend);
        let thread = thread::Builder::new().name(name.into()).spawn(body).map_err(failed)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        // The only failure is a counter near 2^64, which is readable all the same.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic was told of when it happened.
            let _ = thread.join();
        }
    }
}

fn accept(name: &str, stop: &OwnedFd, listeners: &[Listener], limit: usize, attend: &Arc<impl Attend>) {
    let serving = Arc::new(AtomicUsize::new(0));
    let mut pause: Option<Duration> = None;
    loop {
        let wait = pause.take();
        let listeners = if wait.is_none() { listeners } else { &[] };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
        match poll(&mut fds, wait.map(timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => {
                return log::error!(
                    "{name}: waiting for clients failed, so there are none from here on: {e}"
                );
            }
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        for (_, listener) in fds[1..].iter().zip(listeners).filter(|(fd, _)| !fd.revents().is_empty()) {
            let client = match listener.accept() {
                Ok(client) => client,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => continue,
                Err(e) => {
                    log::debug!("{listener}: no client can be accepted: {e}");
                    pause = Some(RECOVER);
                    continue;
                }
            };
            if serving.load(Ordering::Acquire) >= limit {
                attend.turn_away(client);
                continue;
            }
            let (place, attend) = (Place::take(&serving), attend.clone());
            let body = move || {
                attend.serve(client);
                drop(place);
            };
            if let Err(e) = thread::Builder::new().name(name.into()).spawn(body) {
                log::debug!("{listener}: no thread for a client: {e}");
                pause = Some(RECOVER);
            }
        }
    }
}

/// One of the clients that are being served; given back however its thread ends.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(serving: &Arc<AtomicUsize>) -> Self {
        serving.fetch_add(1, Ordering::AcqRel);
        Self(serving.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
