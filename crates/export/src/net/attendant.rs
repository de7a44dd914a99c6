//! Short connections apart from the data path: one thread accepts, and gives each client a
//! short-lived thread, up to a limit.
//!
//! ```text
//!   accept::until_stopped --> accept --> fewer than `limit`?  a thread: Attend::serve
//!                                        else                 Attend::turn_away, at once
//! ```
//!
//! An attendant shares nothing with the threads that serve the volume.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::accept::{RECOVER, until_stopped};
use super::{CarriedListener, Listener, Socket};
use crate::event::{event, raise};
use crate::{Error, ErrorKind, Result};

/// The handling of a client.
pub(crate) trait Attend: Send + Sync + 'static {
    /// Serves the client, on its thread.
    fn serve(&self, client: Socket);

    /// Refuses the client, on the thread that accepts: this must not wait.
    fn turn_away(&self, client: Socket);
}

/// An accepting thread. Dropping it stops accepting; clients that are being served end by
/// themselves.
#[derive(Debug)]
pub(crate) struct Attendant {
    stop: Arc<OwnedFd>,
    gate: Gate,
    thread: Option<JoinHandle<()>>,
}

/// A gate that admits clients, or keeps them waiting in the kernel.
#[derive(Debug, Clone)]
pub struct Gate {
    /// True while no client is accepted; locked during an accept.
    closed: Arc<Mutex<bool>>,
    serving: Arc<AtomicUsize>,
    listeners: Weak<Vec<Listener>>,
}

/// How long listeners are not polled while the gate is closed.
const CLOSED: Duration = Duration::from_millis(10);

impl Gate {
    /// Admits no client from now on, and waits until no more than `but` clients are being served.
    /// Returns false when the time has passed before.
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

    /// Returns the number of clients being served.
    pub(crate) fn serving(&self) -> usize {
        self.serving.load(Ordering::Acquire)
    }

    /// Counts a client that has not come through the gate as served, until the result is dropped.
    pub(crate) fn occupy(&self) -> Place {
        Place::take(&self.serving)
    }

    /// Admits clients again.
    pub fn open(&self) {
        *self.closed() = false;
    }

    /// Returns the listening sockets, for the new server of a handover.
    ///
    /// # Errors
    /// `Io` when no descriptor is left; `Listen` when the listeners are closed.
    pub fn listeners(&self) -> Result<Vec<CarriedListener>> {
        let listeners =
            self.listeners.upgrade().ok_or_else(|| Error::new(ErrorKind::Listen, "it is about to end"))?;
        listeners.iter().map(Listener::carried).collect()
    }

    /// Makes this process the owner of sockets that an old server passed on.
    ///
    /// # Errors
    /// `Listen`, as [`Listener::is_ours`].
    pub fn are_ours(&self) -> Result<()> {
        self.listeners.upgrade().map_or(Ok(()), |listeners| listeners.iter().try_for_each(Listener::is_ours))
    }

    fn closed(&self) -> MutexGuard<'_, bool> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attendant {
    /// Returns the gate that can hold back clients.
    pub(crate) fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Accepts on the listeners, at once or when the gate is opened. `name` is the threads' name,
    /// of at most 15 characters. Fails with `Listen` when no descriptor or thread can be had.
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
            // A panic is reported when it happens.
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

/// A client that is counted as served until this is dropped, however its thread ends.
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
