//! The names of a node.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use super::FileNode;

/// How many names of a file are looked up for one request.
const NAMES: usize = 16;

/// A node's descriptor, and the names by which it is opened again.
pub(super) struct NodePlace {
    pub(super) fd: Option<Arc<OwnedFd>>,
    pub(super) links: Vec<NodeLink>,
    /// The name with which the next lookup of some names begins.
    next: usize,
}

impl NodePlace {
    pub(super) fn new(fd: Option<Arc<OwnedFd>>) -> Self {
        Self { fd, links: Vec::new(), next: 0 }
    }

    /// Returns all names, or of many some, others each time: a request of one user keeps the others
    /// waiting for no more than these.
    pub(super) fn some_links(&mut self) -> Vec<NodeLink> {
        let count = self.links.len();
        if count <= NAMES {
            return self.links.clone();
        }
        let first = self.next % count;
        self.next = first + NAMES;
        self.links.iter().cycle().skip(first).take(NAMES).cloned().collect()
    }

    /// Notes that the kernel has looked a name up. Returns false for one that is not known yet.
    pub(super) fn is_found(&mut self, parent: &FileNode, name: &[u8]) -> bool {
        let known = self.links.iter_mut().find(|link| link.is(parent, name));
        known.map(|link| link.found = Instant::now()).is_some()
    }
}

/// A name in a folder.
#[derive(Clone)]
pub(super) struct NodeLink {
    pub(super) parent: Arc<FileNode>,
    pub(super) name: Box<[u8]>,
    /// When the kernel looked the name up.
    pub(super) found: Instant,
}

impl NodeLink {
    pub(super) fn new(parent: &Arc<FileNode>, name: &[u8]) -> Self {
        Self { parent: parent.clone(), name: name.into(), found: Instant::now() }
    }

    pub(super) fn is(&self, parent: &FileNode, name: &[u8]) -> bool {
        self.parent.id == parent.id && *self.name == *name
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rustix::fs::{FileType, fstat};

    use super::super::FileIdentity;
    use super::*;

    #[test]
    fn all_of_many_names_are_looked_up_one_after_the_other() {
        let stat = fstat(std::fs::File::open("/").unwrap()).unwrap();
        let folder = FileNode::new(
            (2, FileIdentity::of(&stat), FileType::Directory),
            None,
            &Arc::default(),
            String::new(),
        );
        for count in [1, NAMES, NAMES + 1, 3 * NAMES - 1] {
            let mut place = NodePlace::new(None);
            let names: BTreeSet<Box<[u8]>> =
                (0..count).map(|name| name.to_string().into_bytes().into()).collect();
            place.links.extend(names.iter().map(|name| NodeLink::new(&folder, name)));
            let mut seen = BTreeSet::new();
            for _ in 0..count.div_ceil(NAMES) {
                let some = place.some_links();
                assert_eq!(some.len(), count.min(NAMES), "{count}");
                seen.extend(some.into_iter().map(|link| link.name));
            }
            assert_eq!(seen, names, "{count}");
        }
    }
}
