//! When the kernel drops its pages of a file: when the lower file was changed by another program,
//! and at no other moment.
//!
//! A buffered write puts its bytes into the kernel's pages first, and sends them after that. Pages
//! that are dropped between the two are read again from here, where the write has not arrived, and
//! keep the old bytes. So pages stay while the file is open for writing through this mount, and no
//! open for writing is answered while pages are dropped.
//!
//! The kernel waits for reads under way in the pages that it drops. So threads that take requests
//! do not tell it to: those for slow requests do, and do not wait for long. A file whose pages have
//! not been dropped by then is opened without them: all its reads and writes come here.

use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Stat, fstat};

use super::nodes::{FileIdentity, FileNode};
use super::times::show_next_change;
use super::{Answer, Fs, locked, proc_path};
use crate::file::{BegunWrite, FileVersion, LowerDescriptor, OpenFile, begun_write};

/// How long an open waits for a write that another program has begun to the lower file, before it
/// locks the file and again after that.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// How long pages that were dropped count as right in a file whose version is unknown: as long as
/// the kernel keeps attributes.
const FRESH: Duration = Duration::from_secs(1);

/// The version of a lower file that the kernel's pages have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum CachedPages {
    /// The file was not opened since the kernel knows of it: there are no pages.
    #[default]
    None,
    Of(FileVersion),
    /// Pages of an unknown version, or of one whose times may not show the next change.
    Unknown,
}

/// Whether a thread may wait for the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    Wait,
    /// The thread leaves the request to one for slow requests.
    Refuse,
}

/// A change of a closed file's attributes or names through this mount, until it is dropped: the
/// kernel's pages stay right.
pub(super) struct ClosedChange {
    node: Arc<FileNode>,
    lower: LowerDescriptor,
    before: FileVersion,
    sets_times: bool,
}

impl Fs {
    /// Begins such a change. `None` for what is open, or no regular file.
    pub(super) fn change_closed(&self, node: &Arc<FileNode>, sets_times: bool) -> Option<ClosedChange> {
        if node.kind != FileType::RegularFile || node.open_file().is_some() {
            return None;
        }
        let lower = self.nodes.fd(node).ok()?;
        let before = FileVersion::of(&fstat(&lower).ok()?);
        Some(ClosedChange { node: node.clone(), lower, before, sets_times })
    }

    /// Begins a change of the names of the lower file with these attributes.
    pub(super) fn change_names(&self, of: &Stat) -> Option<ClosedChange> {
        self.change_closed(&self.nodes.known(FileIdentity::of(of))?, false)
    }
}

impl Drop for ClosedChange {
    fn drop(&mut self) {
        let Ok(look) = fstat(&self.lower) else { return };
        let now = FileVersion::of(&look);
        let is_same = self.sets_times || now.has_bytes_of(&self.before);
        if now == self.before || !is_same || !show_next_change(&self.lower, &look) {
            return;
        }
        let mut slot = locked(&self.node.file);
        if slot.cached == CachedPages::Of(self.before) {
            slot.cached = CachedPages::Of(now);
        }
        slot.size = match slot.size {
            Some((then, size)) if then == self.before => Some((now, size)),
            other => other,
        };
    }
}

/// A file's turn to be opened.
pub(super) struct OpeningTurn<'a> {
    _turn: MutexGuard<'a, ()>,
    /// Whether the kernel's pages are those of the lower file.
    pub(super) are_pages_right: bool,
    /// The version of the lower file for which they are.
    version: Option<FileVersion>,
}

impl Fs {
    /// Waits for the file's turn to be opened, and drops the kernel's pages if the lower file has
    /// changed since they were read. Returns nothing where a thread without patience would wait.
    pub(super) fn begin_opening<'a>(
        &self,
        node: &'a Arc<FileNode>,
        patience: Patience,
    ) -> Answer<Option<OpeningTurn<'a>>> {
        let turn = match (node.opening.try_lock(), patience) {
            (Ok(turn), _) => turn,
            (Err(TryLockError::Poisoned(turn)), _) => turn.into_inner(),
            (Err(TryLockError::WouldBlock), Patience::Refuse) => return Ok(None),
            (Err(TryLockError::WouldBlock), Patience::Wait) => locked(&node.opening),
        };
        let open = node.open_file();
        if open.as_ref().is_some_and(|file| file.is_writable()) {
            // Bytes that are written past the pages do not always reach them (before Linux 6.6).
            let are_pages_right = !locked(&node.file).is_direct;
            return Ok(Some(OpeningTurn { _turn: turn, are_pages_right, version: None }));
        }
        open.iter().for_each(|file| file.regain_lock());
        let lower = self.nodes.fd(node)?;
        let look = fstat(&lower)?;
        let now = CachedPages::Of(FileVersion::of(&look));
        let before = locked(&node.file).cached;
        let mut are_pages_right = before == CachedPages::None || before == now;
        if !are_pages_right && patience == Patience::Refuse {
            return Ok(None);
        }
        let is_whole = before == now || {
            let Some(is_whole) = wait_for_write(&lower, &look, patience) else { return Ok(None) };
            is_whole
        };
        if !are_pages_right {
            if let Some(Err(e)) = open.map(|file| file.reread()) {
                // Open descriptors keep the header that was read before.
                self.tell(node, "read the header again", &e);
            }
            are_pages_right = self.drop_pages(node);
            if are_pages_right {
                locked(&node.file).dropped = Some((FileVersion::of(&look), Instant::now()));
            }
        }
        let is_known = are_pages_right && is_whole && show_next_change(&lower, &look);
        locked(&node.file).cached = if is_known { now } else { CachedPages::Unknown };
        Ok(Some(OpeningTurn { _turn: turn, are_pages_right, version: Some(FileVersion::of(&look)) }))
    }

    /// Drops the kernel's pages of a file whose lower file was changed before it was locked for an
    /// open. Returns false where a thread without patience would wait.
    pub(super) fn refresh_locked(
        &self,
        node: &Arc<FileNode>,
        file: &OpenFile,
        opening: &mut OpeningTurn<'_>,
        patience: Patience,
    ) -> Answer<bool> {
        let look = fstat(file)?;
        let now = CachedPages::Of(FileVersion::of(&look));
        let (is_known, follows) = {
            let slot = locked(&node.file);
            (slot.cached == now, slot.follows_kernel())
        };
        let is_right = is_known || opening.are_pages_right && opening.version == Some(FileVersion::of(&look));
        if follows {
            return Ok(true);
        }
        file.starts_from(FileVersion::of(&look));
        if is_right {
            return Ok(true);
        }
        if patience == Patience::Refuse {
            return Ok(false);
        }
        let is_whole = wait_for_write(file, &look, patience).unwrap_or(false);
        if let Err(e) = file.reread() {
            self.tell(node, "read the header again", &e);
        }
        opening.are_pages_right = self.drop_pages(node);
        let is_known = opening.are_pages_right && is_whole && show_next_change(file, &look);
        locked(&node.file).cached = if is_known { now } else { CachedPages::Unknown };
        Ok(true)
    }

    /// Has the kernel drop its pages of a file. Returns false when it does not, or not soon.
    fn drop_pages(&self, node: &Arc<FileNode>) -> bool {
        self.notify(node, |kernel, id| kernel.forget(id, Some(0)))
    }

    /// Drops the kernel's pages of a file that is open for reading, if the lower file has changed:
    /// before the kernel learns its new size. False where a thread without patience would wait.
    pub(super) fn refresh(&self, node: &Arc<FileNode>, patience: Patience) -> Answer<bool> {
        let Some(file) = node.open_file().filter(|file| !file.is_writable()) else { return Ok(true) };
        file.regain_lock();
        let now = FileVersion::of(&fstat(self.nodes.fd(node)?)?);
        let (cached, dropped) = {
            let slot = locked(&node.file);
            (slot.cached, slot.dropped)
        };
        // The kernel takes no size from a reply before which it dropped pages: it has to ask again.
        let is_fresh = dropped.is_some_and(|(then, at)| then == now && at.elapsed() < FRESH);
        if cached == CachedPages::Of(now) || is_fresh {
            return Ok(true);
        }
        Ok(self.begin_opening(node, patience)?.is_some())
    }
}

/// Waits, for a while, for a write that another program had begun to a lower file before this look
/// at its attributes. Returns whether none is under way, and nothing where a thread without
/// patience would wait.
fn wait_for_write(lower: impl AsFd, look: &Stat, patience: Patience) -> Option<bool> {
    const LOOK: Duration = Duration::from_millis(1);
    let (path, begun) = (proc_path(&lower), Instant::now());
    loop {
        match begun_write(&path, look) {
            BegunWrite::No => return Some(true),
            BegunWrite::OnlyDirect | BegunWrite::Unknown => return Some(false),
            BegunWrite::Yes if patience == Patience::Refuse => return None,
            BegunWrite::Yes if begun.elapsed() > LONGEST_WAIT => return Some(false),
            BegunWrite::Yes => std::thread::sleep(LOOK),
        }
    }
}
