//! Devices of a killed server.

use std::fs;
use std::path::{Path, PathBuf};

use super::work::{Binding, binding, is_taken};
use super::{DEFERRED, LOADED, LoopNode, LoopNodes, NAMES, OWNER_FILE, device_of};
use crate::Result;
use crate::host::{Names, Node};

/// A device of a killed server.
pub struct LeftNode {
    pub(crate) node: LoopNode,
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
enum Found {
    /// The device has a live table.
    Whole,
    /// The device was being created or removed.
    Part,
    /// The device's number belongs to another program by now.
    Foreign,
}

impl LoopNodes {
    /// Returns the devices of a killed server in this folder, and the remains of devices that it
    /// was creating or removing.
    pub fn left(&self) -> Vec<LeftNode> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        self.with_own_names(numbers.filter_map(|number| self.left_at(number)).collect())
    }

    /// Leaves a name that several devices claim to the device that the name's node leads to. Each
    /// other device gets the name of its own node; a device without a node stays as it is.
    fn with_own_names(&self, mut left: Vec<LeftNode>) -> Vec<LeftNode> {
        let names: Vec<_> = left.iter().filter(|of| of.is_whole()).map(|of| of.name.clone()).collect();
        let claims = |name: &str| names.iter().filter(|claimed| *claimed == name).count();
        for left in left.iter_mut().filter(|left| left.is_whole() && claims(&left.name) > 1) {
            if left.node.leads_here(&self.mapper.join(&left.name)) {
                continue;
            }
            let own = left.node.nodes().filter_map(|node| node.file_name()?.to_str().map(str::to_owned));
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

    fn left_at(&self, number: u32) -> Option<LeftNode> {
        let folder = self.folder.join(number.to_string());
        let names = fs::read_to_string(folder.join(NAMES)).unwrap_or_default();
        let (name, uuid) = names.split_once('\0').unwrap_or_default();
        // A table's server may be running without its loop device.
        let dev = device_of(number).or_else(|_| Self::add(Some(number), number).and_then(device_of));
        let dev = dev.inspect_err(|e| log::warn!("{}: {e}", folder.display())).ok()?;
        let node = self.node(number, dev);
        let found = match binding(number, &node.folder) {
            Ok(Binding::Other) => Found::Foreign,
            Ok(Binding::Own) if !name.is_empty() && node.has_size() && !is_taken(&node.folder) => {
                Found::Whole
            }
            _ => Found::Part,
        };
        let is_deferred = folder.join(DEFERRED).exists();
        let loaded = fs::read(folder.join(LOADED));
        let was_loaded =
            loaded.is_ok_and(|turn| turn == fs::read(folder.join(OWNER_FILE)).unwrap_or_default());
        Some(LeftNode { node, name: name.into(), uuid: uuid.into(), is_deferred, was_loaded, found })
    }
}

impl LeftNode {
    /// Returns the device's name; empty if it had none yet.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of its table's file.
    pub fn file(&self) -> PathBuf {
        self.node.file()
    }

    /// Returns true when the device had a live table, and was not being removed.
    pub fn is_whole(&self) -> bool {
        self.found == Found::Whole
    }

    /// Unbinds the device from its file.
    ///
    /// # Errors
    /// `EBUSY` while other programs have it open.
    pub fn detach(&self) -> Result<()> {
        self.node.detach()
    }

    /// Removes a device whose table server has ended too: every request for it fails.
    pub fn discard(self) {
        // Dropping the node unbinds it, which needs its file, and then unmounts the file.
        if self.found != Found::Foreign {
            self.node.unname(Names { name: &self.name, uuid: &self.uuid });
            self.node.take_off_others("", "");
        }
    }

    /// Leaves the device unchanged.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Shows the device under its names, and under no other name: the server may have been killed
    /// during a rename.
    pub(crate) fn show(&self) {
        let names = Names { name: &self.name, uuid: &self.uuid };
        if let Err(e) = self.node.remember(names) {
            log::warn!("{}: {e}", self.name);
        }
        match self.node.name(names, None) {
            Ok(()) => self.node.take_off_others(&self.name, &self.uuid),
            // The device's only node may have another name.
            Err(e) => log::error!("{}: {e}", self.name),
        }
    }
}

impl LoopNode {
    /// Returns true when it is bound to a table's file: before, its size is 0.
    fn has_size(&self) -> bool {
        let size = fs::read_to_string(format!("/sys/block/loop{}/size", self.number));
        size.is_ok_and(|size| size.trim().parse::<u64>().is_ok_and(|size| size > 0))
    }

    /// Removes nodes of the device, and links to it, under other names.
    fn take_off_others(&self, name: &str, uuid: &str) {
        self.links().remove_others(name, uuid);
        for path in self.nodes().filter(|node| node.file_name() != Some(name.as_ref())) {
            if let Err(e) = fs::remove_file(&path) {
                log::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
    }

    /// Returns the nodes of the device in /dev/mapper.
    fn nodes(&self) -> impl Iterator<Item = PathBuf> {
        let all = fs::read_dir(&self.mapper).into_iter().flatten().flatten().map(|node| node.path());
        all.filter(|path| self.is_node(path))
    }

    /// Returns true for a node of the device, but not for a link.
    pub(super) fn is_node(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|of| !of.is_symlink()) && self.leads_here(path)
    }
}
