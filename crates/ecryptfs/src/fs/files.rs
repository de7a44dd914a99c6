//! Files: opened, and what else is not an entry, an attribute or their bytes.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{OFlags, fstat, fstatvfs};
use rustix::io::Errno;
use underseal_fuse::wire::{Body, open_flag};

use super::nodes::{FileNode, FileVersion};
use super::{Answer, Fs, locked, proc_path};
use crate::file::{FsError, OpenFile};

impl Fs {
    /// A node's file: the one that is open, or its lower file opened.
    pub(super) fn open_file(&self, node: &Arc<FileNode>, write: bool) -> Answer<Arc<OpenFile>> {
        let fd = self.nodes.fd(node)?;
        let path = proc_path(&fd);
        // One for all, so nobody else opens it meanwhile.
        let mut slot = locked(&node.file);
        if let Some(file) = slot.open.upgrade() {
            if write {
                file.make_writable(&path).map_err(|e| self.tell(node, "open", &e))?;
            }
            return Ok(file);
        }
        let opened = OpenFile::open(&self.view, &path, write, &slot.closing);
        let file = Arc::new(opened.map_err(|e| self.tell(node, "open", &e))?);
        if fstat(file.as_fd())?.st_nlink == 0 && self.nodes.was_replaced(node) {
            // The kernel looks its name up again.
            return Err(Errno::STALE);
        }
        slot.set_open(&file);
        Ok(file)
    }

    /// Opens a file for the kernel: its handle, and what the kernel may do with it.
    pub(super) fn open(&self, node: u64, flags: u32, kill_suid: bool) -> Answer<(u64, u32)> {
        let node = self.nodes.get(node)?;
        let flags = OFlags::from_bits_retain(flags);
        let write = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        let file = self.open_file(&node, write)?;
        if flags.contains(OFlags::TRUNC) {
            file.set_len(0, &|| false).map_err(|e| self.tell(&node, "truncate", &e))?;
            if kill_suid {
                file.kill_suid()?;
            }
        }
        let look = FileVersion::of(&fstat(file.as_fd())?);
        let known = locked(&node.file).cached.replace(look) == Some(look);
        Ok((self.handles.add_file(file), opened(if known { open_flag::KEEP_CACHE } else { 0 })))
    }

    /// A file that is new to the kernel is open, too.
    pub(super) fn opened_new(&self, file: Arc<OpenFile>) -> (u64, u32) {
        (self.handles.add_file(file), opened(0))
    }

    /// A handle goes. The pages that the kernel has are those of the file as it is now.
    pub(super) fn release(&self, node: u64, handle: u64) {
        if let (Ok(node), Ok(file)) = (self.nodes.get(node), self.handles.file(handle)) {
            let mut slot = locked(&node.file);
            let settled = file.settled_size().map(|(stat, size)| (FileVersion::of(&stat), size));
            (slot.cached, slot.size) = (settled.map(|(look, _)| look), settled);
        }
        self.handles.close(handle);
    }

    pub(super) fn statfs(&self, node: u64, out: &mut Vec<u8>) -> Answer<()> {
        let stat = fstatvfs(self.nodes.fd(&self.nodes.get(node)?)?)?;
        Body(out).statfs(&stat, self.view.name_limit(stat.f_namemax));
        Ok(())
    }

    /// Tells the operator what a lower file did, and the caller its error number.
    pub(super) fn tell(&self, node: &FileNode, what: &str, failure: &FsError) -> Errno {
        if failure.is_serious() {
            self.complaints.add(|| format!("{}: {what}: {failure}", node.path()));
        } else {
            log::debug!("{}: {what}: {failure}", node.path());
        }
        failure.errno
    }
}

fn opened(more: u32) -> u32 {
    open_flag::NO_FLUSH | open_flag::PARALLEL_DIRECT_WRITES | more
}
