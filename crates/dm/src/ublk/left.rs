//! ublk disks of a killed server.

use std::fs;

use super::{PREFIX, ShownDisk, UblkNodes, sectors};
use crate::left::{Found, LeftDisk, LeftNode, with_own_names};

impl UblkNodes {
    /// Returns the devices of a killed server in this folder, and the remains of devices that it
    /// was creating or removing.
    pub fn left(&self) -> Vec<LeftNode> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        // A disk of another number than its folder's has a link there.
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|of| of.is_dir()));
        let numbers =
            folders.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let disks = numbers.filter_map(|number| self.left_at(number));
        with_own_names(self.loops.found().into_iter().chain(disks).collect())
    }

    fn left_at(&self, number: u32) -> Option<LeftNode> {
        let node = self.node(number).inspect_err(|e| log::warn!("{e}")).ok()?;
        let id = node.kept_id().filter(|id| self.means.driver.has(*id, node.identity));
        let disk = id.and_then(|id| ShownDisk::of(id).ok());
        let has_size = disk.as_ref().is_some_and(|of| sectors(&of.disk.name).is_ok_and(|size| size > 0));
        let is_whole = has_size && !node.folder().remembered().0.is_empty();
        *node.shown() = disk;
        let found = if is_whole { Found::Whole } else { Found::Part };
        Some(LeftNode::new(Box::new(node), found))
    }
}
