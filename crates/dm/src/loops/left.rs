//! Devices that a server has left when it was killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::{Binding, LoopNode, LoopNodes, NAMES, device_of};
use crate::Result;
use crate::host::{Names, Node};

/// A device of a server that was killed.
pub struct LeftNode {
    pub(crate) node: LoopNode,
    pub(crate) name: String,
    pub(crate) uuid: String,
    found: Found,
}

/// The state in which a device was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The device has a live table.
    Whole,
    /// The device was being made or taken away.
    Part,
    /// The device's number is another program's by now.
    Foreign,
}

impl LoopNodes {
    /// The devices that a server of this folder has left when it was killed, and what is left of
    /// those that it was making or taking away.
    pub fn left(&self) -> Vec<LeftNode> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.filter_map(|number| self.left_at(number)).collect()
    }

    fn left_at(&self, number: u32) -> Option<LeftNode> {
        let (folder, mapper) = (self.folder.join(number.to_string()), self.mapper.clone());
        let names = fs::read_to_string(folder.join(NAMES)).unwrap_or_default();
        let (name, uuid) = names.split_once('\0').unwrap_or_default();
        // A table's server may live without its loop device.
        let dev = device_of(number).or_else(|_| Self::add(Some(number), number).and_then(device_of));
        let dev = dev.inspect_err(|e| log::warn!("{}: {e}", folder.display())).ok()?;
        let (family, free) = (self.family.clone(), self.free.clone());
        let is_gone = AtomicBool::new(false);
        let node = LoopNode { number, dev, folder, mapper, family, free, is_gone };
        let found = match node.binding() {
            Ok(Binding::Other) => Found::Foreign,
            Ok(Binding::Own) if !name.is_empty() && node.has_size() => Found::Whole,
            _ => Found::Part,
        };
        Some(LeftNode { node, name: name.into(), uuid: uuid.into(), found })
    }
}

impl LeftNode {
    /// The device's name; empty where it had none yet.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its table shows itself.
    pub fn file(&self) -> PathBuf {
        self.node.file()
    }

    /// Whether the device had a live table, and was not being taken away.
    pub fn is_whole(&self) -> bool {
        self.found == Found::Whole
    }

    /// Takes the device off its file.
    ///
    /// # Errors
    /// `EBUSY` while others have it open.
    pub fn detach(&self) -> Result<()> {
        self.node.detach()
    }

    /// Takes the device away, whose table's server is gone too: every request for it fails.
    pub fn discard(self) {
        // As the node is dropped it is unbound, for which its file must be there still, and then
        // unmounted.
        if self.found != Found::Foreign {
            self.node.unname(Names { name: &self.name, uuid: &self.uuid });
            self.node.take_off_others("", "");
        }
    }

    /// Leaves everything as it is.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    /// Shows the device under its names, and under no other: the server may have been killed while
    /// it gave the device another name.
    pub(crate) fn show(&self) {
        if let Err(e) = self.node.name(Names { name: &self.name, uuid: &self.uuid }, None) {
            log::error!("{}: {e}", self.name);
        }
        self.node.take_off_others(&self.name, &self.uuid);
    }
}

impl LoopNode {
    /// Whether it is over a table's file: it has no size before.
    fn has_size(&self) -> bool {
        let size = fs::read_to_string(format!("/sys/block/loop{}/size", self.number));
        size.is_ok_and(|size| size.trim().parse::<u64>().is_ok_and(|size| size > 0))
    }

    /// Removes nodes of the device, and links to it, that other names have.
    fn take_off_others(&self, name: &str, uuid: &str) {
        self.links().remove_others(name, uuid);
        let nodes = fs::read_dir(&self.mapper).into_iter().flatten().flatten();
        for path in nodes.filter(|node| node.file_name() != name).map(|node| node.path()) {
            if self.is_node(&path)
                && let Err(e) = fs::remove_file(&path)
            {
                log::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
    }

    /// Whether this is a node of the device, and no link.
    fn is_node(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|of| !of.is_symlink()) && self.leads_here(path)
    }
}
