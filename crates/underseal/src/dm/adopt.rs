//! The adoption of devices whose back end was killed, with their table servers.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use underseal_dm::{LeftNode, Mapper};

use super::child::Child;
use super::host::Tables;
use super::owner;

/// The interval at which a live server that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// How many devices are taken over at a time.
const SIDE_BY_SIDE: usize = 16;

/// Takes devices over.
#[derive(Clone)]
pub(super) struct Adoption {
    tables: Arc<Tables>,
    mapper: Mapper,
    /// The number of devices whose servers live and have not answered yet.
    waits: Arc<AtomicUsize>,
}

impl Adoption {
    pub(super) fn new(tables: Arc<Tables>, mapper: Mapper) -> Self {
        Self { tables, mapper, waits: Arc::default() }
    }

    /// Returns how many devices wait for their servers.
    pub(super) fn waiting(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Adopts these devices. A device whose server is busy, with a slow disk for example, keeps its
    /// name and is adopted later.
    pub(super) fn begin(&self, left: Vec<LeftNode>) {
        let left = Mutex::new(left.into_iter());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        // Callers wait for this: servers that hang are waited for side by side.
        let work = || {
            for left in std::iter::from_fn(next) {
                if let Some(busy) = self.settle(left) {
                    let name = busy.name();
                    log::warn!("{name}: its table's server does not answer, and is waited for");
                    self.wait_for(busy);
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..SIDE_BY_SIDE {
                drop(thread::Builder::new().name("adopts".into()).spawn_scoped(scope, work));
            }
            work();
        });
    }

    fn wait_for(&self, busy: LeftNode) {
        // Dropping the device would unbind it.
        let busy = ManuallyDrop::new(busy);
        let this = self.clone();
        let wait = move || {
            let mut left = Some(ManuallyDrop::into_inner(busy));
            while let Some(busy) = left {
                thread::sleep(AGAIN);
                left = this.settle(busy);
            }
            this.waits.fetch_sub(1, Ordering::Relaxed);
        };
        self.waits.fetch_add(1, Ordering::Relaxed);
        if let Err(e) = thread::Builder::new().name("adopts".into()).spawn(wait) {
            self.waits.fetch_sub(1, Ordering::Relaxed);
            log::error!("no thread to wait for a table's server: {e}");
        }
    }

    /// Adopts a device, or removes the rest of an incomplete one. Returns the device when its
    /// server is busy.
    fn settle(&self, left: LeftNode) -> Option<LeftNode> {
        if left.is_whole() { self.adopt(left) } else { Self::end(left) }
    }

    fn adopt(&self, left: LeftNode) -> Option<LeftNode> {
        let name = left.name().to_owned();
        match self.tables.adopt(&left.file(), left.ublk()) {
            Ok((table, read_only, suspended)) => {
                log::info!("{name}: taken over from a back end that is gone");
                if let Err(e) = self.mapper.adopt(left, table, read_only, suspended) {
                    log::error!("{name}: {e}");
                }
                None
            }
            Err(e) if owner::lives(&left.file()) == Some(true) => {
                log::debug!("{name}: {e}");
                Some(left)
            }
            Err(e) => {
                log::error!("{name}: its table's server is gone with what it had not written: {e}");
                left.discard();
                None
            }
        }
    }

    /// Ends the server of a device that was being made or removed: no program has the device open.
    fn end(left: LeftNode) -> Option<LeftNode> {
        let file = left.file();
        let place = file.display();
        if let Err(e) = left.detach() {
            if matches!(e.errno(), Errno::TIMEDOUT) {
                log::warn!("{place}: {e}");
                return Some(left);
            }
            log::error!("{place}: a device without a name, or a table, is left as it is: {e}");
            left.leave();
            return None;
        }
        if owner::lives(&file) == Some(true) {
            if let Err(e) = Child::end_left(&file) {
                log::debug!("{place}: {e}");
            }
            // A server that has ended has released its devices.
            if owner::lives(&file) == Some(true) {
                return Some(left);
            }
            log::info!("{place}: the server of a device that was being made or removed has ended");
        }
        left.discard();
        None
    }
}
