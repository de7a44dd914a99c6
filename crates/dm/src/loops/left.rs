//! Loop devices of a killed server.

use std::fs;

use super::work::{Binding, binding, is_taken};
use super::{LoopNode, LoopNodes, device_of};
use crate::left::{Found, LeftNode, with_own_names};

impl LoopNodes {
    /// Returns the devices of a killed server in this folder, and the remains of devices that it
    /// was creating or removing.
    pub fn left(&self) -> Vec<LeftNode> {
        with_own_names(self.found())
    }

    /// Returns the same, where several may claim a name.
    pub(crate) fn found(&self) -> Vec<LeftNode> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        numbers.filter_map(|number| self.left_at(number)).collect()
    }

    fn left_at(&self, number: u32) -> Option<LeftNode> {
        let folder = self.folder.join(number.to_string());
        // A table's server may be running without its loop device.
        let dev = device_of(number).or_else(|_| Self::add(Some(number), number).and_then(device_of));
        let dev = dev.inspect_err(|e| log::warn!("{}: {e}", folder.display())).ok()?;
        let node = self.node(number, dev);
        let has_name = !node.folder.remembered().0.is_empty();
        let found = match binding(number, &folder) {
            Ok(Binding::Other) => Found::Foreign,
            Ok(Binding::Own) if has_name && node.has_size() && !is_taken(&folder) => Found::Whole,
            _ => Found::Part,
        };
        Some(LeftNode::new(Box::new(node), found))
    }
}

impl LoopNode {
    /// Returns true when it is bound to a table's file: before, its size is 0.
    fn has_size(&self) -> bool {
        let size = fs::read_to_string(format!("/sys/block/loop{}/size", self.number));
        size.is_ok_and(|size| size.trim().parse::<u64>().is_ok_and(|size| size > 0))
    }
}
