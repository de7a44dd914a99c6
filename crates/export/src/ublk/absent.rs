//! In place of ublk where it was left out of the build: the same names, and nothing that exists.

use std::path::Path;
use std::sync::Arc;

use underseal_datapath::Mapping;

use super::UblkConfig;
use crate::{Error, ErrorKind, Result};

/// A volume that is served as a block device: there is none.
#[derive(Debug)]
pub enum UblkServer {}

/// What stops it.
#[derive(Debug, Clone)]
pub enum UblkStopper {}

/// Whether there is ublk.
///
/// # Errors
/// `UblkDevice`.
pub fn available() -> Result<()> {
    let context = "this program was built without ublk (the feature \"ublk\", which needs libclang)";
    Err(Error::new(ErrorKind::UblkDevice, context))
}

impl UblkServer {
    /// There is no ublk here.
    ///
    /// # Errors
    /// `UblkDevice`.
    pub fn start(_mapping: Arc<Mapping>, _config: UblkConfig) -> Result<Self> {
        available().and_then(|()| Err(Error::new(ErrorKind::UblkDevice, "no ublk")))
    }

    /// The device.
    pub fn device(&self) -> &Path {
        match *self {}
    }

    /// The link to the device.
    pub fn link(&self) -> Option<&Path> {
        match *self {}
    }

    /// What stops this server.
    pub fn stopper(&self) -> UblkStopper {
        match *self {}
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// None.
    pub fn run(self) -> Result<()> {
        match self {}
    }
}

impl UblkStopper {
    /// Stops it.
    pub fn stop(&self) {
        match *self {}
    }
}
