//! The descriptors of nodes: opened again by the names of a node and of the folders above it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::{FileIdentity, FileNode, NodePlace, Nodes, locked, reading};
use crate::file::LowerDescriptor;

impl Nodes {
    /// Returns a descriptor of the lower file, for all but reads and writes (O_PATH).
    ///
    /// Fails with `ESTALE` when it is no longer at its place: changed in the lower folder.
    pub(in crate::fs) fn fd(&self, node: &Arc<FileNode>) -> Result<LowerDescriptor, Errno> {
        node.used.store(true, Relaxed);
        if let Some(fd) = &locked(&node.place).fd {
            return Ok(LowerDescriptor::Path(fd.clone()));
        }
        if let Some(file) = node.open_file() {
            return Ok(LowerDescriptor::File(file));
        }
        let _still = reading(&self.names);
        self.reopen(node).map(LowerDescriptor::Path)
    }

    pub(super) fn reopen(&self, node: &Arc<FileNode>) -> Result<Arc<OwnedFd>, Errno> {
        if let Some(fd) = node.descriptor() {
            return Ok(fd);
        }
        let links = locked(&node.place).links.clone();
        let mut failure = Errno::STALE;
        for link in links {
            let folder = self.reopen_folder(&link.parent);
            match folder.and_then(|folder| self.open_in(&folder, &link.name, node)) {
                Ok(fd) => return Ok(fd),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => {}
                Err(e) => failure = e,
            }
        }
        Err(failure)
    }

    /// Opens the folders above, as far as they have no descriptor, and the folder. A loop instead
    /// of recursion: trees may be of any depth.
    fn reopen_folder(&self, folder: &Arc<FileNode>) -> Result<Arc<OwnedFd>, Errno> {
        let mut closed = Vec::new();
        let mut above = folder.clone();
        let mut fd = loop {
            if let Some(fd) = above.descriptor() {
                break fd;
            }
            let link = above.first_link().ok_or(Errno::STALE)?;
            closed.push((above, link.name));
            above = link.parent;
        };
        while let Some((node, name)) = closed.pop() {
            fd = self.open_in(&fd, &name, &node)?;
        }
        Ok(fd)
    }

    /// Opens a node's file by its name in a folder. Fails with `ESTALE` when that is another file.
    fn open_in(&self, folder: &OwnedFd, name: &[u8], node: &Arc<FileNode>) -> Result<Arc<OwnedFd>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(folder, name, flags, Mode::empty())?;
        if FileIdentity::of(&fstat(&fd)?) != node.key {
            return Err(Errno::STALE);
        }
        let mut place = locked(&node.place);
        // Another thread may have opened it meanwhile.
        if let Some(fd) = &place.fd {
            return Ok(fd.clone());
        }
        let fd = Arc::new(fd);
        self.keep(node, &mut place, fd.clone());
        Ok(fd)
    }

    /// Keeps a descriptor, and closes a few of those that were not used lately if there are too
    /// many.
    pub(super) fn keep(&self, node: &Arc<FileNode>, place: &mut NodePlace, fd: Arc<OwnedFd>) {
        place.fd = Some(fd);
        let count = self.descriptors.fetch_add(1, Relaxed) + 1;
        let mut queue = locked(&self.queue);
        queue.push_back(Arc::downgrade(node));
        if queue.len() > 2 * count + 1024 {
            queue.retain(|node| node.strong_count() > 0);
        }
        let (mut is_closed, mut nameless) = (false, None);
        // A few tries: the rest over the limit is closed the next time.
        for _ in 0..if count > self.limit { 8 } else { 0 } {
            let Some(oldest) = queue.pop_front().and_then(|node| node.upgrade()) else { continue };
            // Not a node in use by another thread, nor the present node.
            let Ok(mut other) = oldest.place.try_lock() else {
                queue.push_back(Arc::downgrade(&oldest));
                continue;
            };
            if other.fd.is_none() {
                continue;
            }
            if other.links.is_empty() || oldest.used.swap(false, Relaxed) {
                queue.push_back(Arc::downgrade(&oldest));
                if other.links.is_empty() {
                    drop(other);
                    nameless.get_or_insert(oldest);
                }
            } else if other.fd.take().is_some() {
                self.descriptors.fetch_sub(1, Relaxed);
                is_closed = true;
            }
        }
        // A removed file cannot be opened again, so it loses its descriptor where no other one was
        // found: nobody may keep others from opening any.
        if let Some(nameless) = nameless.filter(|_| !is_closed)
            && let Ok(mut other) = nameless.place.try_lock()
            && other.fd.take().is_some()
        {
            self.descriptors.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::open;

    use super::*;
    use crate::fs::nodes::ROOT;

    #[test]
    fn removed_files_do_not_take_all_descriptors() {
        const LIMIT: usize = 10;
        let folder = tempfile::tempdir().unwrap();
        let place = |flags: OFlags| open(folder.path(), flags, Mode::empty()).unwrap();
        let nodes = Nodes::new(place(OFlags::PATH | OFlags::DIRECTORY), String::new(), LIMIT).unwrap();
        let enter = |file: &File, name: Option<&str>| {
            let root = nodes.get(ROOT).unwrap();
            let link = name.map(|name| (&root, name.as_bytes()));
            nodes.enter(&fstat(file).unwrap(), link, Some(file.try_clone().unwrap().into()))
        };
        let named = enter(&File::create(folder.path().join("named")).unwrap(), Some("named"));
        let removed: Vec<_> = (0..5 * LIMIT).map(|_| tempfile::tempfile().unwrap()).collect();
        let kept: Vec<_> = removed.iter().map(|file| enter(file, None)).collect();
        let count = nodes.descriptors.load(Relaxed);
        assert!(count <= LIMIT + 2, "{count} descriptors");
        assert!(nodes.fd(kept.last().unwrap()).is_ok(), "the last one is there");
        assert_eq!(nodes.fd(&kept[0]).err(), Some(Errno::STALE));
        assert!(nodes.fd(&named).is_ok(), "a file with a name is opened again");
    }
}
