//! A front end that a handover passes on: the negotiated features, shared memory, and rings.
//!
//! Numbers are passed as text, and descriptors beside it, in this order: the socket, the channel
//! for notifications, the memory for in-flight tracking, the regions of guest memory, and each
//! ring's kick, call and error.

use std::fs::File;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

/// A front end, for the new server of a handover.
#[derive(Debug)]
pub struct CarriedFrontEnd {
    /// The state of the front end.
    pub agreed: Agreed,
    /// The descriptors.
    pub fds: Vec<OwnedFd>,
}

/// The state of a front end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Agreed {
    /// The number of descriptors.
    pub descriptors: usize,
    pub(super) device: CarriedDevice,
    /// True when the front end has sent a channel for notifications.
    pub(super) back: bool,
}

/// The device as the front end has configured it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct CarriedDevice {
    pub(super) said: Said,
    /// The features in force: none after a reset, whatever was negotiated.
    pub(super) features: u64,
    pub(super) inflight: Option<CarriedInflight>,
    pub(super) memory: Vec<CarriedRegion>,
    pub(super) queues: Vec<CarriedQueue>,
}

/// Messages of the front end that affect how later messages are parsed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Said {
    /// True when the front end has asked for the features.
    pub(super) asked: bool,
    pub(super) features: u64,
    pub(super) protocol: u64,
}

/// Memory for in-flight tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct CarriedInflight {
    pub(super) len: u64,
    pub(super) offset: u64,
    pub(super) queues: u16,
    pub(super) size: u16,
}

/// A region of guest memory, with its addresses in the front end and in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct CarriedRegion {
    pub(super) front: u64,
    pub(super) guest: u64,
    pub(super) len: u64,
    /// The region's offset in its file.
    pub(super) offset: u64,
}

/// A ring. The last fields say which of its descriptors are present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct CarriedQueue {
    pub(super) size: u16,
    pub(super) at: Option<[u64; 3]>,
    pub(super) lies: Option<[u64; 3]>,
    pub(super) base: u16,
    pub(super) enabled: bool,
    pub(super) runs: bool,
    pub(super) broken: bool,
    pub(super) kick: bool,
    pub(super) call: bool,
    pub(super) error: bool,
}

/// Descriptors in their order.
pub(super) struct Descriptors(std::vec::IntoIter<OwnedFd>);

impl Descriptors {
    pub(super) fn new(fds: Vec<OwnedFd>) -> Self {
        Self(fds.into_iter())
    }

    pub(super) fn take(&mut self) -> Option<OwnedFd> {
        self.0.next()
    }

    /// Takes the next descriptor, if the state says that it is present.
    pub(super) fn take_if(&mut self, there: bool) -> vhost::vhost_user::Result<Option<File>> {
        let file = || self.take().map(File::from).ok_or_else(|| super::broken("a descriptor did not come"));
        there.then(file).transpose()
    }

    /// Returns true when all descriptors are taken.
    pub(super) fn are_over(&self) -> bool {
        self.0.len() == 0
    }
}
