//! Who waits at a socket besides the data path: accepts on a thread of its own and gives each client a short-lived one,
//! so many at a time and no more.
//!
//! ```text
//!   accept::until_stopped --> accept --> fewer than `limit`?  a thread: Attend::serve
//!                                        else                 Attend::turn_away, at once
//! ```
//!
//! It shares nothing with the threads that serve the volume.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use super::accept::{RECOVER, until_stopped};
use super::{Listener, Socket};
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
    thread: Option<JoinHandle<()>>,
}

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
        let stop = Arc::new(event().map_err(failed)?);
        let (stopped, thread_name) = (stop.clone(), name.to_owned());
        let body = move || accept(&thread_name, &stopped, &listeners, limit, &attend);
        let thread = thread::Builder::new().name(name.into()).spawn(body).map_err(failed)?;
        Ok(Self { stop, thread: Some(thread) })
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

fn accept(name: &str, stop: &OwnedFd, listeners: &[Listener], limit: usize, attend: &Arc<impl Attend>) {
    let serving = Arc::new(AtomicUsize::new(0));
    let welcome = |listener: &Listener| {
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
        let (place, attend) = (Place::take(&serving), attend.clone());
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
