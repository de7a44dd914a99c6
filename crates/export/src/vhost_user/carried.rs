//! A front end as one process gives it to another, which goes on with it: what was agreed, the
//! memory that it shares, its rings.
//!
//! Numbers are carried as text, and descriptors beside it, in the order in which they are named
//! here: the socket, the channel for what nobody asked for, the memory to track requests with, the
//! regions of guest memory, and each ring's kick, call and error.

use std::fs::File;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

/// A front end, for another process.
#[derive(Debug)]
pub struct CarriedFrontEnd {
    /// What is known of it.
    pub agreed: Agreed,
    /// Its descriptors.
    pub fds: Vec<OwnedFd>,
}

/// What is known of a front end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Agreed {
    /// How many descriptors there are.
    pub descriptors: usize,
    pub(super) device: CarriedDevice,
    /// There is a channel for what nobody asked for.
    pub(super) back: bool,
}

/// The device as the front end made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct CarriedDevice {
    pub(super) said: Said,
    /// Features in force: none after a reset, whatever was said.
    pub(super) features: u64,
    pub(super) inflight: Option<CarriedInflight>,
    pub(super) memory: Vec<CarriedRegion>,
    pub(super) queues: Vec<CarriedQueue>,
}

/// What the front end has said that the reader of its messages goes by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Said {
    /// It has asked for the features.
    pub(super) asked: bool,
    pub(super) features: u64,
    pub(super) protocol: u64,
}

/// Memory to track requests with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct CarriedInflight {
    pub(super) len: u64,
    pub(super) offset: u64,
    pub(super) queues: u16,
    pub(super) size: u16,
}

/// A region of guest memory, by the front end's and by the guest's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct CarriedRegion {
    pub(super) front: u64,
    pub(super) guest: u64,
    pub(super) len: u64,
    /// Where it begins in its file.
    pub(super) offset: u64,
}

/// A ring. Which of its descriptors there are, last.
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

/// Descriptors, one after the other.
pub(super) struct Descriptors(std::vec::IntoIter<OwnedFd>);

impl Descriptors {
    pub(super) fn new(fds: Vec<OwnedFd>) -> Self {
        Self(fds.into_iter())
    }

    pub(super) fn take(&mut self) -> Option<OwnedFd> {
        self.0.next()
    }

    /// The next one, if it is said to be there.
    pub(super) fn take_if(&mut self, there: bool) -> vhost::vhost_user::Result<Option<File>> {
        let file = || self.take().map(File::from).ok_or_else(|| super::broken("a descriptor did not come"));
        there.then(file).transpose()
    }

    /// Whether there are no more.
    pub(super) fn are_over(&self) -> bool {
        self.0.len() == 0
    }
}
