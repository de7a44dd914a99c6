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
