//! The files known to the kernel: a node for each lower file that it has looked up and not
//! forgotten.
//!
//! ```text
//!   id, from the kernel --> Node --> a descriptor (O_PATH), while there is room for it
//!   (dev, ino), below -----^   \---> links: its lower folder and name, to open it again
//! ```
//!
//! Descriptors survive renames and removals; names do not need descriptors, which are limited
//! (20,000 a process are usual). So a node has both: nodes that were not used lately lose their
//! descriptor when there are too many.

mod descriptors;
mod place;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, Stat, fstat, statat};
use rustix::io::Errno;

use super::cached::CachedPages;
use super::kernel_size::KernelSize;
use super::sizes::SizeCache;
use super::{locked, reading, writing};
use crate::file::{Closing, FileVersion, OpenFile};
use place::{NodeLink, NodePlace};

/// The root's id in the protocol.
pub(super) const ROOT: u64 = 1;
/// How long a request may come by a name that the kernel has looked up: far longer than the kernel
/// remembers the name.
const LATE: Duration = Duration::from_secs(5);

/// The length from which a path's beginning is left out of messages.
const LONGEST_PATH: usize = 4096;

/// The identity of a lower file, whatever its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FileIdentity {
    dev: u64,
    ino: u64,
}

impl FileIdentity {
    pub(super) fn of(stat: &Stat) -> Self {
        Self { dev: stat.st_dev, ino: stat.st_ino }
    }
}

/// A lower file.
pub(super) struct FileNode {
    pub(super) id: u64,
    key: FileIdentity,
    pub(super) kind: FileType,
    place: Mutex<NodePlace>,
    /// True when the node was used since the last search for a descriptor to close.
    used: AtomicBool,
    /// The file that all opens share, and the known values between opens.
    pub(super) file: Mutex<FileSlot>,
    /// Held while a file is opened, and while the kernel's pages of it are dropped: no writer
    /// begins meanwhile.
    pub(super) opening: Mutex<()>,
    descriptors: Arc<AtomicUsize>,
    /// The root's path, for messages; empty for other nodes.
    base: String,
}

/// The state of a regular file.
#[derive(Default)]
pub(super) struct FileSlot {
    pub(super) open: Weak<OpenFile>,
    /// Belongs to the last open file.
    pub(super) closing: Weak<Closing>,
    /// The header's size, as long as the lower file has this version.
    pub(super) size: Option<(FileVersion, u64)>,
    pub(super) end: KernelSize,
    pub(super) cached: CachedPages,
    /// When the kernel last dropped its pages, and for which version of the lower file.
    pub(super) dropped: Option<(FileVersion, Instant)>,
    /// True while a notification about the file is under way.
    pub(super) is_notified: bool,
    /// True when the last open for writing went past the kernel's pages.
    pub(super) is_direct: bool,
}

impl FileNode {
    fn new(
        (id, key, kind): (u64, FileIdentity, FileType),
        fd: Option<Arc<OwnedFd>>,
        descriptors: &Arc<AtomicUsize>,
        base: String,
    ) -> Arc<Self> {
        let place = Mutex::new(NodePlace::new(fd));
        let (file, opening, used) = (Mutex::default(), Mutex::default(), AtomicBool::new(true));
        Arc::new(Self { id, key, kind, place, used, file, opening, descriptors: descriptors.clone(), base })
    }
}

impl FileSlot {
    /// Makes a file the one that all opens share. Of a new file the kernel knows the size.
    pub(super) fn set_open(&mut self, file: &Arc<OpenFile>, is_new: bool) {
        (self.open, self.closing) = (Arc::downgrade(file), file.closing());
        self.end.follows(is_new);
    }
}

impl FileNode {
    /// Returns its file, if open.
    pub(super) fn open_file(&self) -> Option<Arc<OpenFile>> {
        locked(&self.file).open.upgrade()
    }

    /// Returns the lower path, for messages.
    pub(super) fn path(&self) -> String {
        if self.id == ROOT {
            return self.base.clone();
        }
        let mut names = Vec::new();
        let mut len = 0;
        let mut next = self.first_link();
        let start = loop {
            match next {
                None if names.is_empty() => return format!("a removed file (inode {})", self.key.ino),
                None => break "..".to_owned(),
                Some(_) if len > LONGEST_PATH => break "..".to_owned(),
                Some(link) => {
                    let name = link.name.escape_ascii().to_string();
                    len += name.len();
                    names.push(name);
                    if link.parent.id == ROOT {
                        break link.parent.base.clone();
                    }
                    next = link.parent.first_link();
                }
            }
        };
        names.push(start);
        names.reverse();
        names.join("/")
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        locked(&self.place).fd.clone()
    }

    fn first_link(&self) -> Option<NodeLink> {
        locked(&self.place).links.first().cloned()
    }

    /// Adds a name. What is known of folders above may be older than the name: where this folder
    /// would lie in itself, the folder in between has been moved below, and loses its name.
    fn add_link(self: &Arc<Self>, parent: &Arc<Self>, name: &[u8]) {
        let mut above = if self.kind == FileType::Directory { vec![parent.clone()] } else { Vec::new() };
        while let Some(folder) = above.pop() {
            if folder.id == self.id {
                return;
            }
            let mut place = locked(&folder.place);
            place.links.retain(|link| link.parent.id != self.id);
            above.extend(place.links.iter().map(|link| link.parent.clone()));
        }
        let mut place = locked(&self.place);
        if !place.is_found(parent, name) {
            place.links.push(NodeLink::new(parent, name));
        }
    }

    fn drop_link(&self, parent: &FileNode, name: &[u8]) {
        locked(&self.place).links.retain(|link| !link.is(parent, name));
    }
}

impl Drop for FileNode {
    fn drop(&mut self) {
        let mut place = locked(&self.place);
        if place.fd.is_some() {
            self.descriptors.fetch_sub(1, Relaxed);
        }
        // A loop instead of recursion: the folders above may be many.
        let mut links = std::mem::take(&mut place.links);
        while let Some(link) = links.pop() {
            if let Some(folder) = Arc::into_inner(link.parent) {
                links.append(&mut locked(&folder.place).links);
            }
        }
    }
}

/// All nodes.
pub(super) struct Nodes {
    table: RwLock<Table>,
    /// Held while a lower name moves, so that no thread looks for a file at an old place, or too
    /// early at a new place.
    names: RwLock<()>,
    /// Held while a folder gets a name.
    folder_links: Mutex<()>,
    /// The nodes with descriptors, the oldest first.
    queue: Mutex<VecDeque<Weak<FileNode>>>,
    descriptors: Arc<AtomicUsize>,
    limit: usize,
    /// The sizes of forgotten nodes.
    sizes: Mutex<SizeCache>,
    /// Runs between the removal of a lower name and that of its node's inode number.
    #[cfg(test)]
    pub(super) before_removed: Option<Box<dyn Fn() + Send + Sync>>,
}

struct Table {
    by_id: HashMap<u64, Entry>,
    by_key: HashMap<FileIdentity, Arc<FileNode>>,
    /// Folders that the kernel has forgotten, but not all files with names in them: each is the
    /// same node again when it is looked up.
    asleep: HashMap<FileIdentity, Weak<FileNode>>,
    last: u64,
}

impl Table {
    /// Remembers a folder for as long as a file has a name in it.
    fn sleep(&mut self, node: &Arc<FileNode>) {
        if node.kind != FileType::Directory || Arc::strong_count(node) == 1 {
            return;
        }
        self.asleep.insert(node.key, Arc::downgrade(node));
        if self.asleep.len() > 2 * self.by_key.len() + 1024 {
            self.asleep.retain(|_, node| node.strong_count() > 0);
        }
    }
}

struct Entry {
    node: Arc<FileNode>,
    /// The number of lookups by the kernel.
    lookups: u64,
}

impl Nodes {
    /// Returns a table with the lower folder, known as `base`. At most `limit` descriptors are
    /// kept.
    pub(super) fn new(root: OwnedFd, base: String, limit: usize) -> Result<Self, Errno> {
        let stat = fstat(&root)?;
        let descriptors = Arc::new(AtomicUsize::new(1));
        let (key, kind) = (FileIdentity::of(&stat), FileType::Directory);
        let node = FileNode::new((ROOT, key, kind), Some(Arc::new(root)), &descriptors, base);
        let table = Table {
            by_key: HashMap::from([(node.key, node.clone())]),
            asleep: HashMap::new(),
            by_id: HashMap::from([(ROOT, Entry { node, lookups: 1 })]),
            last: ROOT,
        };
        let (queue, sizes) = (Mutex::default(), Mutex::default());
        Ok(Self {
            table: RwLock::new(table),
            names: RwLock::new(()),
            folder_links: Mutex::default(),
            queue,
            descriptors,
            limit,
            sizes,
            #[cfg(test)]
            before_removed: None,
        })
    }

    /// Fails with `ESTALE` when the kernel does not know it.
    pub(super) fn get(&self, id: u64) -> Result<Arc<FileNode>, Errno> {
        reading(&self.table).by_id.get(&id).map(|entry| entry.node.clone()).ok_or(Errno::STALE)
    }

    /// Counts a lookup by the kernel. Returns the file's node, which is created if necessary. `fd`
    /// is kept if useful.
    ///
    /// A file that has lost a name below gets another node: the kernel may know the lost name as
    /// one of the node so far for a while, and no request to that node is right any more.
    pub(super) fn enter(
        &self,
        stat: &Stat,
        link: Option<(&Arc<FileNode>, &[u8])>,
        fd: Option<OwnedFd>,
    ) -> Arc<FileNode> {
        let key = FileIdentity::of(stat);
        let kind = FileType::from_raw_mode(stat.st_mode);
        self.replace_if_lost(key, link);
        let node = {
            let mut table = writing(&self.table);
            let node = match table.by_key.get(&key) {
                // A file of another type is another file, created in the lower folder.
                Some(node) if node.kind == kind => node.clone(),
                _ => {
                    table.last += 1;
                    let id = table.last;
                    let new = || FileNode::new((id, key, kind), None, &self.descriptors, String::new());
                    let asleep = table.asleep.remove(&key).and_then(|node| node.upgrade());
                    let node = asleep.filter(|node| node.kind == kind).unwrap_or_else(new);
                    table.by_key.insert(key, node.clone());
                    node
                }
            };
            table.by_id.entry(node.id).or_insert_with(|| Entry { node: node.clone(), lookups: 0 }).lookups +=
                1;
            node
        };
        let mut place = locked(&node.place);
        if let Some((parent, name)) = link.filter(|_| node.id != ROOT)
            && !place.is_found(parent, name)
        {
            drop(place);
            self.link(&node, parent, name);
            place = locked(&node.place);
        }
        if let (None, Some(fd)) = (&place.fd, fd) {
            self.keep(&node, &mut place, Arc::new(fd));
        }
        drop(place);
        node
    }

    /// Takes a file from its node when one of its names other than `link` is lost. An open file
    /// keeps its node, which has its pages, and loses the name when requests by it are over.
    /// Folders, pipes and sockets keep theirs, too: the kernel knows one name of a folder, and what
    /// runs through a pipe or socket belongs to its node.
    fn replace_if_lost(&self, key: FileIdentity, link: Option<(&Arc<FileNode>, &[u8])>) {
        let Some(node) = self.known(key) else { return };
        let is_other = |known: &NodeLink| link.is_none_or(|(parent, name)| !known.is(parent, name));
        if !locked(&node.place).links.iter().any(is_other) {
            return;
        }
        let _still = reading(&self.names);
        let links = locked(&node.place).some_links();
        let lost = self.lost_names(&node, &links);
        if lost.is_empty() {
            return;
        }
        let has_bytes = node.kind == FileType::RegularFile;
        if has_bytes && node.open_file().is_none() {
            let mut table = writing(&self.table);
            // Another thread may have entered another node.
            if table.by_key.get(&key).is_some_and(|known| known.id == node.id) {
                table.by_key.remove(&key);
            }
            return;
        }
        let over = lost.iter().filter(|link| !has_bytes || link.found.elapsed() > LATE);
        over.for_each(|link| node.drop_link(&link.parent, &link.name));
    }

    /// Returns the names that lead to no file below, or to another one; none that cannot be looked
    /// up, as in a folder that the server may not search.
    fn lost_names(&self, node: &FileNode, links: &[NodeLink]) -> Vec<NodeLink> {
        let is_lost = |link: &&NodeLink| {
            let folder = self.reopen(&link.parent);
            let there = folder.and_then(|fd| statat(fd, &*link.name, AtFlags::SYMLINK_NOFOLLOW));
            match there {
                Ok(stat) => FileIdentity::of(&stat) != node.key,
                Err(e) => matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::STALE),
            }
        };
        links.iter().filter(is_lost).cloned().collect()
    }

    fn link(&self, node: &Arc<FileNode>, parent: &Arc<FileNode>, name: &[u8]) {
        // Two folders that got each other's names at once would lie in each other.
        let _alone = (node.kind == FileType::Directory).then(|| locked(&self.folder_links));
        node.add_link(parent, name);
    }

    pub(super) fn known(&self, key: FileIdentity) -> Option<Arc<FileNode>> {
        reading(&self.table).by_key.get(&key).cloned()
    }

    /// Subtracts `times` lookups of a node that the kernel forgets.
    pub(super) fn forget(&self, id: u64, times: u64) {
        let mut table = writing(&self.table);
        let Some(entry) = table.by_id.get_mut(&id) else { return };
        entry.lookups = entry.lookups.saturating_sub(times);
        if entry.lookups > 0 || id == ROOT {
            return;
        }
        let Some(Entry { node, .. }) = table.by_id.remove(&id) else { return };
        let has_names = table.by_key.get(&node.key).is_some_and(|known| known.id == id);
        if has_names {
            table.by_key.remove(&node.key);
            table.sleep(&node);
        }
        // Other threads need not wait for the rest, nor for closing its descriptor at the end.
        drop(table);
        let size = locked(&node.file).size;
        if let (true, Some((look, size))) = (has_names, size) {
            locked(&self.sizes).remember(node.key, look, size);
        }
    }

    /// Returns the size of a file of this version, if it was known when the kernel last forgot the
    /// file.
    pub(super) fn recall_size(&self, node: &FileNode, look: FileVersion) -> Option<u64> {
        locked(&self.sizes).recall(node.key, look)
    }

    /// Removes a lower name of the file behind `pinned`, which had these attributes before. After
    /// the last name, another file gets the inode number as soon as `pinned` is closed.
    pub(super) fn removed(&self, pinned: impl AsFd, before: &Stat, parent: &FileNode, name: &[u8]) {
        #[cfg(test)]
        if let Some(hook) = &self.before_removed {
            hook();
        }
        let key = FileIdentity::of(before);
        let Some(node) = self.known(key) else { return };
        node.drop_link(parent, name);
        // FUSE and NFS know nothing of a removed file that is not open.
        let is_gone = fstat(pinned).map_or(true, |stat| stat.st_nlink == 0);
        if is_gone || node.kind == FileType::Directory {
            writing(&self.table).by_key.remove(&key);
        }
    }

    /// Fails with `ESTALE` unless the kernel has found the file with these attributes under this
    /// name: its check of permissions is about the file that it has found.
    pub(super) fn was_found(&self, stat: &Stat, parent: &FileNode, name: &[u8]) -> Result<(), Errno> {
        let is_at = |node: Arc<FileNode>| locked(&node.place).links.iter().any(|link| link.is(parent, name));
        if self.known(FileIdentity::of(stat)).is_some_and(is_at) { Ok(()) } else { Err(Errno::STALE) }
    }

    /// Locks names for a move.
    pub(super) fn moving(&self) -> RwLockWriteGuard<'_, ()> {
        writing(&self.names)
    }

    /// Changes a file's name.
    pub(super) fn moved(&self, stat: &Stat, from: (&FileNode, &[u8]), to: (&Arc<FileNode>, &[u8])) {
        let Some(node) = self.known(FileIdentity::of(stat)) else { return };
        node.drop_link(from.0, from.1);
        self.link(&node, to.0, to.1);
    }

    /// Fails with `ESTALE` when another lower file has one of its names, or no file has the name,
    /// without a change through this mount: the request may have come by that name, and the kernel
    /// looks its path up again. A node that its file has left is never right. Of many names
    /// [some](NodePlace::some_links) are looked at.
    pub(super) fn has_its_names(&self, node: &FileNode) -> Result<(), Errno> {
        let _still = reading(&self.names);
        let links = locked(&node.place).some_links();
        let is_its_node = || self.known(node.key).is_some_and(|known| known.id == node.id);
        if links.is_empty() || is_its_node() && self.lost_names(node, &links).is_empty() {
            return Ok(());
        }
        Err(Errno::STALE)
    }
}
