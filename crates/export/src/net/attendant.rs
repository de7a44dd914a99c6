//! Who waits at a socket besides the data path: accepts on a thread of its own and gives each
//! client a short-lived one, so many at a time and no more.
//!
//! ```text
//!   accept::until_stopped --> accept --> fewer than `limit`?  a thread: Attend::serve
//!                                        else                 Attend::turn_away, at once
//! ```
//!
//! It shares nothing with the threads that serve the volume.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::accept::{RECOVER, until_stopped};
use super::{CarriedListener, Listener, Socket};
use crate::event::{event, raise};
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
    gate: Gate,
    thread: Option<JoinHandle<()>>,
}

/// Lets clients in, or keeps them waiting outside.
#[derive(Debug, Clone)]
pub struct Gate {
    /// Nobody is let in; locked while somebody is.
    closed: Arc<Mutex<bool>>,
    serving: Arc<AtomicUsize>,
    listeners: Weak<Vec<Listener>>,
}

/// How long listeners are left alone while the gate is closed.
const CLOSED: Duration = Duration::from_millis(10);

impl Gate {
    /// Lets nobody in from now on, and waits until no more than so many are being served. Whether
    /// it has come to that in time.
    pub fn close(&self, but: usize, limit: Duration) -> bool {
        *self.closed() = true;
        let end = Instant::now() + limit;
        while self.serving.load(Ordering::Acquire) > but {
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// How many are being served.
    pub(crate) fn serving(&self) -> usize {
        self.serving.load(Ordering::Acquire)
    }

    /// Somebody is served who has not come through it: as long as this is kept.
    pub(crate) fn occupy(&self) -> Place {
        Place::take(&self.serving)
    }

    /// Lets clients in again.
    pub fn open(&self) {
        *self.closed() = false;
    }

    /// The listening sockets, for another process.
    ///
    /// # Errors
    /// `Io` when there is no descriptor left; `Listen` when nobody is let in any more.
    pub fn listeners(&self) -> Result<Vec<CarriedListener>> {
        let listeners =
            self.listeners.upgrade().ok_or_else(|| Error::new(ErrorKind::Listen, "it is about to end"))?;
        listeners.iter().map(Listener::carried).collect()
    }

    /// Sockets that were another process's are this one's from now on.
    ///
    /// # Errors
    /// As [`Listener::is_ours`].
    pub fn are_ours(&self) -> Result<()> {
        self.listeners.upgrade().map_or(Ok(()), |listeners| listeners.iter().try_for_each(Listener::is_ours))
    }

    fn closed(&self) -> MutexGuard<'_, bool> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attendant {
    /// What keeps its clients waiting.
    pub(crate) fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Accepts on the listeners from now on, or once its gate is opened. `name` is what threads are
    /// called, at most 15 letters.
    ///
    /// # Errors
    /// `Listen` when there is no descriptor or thread to be had.
    pub(crate) fn start(
        name: &str,
        listeners: Vec<Listener>,
        open: bool,
        limit: usize,
        attend: Arc<impl Attend>,
    ) -> Result<Self> {
        let failed =
            |e: std::io::Error| Error::new(ErrorKind::Listen, format!("{name}: cannot start")).with_source(e);
        let stop = Arc::new(event().map_err(failed)?);
        let (stopped, thread_name) = (stop.clone(), name.to_owned());
        let listeners = Arc::new(listeners);
        let (closed, serving) = (Arc::new(Mutex::new(!open)), Arc::default());
        let gate = Gate { closed, serving, listeners: Arc::downgrade(&listeners) };
        let at = gate.clone();
        let body = move || accept(&thread_name, &stopped, (&listeners, &at), limit, &attend);
        let thread = thread::Builder::new().name(name.into()).spawn(body).map_err(failed)?;
        Ok(Self { stop, gate, thread: Some(thread) })
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        raise(&self.stop, 1);
        if let Some(thread) = self.thread.take() {
            // A panic was told of when it happened.
            let _ = thread.join();
        }
    }
}

fn accept(
    name: &str,
    stop: &OwnedFd,
    (listeners, gate): (&[Listener], &Gate),
    limit: usize,
    attend: &Arc<impl Attend>,
) {
    let serving = &gate.serving;
    let welcome = |listener: &Listener| {
        let closed = gate.closed();
        if *closed {
            return Some(CLOSED);
        }
        let client = match listener.accept() {
            Ok(client) => client?,
            Err(e) => {
                log::debug!("{listener}: no client can be accepted: {e}");
                return Some(RECOVER);
            }
        };
        if serving.load(Ordering::Acquire) >= limit {
            attend.turn_away(client);
            return None;
        }
        let (place, attend) = (Place::take(serving), attend.clone());
        let body = move || {
            attend.serve(client);
            drop(place);
        };
        let started = thread::Builder::new().name(name.into()).spawn(body);
        started.err().map(|e| {
            log::debug!("{listener}: no thread for a client: {e}");
            RECOVER
        })
    };
    if let Err(e) = until_stopped(stop, listeners, welcome) {
        log::error!("{name}: waiting for clients failed, so there are none from here on: {e}");
    }
}

/// One of the clients that are being served; given back however its thread ends.
pub(crate) struct Place(Arc<AtomicUsize>);

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
