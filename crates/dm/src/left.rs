//! Devices of a killed server.

use std::path::PathBuf;

use crate::host::{Names, Node};
use crate::names::{DeviceFolder, NodeNames};
use crate::{Result, Room};

/// The name of a device's file in its folder.
pub(crate) const FILE: &str = "volume";

/// A device of a killed server.
pub struct LeftNode {
    pub(crate) node: Box<dyn LeftDisk>,
    pub(crate) name: String,
    pub(crate) uuid: String,
    /// True for a device that was to be removed after its last close.
    pub(crate) is_deferred: bool,
    /// True for a device that had an inactive table, which is lost.
    pub(crate) was_loaded: bool,
    found: Found,
}

/// The state in which a device was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The device has a live table.
    Whole,
    /// The device was being created or removed.
    Part,
    /// The device's number belongs to another program by now.
    Foreign,
}

/// A node that is found again.
pub(crate) trait LeftDisk: Node {
    /// Returns the device's folder.
    fn folder(&self) -> &DeviceFolder;

    /// Returns the device's names, if it has a disk.
    fn names(&self) -> Option<NodeNames<'_>>;

    /// Records how it lies over the table that was found.
    fn lies(&self, room: Room, read_only: bool);

    /// Takes the disk off its table, which is not known.
    fn release(&self) -> Result<()>;

    /// Returns true when the disk is gone: its device number may be another one's by now.
    fn is_gone(&self) -> bool {
        false
    }

    /// Returns the number and the identity of a ublk disk.
    fn ublk(&self) -> Option<(u32, u64)> {
        None
    }
}

impl LeftNode {
    pub(crate) fn new(node: Box<dyn LeftDisk>, found: Found) -> Self {
        let folder = node.folder();
        let (name, uuid) = folder.remembered();
        let (is_deferred, was_loaded) = (folder.is_deferred(), folder.was_loaded());
        Self { node, name, uuid, is_deferred, was_loaded, found }
    }

    /// Returns the device's name; empty if it had none yet.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of its table's file.
    pub fn file(&self) -> PathBuf {
        self.node.folder().path().join(FILE)
    }

    /// Returns the number and the identity of its ublk disk, if it is one.
    pub fn ublk(&self) -> Option<(u32, u64)> {
        self.node.ublk()
    }

    /// Returns true when the device had a live table, and was not being removed.
    pub fn is_whole(&self) -> bool {
        self.found == Found::Whole
    }

    /// Takes the device off its table.
    ///
    /// # Errors
    /// `EBUSY` while other programs have it open.
    pub fn detach(&self) -> Result<()> {
        self.node.release()
    }

    /// Removes a device whose table server has ended too: every request for it fails.
    pub fn discard(self) {
        // Dropping the node unbinds a loop device, which needs its file, and then unmounts the
        // file; a ublk disk is stopped.
        if self.found != Found::Foreign
            && let Some(names) = self.node.names()
        {
            names.unname(Names { name: &self.name, uuid: &self.uuid });
            if !self.node.is_gone() {
                names.take_off_others("", "");
            }
        }
    }

    /// Leaves the device unchanged.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Shows the device under its names only.
    pub(crate) fn show(&self) {
        if let Some(names) = self.node.names() {
            names.show_again(Names { name: &self.name, uuid: &self.uuid });
        }
    }
}

/// Leaves a name that several devices claim to the device that the name's node leads to. Each other
/// device gets the name of its own node; a device without a node stays as it is.
pub(crate) fn with_own_names(mut left: Vec<LeftNode>) -> Vec<LeftNode> {
    let names: Vec<_> = left.iter().filter(|of| of.is_whole()).map(|of| of.name.clone()).collect();
    let claims = |name: &str| names.iter().filter(|claimed| *claimed == name).count();
    for left in left.iter_mut().filter(|left| left.is_whole() && claims(&left.name) > 1) {
        let Some(own_names) = left.node.names() else { continue };
        if own_names.leads_here_by(&left.name) {
            continue;
        }
        let own = own_names.nodes().filter_map(|node| node.file_name()?.to_str().map(str::to_owned));
        let own = { own }.find(|own| claims(own) == 0).unwrap_or_default();
        log::warn!("{}: another device has that name; this one is {own:?}", left.name);
        left.name = own;
    }
    let (named, unnamed) = left.into_iter().partition(|left| !left.is_whole() || !left.name.is_empty());
    for left in Vec::<LeftNode>::into_iter(unnamed) {
        log::error!("{}: a device without a name of its own is left as it is", left.file().display());
        left.leave();
    }
    named
}
