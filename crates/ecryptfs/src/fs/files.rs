//! Files: opening, and calls about other things than entries, attributes and bytes.

use std::sync::Arc;

use rustix::fs::{OFlags, fstatvfs};
use rustix::io::Errno;
use underseal_fuse::wire::{Body, open_flag};

use super::cached::{CachedPages, Patience};
use super::nodes::FileNode;
use super::times::show_next_change;
use super::{Answer, Fs, locked, proc_path};
use crate::file::{FileVersion, FsError, OpenFile, Opener};

impl Fs {
    /// Returns a node's open file, or opens its lower file, for a call by the file's name.
    pub(super) fn open_file(&self, node: &Arc<FileNode>, write: bool) -> Answer<Opener> {
        let fd = self.nodes.fd(node)?;
        let path = proc_path(&fd);
        // A single lock, so no other thread opens it meanwhile.
        let mut slot = locked(&node.file);
        let file = match slot.open.upgrade() {
            Some(file) => {
                if write && file.begin_writing(&path).map_err(|e| self.tell(node, "open", &e))? {
                    slot.end.follows(false);
                }
                file
            }
            None => {
                let opened = OpenFile::open(&self.view, &path, write, &slot.closing);
                let file = Arc::new(opened.map_err(|e| self.tell(node, "open", &e))?);
                slot.set_open(&file, false);
                file
            }
        };
        let file = Opener::new(file, write);
        drop(slot);
        // Another file may have taken its place while the lock was waited for.
        self.nodes.has_its_names(node)?;
        Ok(file)
    }

    /// Opens a file for the kernel: its handle, and what the kernel may do with it; nothing where a
    /// thread without patience would wait.
    pub(super) fn open(
        &self,
        node: u64,
        flags: u32,
        kill_suid: bool,
        user: u32,
        patience: Patience,
    ) -> Answer<Option<(u64, u32)>> {
        let node = self.nodes.get(node)?;
        let Some(mut opening) = self.begin_opening(&node, patience)? else { return Ok(None) };
        let flags = OFlags::from_bits_retain(flags);
        let write = flags.intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC);
        let file = self.open_file(&node, write)?;
        // The file is locked now. Pages go before the kernel's end moves beyond them.
        let is_known = self.refresh_locked(&node, &file, &mut opening, patience)?
            && (flags.contains(OFlags::TRUNC) || self.tell_size(&node, &file, write, patience)?);
        if !is_known {
            return Ok(None);
        }
        // Pages that are wrong, or will be dropped at any time, are not read, and no write puts its
        // bytes there.
        let is_direct = {
            let mut slot = locked(&node.file);
            let is_unsure = slot.end.is_fresh() && !slot.follows_kernel();
            let appends = write && appends_past_pages(&file, flags, is_unsure);
            let is_direct = !opening.are_pages_right || slot.is_notified || appends;
            if write {
                slot.is_direct = is_direct;
                // The lock keeps other writers away.
                slot.end.follows(true);
            }
            is_direct
        };
        if flags.contains(OFlags::TRUNC) {
            file.set_len(0, &|| false).map_err(|e| self.tell(&node, "truncate", &e))?;
            if kill_suid {
                file.kill_suid()?;
            }
        }
        Ok(Some(self.add_opened(file, user, is_direct)))
    }

    /// Returns handle and flags of a new file that is open already.
    pub(super) fn opened_new(&self, node: &FileNode, file: Opener, flags: OFlags, user: u32) -> (u64, u32) {
        let is_direct = appends_past_pages(&file, flags, false);
        locked(&node.file).is_direct = is_direct;
        self.add_opened(file, user, is_direct)
    }

    fn add_opened(&self, file: Opener, user: u32, is_direct: bool) -> (u64, u32) {
        let direct = if is_direct { open_flag::DIRECT_IO } else { 0 };
        let flags = open_flag::NO_FLUSH | open_flag::PARALLEL_DIRECT_WRITES | open_flag::KEEP_CACHE | direct;
        (self.handles.add_file(file, user), flags)
    }

    /// A handle goes. After writes through it the kernel's pages are those of the file as it is
    /// now, except where it was opened past them, where another program has changed the lower file
    /// since the last of these writes, and except of a plain file, whose changes are not known.
    /// Without writers here, a lower file that looks otherwise was changed by another program:
    /// neither the pages nor the size belong to it.
    pub(super) fn release(&self, node: u64, handle: u64) {
        if let (Ok(node), Ok(file)) = (self.nodes.get(node), self.handles.file(handle)) {
            let mut slot = locked(&node.file);
            let now = file.settled_size();
            let is_own = !file.is_writable() || file.has_own_version();
            let settled = now.filter(|(look, _)| is_own && show_next_change(file.file(), look));
            let settled = settled.map(|(look, size)| (FileVersion::of(&look), size));
            let pages = settled.map_or(CachedPages::Unknown, |(look, _)| CachedPages::Of(look));
            if file.is_writable() {
                let is_unknown = file.is_plain() || slot.is_direct;
                slot.cached = if is_unknown { CachedPages::Unknown } else { pages };
            }
            slot.size = if slot.cached == pages { settled } else { None };
            if file.is_writable() {
                slot.end.is(now.map(|(_, size)| size));
            }
        }
        self.handles.close(handle);
    }

    pub(super) fn statfs(&self, node: u64, out: &mut Vec<u8>) -> Answer<()> {
        let stat = fstatvfs(self.nodes.fd(&self.nodes.get(node)?)?)?;
        Body(out).statfs(&stat, self.view.name_limit(stat.f_namemax));
        Ok(())
    }

    /// Logs a failure of a lower file for the operator, and returns the caller's error number.
    pub(super) fn tell(&self, node: &FileNode, what: &str, failure: &FsError) -> Errno {
        if failure.is_serious() {
            self.failure_log.add(|| format!("{}: {what}: {failure}", node.path()));
        } else {
            log::debug!("{}: {what}: {failure}", node.path());
        }
        failure.errno
    }
}

/// Returns true when writes that append must not go through the kernel's pages.
fn appends_past_pages(file: &OpenFile, flags: OFlags, is_unsure: bool) -> bool {
    let is_direct = flags.contains(OFlags::DIRECT);
    flags.contains(OFlags::APPEND)
        && match file.is_plain() {
            // Other programs may append at any time: each write finds the end itself.
            true => !is_direct,
            // The kernel sends the pieces of a long direct write all at once, except past pages.
            false => is_unsure || is_direct,
        }
}
