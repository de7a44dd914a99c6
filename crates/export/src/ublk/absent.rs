//! In place of ublk where it was left out of the build: the same names, and nothing that exists.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use underseal_datapath::Mapping;

use super::{UblkConfig, UblkPlace};
use crate::{Error, ErrorKind, Result};

/// A volume that is served as a block device: there is none. (Private, so that code which serves one compiles without warnings.)
#[derive(Debug)]
pub struct UblkServer(Infallible);

/// What stops it.
#[derive(Debug, Clone)]
pub struct UblkStopper(Infallible);

/// What lets go of its device.
#[derive(Debug, Clone)]
pub struct UblkHolder(Infallible);

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

    /// There is no ublk here.
    ///
    /// # Errors
    /// `UblkDevice`.
    pub fn take_over(_mapping: Arc<Mapping>, _place: &UblkPlace) -> Result<Self> {
        available().and_then(|()| Err(Error::new(ErrorKind::UblkDevice, "no ublk")))
    }

    /// What lets go of its device.
    pub fn holder(&self) -> UblkHolder {
        match self.0 {}
    }

    /// The device.
    pub fn device(&self) -> &Path {
        match self.0 {}
    }

    /// The link to the device.
    pub fn link(&self) -> Option<&Path> {
        match self.0 {}
    }

    /// As where there is ublk.
    pub fn size_teller(&self) -> crate::TellSize {
        match self.0 {}
    }

    /// What stops this server.
    pub fn stopper(&self) -> UblkStopper {
        match self.0 {}
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// None.
    pub fn run(self) -> Result<()> {
        match self.0 {}
    }
}

impl UblkStopper {
    /// Stops it.
    pub fn stop(&self) {
        match self.0 {}
    }
}

impl UblkHolder {
    /// Whether the device is deleted.
    pub fn is_gone(&self) -> bool {
        match self.0 {}
    }

    /// The device, for another process.
    ///
    /// # Errors
    /// None.
    pub fn place(&self) -> std::result::Result<UblkPlace, String> {
        match self.0 {}
    }

    /// Lets go of it.
    ///
    /// # Errors
    /// None.
    pub fn let_go(&self, _until: Instant) -> Result<()> {
        match self.0 {}
    }

    /// Makes it ready.
    ///
    /// # Errors
    /// None.
    pub fn recover(&self, _until: Instant) -> Result<()> {
        match self.0 {}
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        match self.0 {}
    }
}
