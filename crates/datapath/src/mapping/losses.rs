//! Acknowledged writes that ended with an earlier server of the volume.
//!
//! A client that goes on with a new server, as a virtual machine and the users of a ublk device do,
//! knows of no power cut. Where the earlier server was killed and held acknowledged writes in its
//! memory, the flushes of such a client must not say that they are stored.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use underseal_device::each_below;

use super::Mapping;
use crate::{Error, ErrorKind, Result};

/// Whether an earlier server's acknowledged writes may be lost to a client that goes on.
#[derive(Default)]
pub(super) struct ServerLosses(AtomicBool);

impl Mapping {
    /// True when acknowledged writes end with this process until they are flushed; see
    /// [`Device::holds_acknowledged`](underseal_device::Device::holds_acknowledged).
    pub fn holds_acknowledged(&self) -> bool {
        let mut holds = false;
        each_below(&self.devices, |device| holds |= device.holds_acknowledged());
        holds && !self.read_only()
    }

    /// Notes that acknowledged writes of a client that goes on may be lost: every flush fails, and
    /// every durable write that is done by one.
    pub fn lose(&self, why: &str) {
        if !self.losses.0.swap(true, SeqCst) {
            log::error!(
                "{why}: writes that it had acknowledged, and that were not flushed, may be lost; every flush \
                 fails until the client starts anew"
            );
        }
    }

    /// Notes that the client has started anew, as after a power cut.
    pub fn start_anew(&self) {
        self.losses.0.store(false, SeqCst);
    }

    /// True while flushes [fail](Mapping::lose).
    pub fn is_lost(&self) -> bool {
        self.losses.0.load(SeqCst)
    }

    /// The result of a flush that the devices have done.
    pub(crate) fn flushed(&self) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Lower, "writes before this flush were lost with the server of then"))
    }
}
