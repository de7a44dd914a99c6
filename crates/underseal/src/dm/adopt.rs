//! Devices of a back end that was killed: taken over with their table servers.

use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use underseal_dm::{LeftNode, Mapper};

use super::child::Child;
use super::host::Tables;
use super::owner;

/// How often a server that lives and does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Takes devices over.
#[derive(Clone)]
pub(super) struct Adoption {
    tables: Arc<Tables>,
    mapper: Mapper,
    /// Devices whose servers live and have not answered yet.
    waits: Arc<AtomicUsize>,
}

impl Adoption {
    pub(super) fn new(tables: Arc<Tables>, mapper: Mapper) -> Self {
        Self { tables, mapper, waits: Arc::default() }
    }

    /// How many devices wait for their servers.
    pub(super) fn waiting(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Takes these over. The server of one may be busy, with a slow disk for example: such a device
    /// keeps its name and is taken over later.
    pub(super) fn begin(&self, left: Vec<LeftNode>) {
        for left in left {
            if let Some(busy) = self.settle(left) {
                let name = busy.name();
                log::warn!("{name}: its table's server does not answer, and is waited for");
                self.wait_for(busy);
            }
        }
    }

    fn wait_for(&self, busy: LeftNode) {
        // Dropped, the device would be unbound.
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

    /// Takes a device over, or what is left of one away. The device when its server is busy.
    fn settle(&self, left: LeftNode) -> Option<LeftNode> {
        if left.is_whole() { self.adopt(left) } else { Self::end(left) }
    }

    fn adopt(&self, left: LeftNode) -> Option<LeftNode> {
        let name = left.name().to_owned();
        match self.tables.adopt(&left.file()) {
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

    /// Has the server end of a device that was not yet there, or not any more: no program has it open.
    fn end(left: LeftNode) -> Option<LeftNode> {
        let file = left.file();
        let place = file.display();
        if let Err(e) = left.detach() {
            log::error!("{place}: a device without a name, or a table, is left as it is: {e}");
            left.leave();
            return None;
        }
        if owner::lives(&file) == Some(true) {
            if let Err(e) = Child::end_left(&file) {
                log::debug!("{place}: {e}");
            }
            // A server that has ended has let go of its devices.
            if owner::lives(&file) == Some(true) {
                return Some(left);
            }
            log::info!("{place}: the server of a device that was being made or removed has ended");
        }
        left.discard();
        None
    }
}
