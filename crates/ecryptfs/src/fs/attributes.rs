//! Attributes: the lower file's, except the size.

use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chmodat,
    chownat, fstat, utimensat,
};
use rustix::io::Errno;
use underseal_fuse::wire::{RequestArgs, set};

use super::cached::Patience;
use super::nodes::FileNode;
use super::times::show_next_change;
use super::{Answer, Fs, locked, proc_path};
use crate::file::{self, BegunWrite, FileVersion, IsOver, OpenFile, begun_write};

/// The changes of a SETATTR.
pub(super) struct AttributeChange {
    valid: u32,
    handle: u64,
    size: u64,
    atime: Timespec,
    mtime: Timespec,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl AttributeChange {
    #[expect(clippy::cast_possible_wrap, reason = "times before 1970 are two's complement in the protocol")]
    pub(super) fn read(args: &mut RequestArgs<'_>) -> Answer<Self> {
        let valid = args.u32()?;
        args.skip(4)?;
        let (handle, size) = (args.u64()?, args.u64()?);
        args.skip(8)?;
        let (atime, mtime) = (args.u64()? as i64, args.u64()? as i64);
        args.skip(8)?;
        let (atime_nsec, mtime_nsec) = (args.u32()?, args.u32()?);
        args.skip(4)?;
        let mode = args.u32()?;
        args.skip(4)?;
        let (uid, gid) = (args.u32()?, args.u32()?);
        let time = |seconds, nanoseconds: u32| Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
        let (atime, mtime) = (time(atime, atime_nsec), time(mtime, mtime_nsec));
        Ok(Self { valid, handle, size, atime, mtime, mode, uid, gid })
    }

    /// Returns true when the file's size changes.
    pub(super) fn sets_size(&self) -> bool {
        self.sets(set::SIZE)
    }

    fn sets(&self, what: u32) -> bool {
        self.valid & what != 0
    }
}

impl Fs {
    /// A file's attributes; nothing where a thread without patience would wait.
    pub(super) fn getattr(&self, node: u64, patience: Patience) -> Answer<Option<Stat>> {
        let node = self.nodes.get(node)?;
        match self.refresh(&node, patience)? {
            true => self.attributes(&node).map(Some),
            false => Ok(None),
        }
    }

    pub(super) fn attributes(&self, node: &Arc<FileNode>) -> Answer<Stat> {
        let mut stat = fstat(self.nodes.fd(node)?)?;
        self.complete(node, &mut stat)?;
        Ok(stat)
    }

    pub(super) fn setattr(&self, node: u64, change: &AttributeChange, is_over: IsOver<'_>) -> Answer<Stat> {
        let node = self.nodes.get(node)?;
        let fd = self.nodes.fd(&node)?;
        self.has_its_names(&node)?;
        let open = node.open_file();
        let begin =
            |sets_times| (open.as_deref().map(OpenFile::change), self.change_closed(&node, sets_times));
        if change.sets(set::MODE) {
            let _change = begin(false);
            chmodat(CWD, proc_path(&fd), Mode::from_raw_mode(change.mode & 0o7777), AtFlags::empty())?;
        }
        if change.sets(set::UID | set::GID) {
            let uid = change.sets(set::UID).then(|| Uid::from_raw(change.uid));
            let gid = change.sets(set::GID).then(|| Gid::from_raw(change.gid));
            let _change = begin(false);
            chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if change.sets(set::SIZE) {
            let file = match change.sets(set::HANDLE) {
                true => self.handles.file(change.handle)?,
                false => {
                    let _turn = locked(&node.opening);
                    Arc::new(self.open_file(&node, true)?)
                }
            };
            file.set_len(change.size, is_over).map_err(|e| self.tell(&node, "truncate", &e))?;
            if change.sets(set::KILL_SUIDGID) {
                file.kill_suid()?;
            }
        }
        if change.sets(set::ATIME | set::MTIME | set::ATIME_NOW | set::MTIME_NOW) {
            let time = |given, now, time: Timespec| match () {
                () if change.sets(now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                () if change.sets(given) => time,
                () => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            };
            let times = Timestamps {
                last_access: time(set::ATIME, set::ATIME_NOW, change.atime),
                last_modification: time(set::MTIME, set::MTIME_NOW, change.mtime),
            };
            let _change = begin(true);
            utimensat(&fd, "", &times, AtFlags::EMPTY_PATH)?;
        }
        self.attributes(&node)
    }

    /// Fails with `ESTALE` when a file has lost a name below, so that the kernel looks its path up
    /// again. A descriptor has no path: a file that is open here is the right one.
    pub(super) fn has_its_names(&self, node: &FileNode) -> Answer<()> {
        match node.open_file() {
            Some(_) => Ok(()),
            None => self.nodes.has_its_names(node),
        }
    }

    /// Replaces the lower file's size by the size of the regular file, or of the symlink's target.
    pub(super) fn complete(&self, node: &Arc<FileNode>, stat: &mut Stat) -> Answer<()> {
        let size = match node.kind {
            FileType::RegularFile => {
                let size = self.size(node, stat)?;
                locked(&node.file).tells(size);
                size
            }
            FileType::Symlink if self.view.hides_targets() => self.readlink(node.id)?.len() as u64,
            _ => return Ok(()),
        };
        stat.st_size = i64::try_from(size).map_err(|_| Errno::OVERFLOW)?;
        Ok(())
    }

    pub(super) fn size(&self, node: &Arc<FileNode>, stat: &Stat) -> Answer<u64> {
        let mut slot = locked(&node.file);
        if let Some(file) = slot.open.upgrade() {
            drop(slot);
            return Ok(file.size(stat));
        }
        let look = FileVersion::of(stat);
        match slot.size {
            Some((then, size)) if then == look => Ok(size),
            _ => {
                drop(slot);
                let lower = self.nodes.fd(node)?;
                let size = match self.nodes.recall_size(node, look) {
                    Some(size) => size,
                    None => file::size_of(&self.view, &proc_path(&lower), stat)
                        .map_err(|e| self.tell(node, "read the size", &e.into()))?,
                };
                // A direct write over the header is of one block.
                let begun = begun_write(&proc_path(&lower), stat);
                let is_whole = matches!(begun, BegunWrite::No | BegunWrite::OnlyDirect);
                slot = locked(&node.file);
                slot.size = (is_whole && show_next_change(&lower, stat)).then_some((look, size));
                Ok(size)
            }
        }
    }
}
