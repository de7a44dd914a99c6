//! The devices that a server has left when it was killed.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use super::{LoopNode, LoopNodes, NAMES, device_of};
use crate::host::{Names, Node};

/// A device of a server that was killed.
pub struct LeftNode {
    pub(crate) node: LoopNode,
    pub(crate) name: String,
    pub(crate) uuid: String,
}

impl LeftNode {
    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its table shows itself.
    pub fn file(&self) -> PathBuf {
        self.node.file()
    }

    /// Takes the device away, whose table's server is gone too: every request for it fails.
    pub fn discard(self) {
        let Self { node, name, uuid } = self;
        // As the node is dropped it is unbound, for which its file must be there still, and then
        // unmounted.
        node.unname(Names { name: &name, uuid: &uuid });
    }
}

impl LoopNodes {
    /// The devices that a server of this folder has left when it was killed.
    pub fn left(&self) -> Vec<LeftNode> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let left = numbers.filter_map(|number| {
            let (folder, mapper) = (self.folder.join(number.to_string()), self.mapper.clone());
            let names = fs::read_to_string(folder.join(NAMES)).unwrap_or_default();
            let (name, uuid) = names.split_once('\0').unwrap_or_default();
            let dev = device_of(number).inspect_err(|e| log::debug!("{e}")).ok()?;
            let (family, free) = (self.family.clone(), self.free.clone());
            let is_gone = AtomicBool::new(false);
            let node = LoopNode { number, dev, folder, mapper, family, free, is_gone };
            // A device without a table is given back as the node is dropped.
            (!name.is_empty() && node.is_bound().unwrap_or(false)).then(|| LeftNode {
                node,
                name: name.into(),
                uuid: uuid.into(),
            })
        });
        left.collect()
    }
}
