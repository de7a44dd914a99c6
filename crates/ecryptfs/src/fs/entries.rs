//! Names: lookup, creation, moves and removal.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Dev, FileType, Mode, OFlags, RenameFlags, Stat, fstat, linkat, mkdirat, mknodat, openat,
    readlinkat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use underseal_fuse::wire::InHeader;

use super::cached::Patience;
use super::nodes::FileNode;
use super::{Answer, Fs, identity, proc_path};
use crate::file::{LowerDescriptor, OpenFile, Opener};

/// A name in a reply to the kernel.
pub(super) struct LookupEntry {
    pub(super) node: Arc<FileNode>,
    pub(super) stat: Stat,
}

/// The parameters of a new file.
pub(super) struct FileCreation {
    pub(super) mode: u32,
    pub(super) umask: u32,
}

impl Fs {
    /// Looks a name up; nothing where a thread without patience would wait.
    pub(super) fn lookup(&self, parent: u64, name: &[u8], patience: Patience) -> Answer<Option<LookupEntry>> {
        let parent = self.nodes.get(parent)?;
        let lower = self.view.lower_name(name)?;
        self.find(&parent, &lower, patience)
    }

    /// Looks a lower name up, and tells the kernel of it; nothing where a thread without patience
    /// would wait.
    pub(super) fn find(
        &self,
        parent: &Arc<FileNode>,
        lower: &[u8],
        patience: Patience,
    ) -> Answer<Option<LookupEntry>> {
        let folder = self.nodes.fd(parent)?;
        let fd = openat(&folder, lower, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = fstat(&fd)?;
        let node = self.nodes.enter(&stat, Some((parent, lower)), Some(fd));
        match self.refresh(&node, patience) {
            Ok(true) => self.told(node, stat).map(Some),
            refused => {
                self.nodes.forget(node.id, 1);
                refused.map(|_| None)
            }
        }
    }

    /// Looks up what was just made.
    fn find_made(&self, parent: &Arc<FileNode>, lower: &[u8]) -> Answer<LookupEntry> {
        // Another program has put a file there meanwhile: the kernel looks its name up again.
        self.find(parent, lower, Patience::Refuse)?.ok_or(Errno::STALE)
    }

    /// Completes the attributes; after an error the entry is removed again.
    fn told(&self, node: Arc<FileNode>, mut stat: Stat) -> Answer<LookupEntry> {
        match self.complete(&node, &mut stat) {
            Ok(()) => Ok(LookupEntry { node, stat }),
            Err(e) => {
                self.nodes.forget(node.id, 1);
                Err(e)
            }
        }
    }

    pub(super) fn mkdir(&self, by: &InHeader, name: &[u8], make: &FileCreation) -> Answer<LookupEntry> {
        let (parent, lower) = (self.nodes.get(by.node)?, self.view.lower_name(name)?);
        self.become_caller(by, make.umask)?;
        let folder = self.nodes.fd(&parent)?;
        let _beside = self.make_beside(&folder, &lower)?;
        mkdirat(&folder, &*lower, Mode::from_raw_mode(make.mode))?;
        self.find_made(&parent, &lower)
    }

    pub(super) fn mknod(
        &self,
        by: &InHeader,
        name: &[u8],
        make: &FileCreation,
        device: Dev,
    ) -> Answer<LookupEntry> {
        let kind = FileType::from_raw_mode(make.mode);
        if kind == FileType::RegularFile {
            let (found, _) = self.create_new(by, name, make)?;
            return Ok(found);
        }
        let (parent, lower) = (self.nodes.get(by.node)?, self.view.lower_name(name)?);
        self.become_caller(by, make.umask)?;
        let mode = Mode::from_raw_mode(make.mode & 0o7777);
        let folder = self.nodes.fd(&parent)?;
        let _beside = self.make_beside(&folder, &lower)?;
        mknodat(&folder, &*lower, kind, mode, device)?;
        self.find_made(&parent, &lower)
    }

    pub(super) fn symlink(&self, by: &InHeader, name: &[u8], target: &[u8]) -> Answer<LookupEntry> {
        let (parent, lower) = (self.nodes.get(by.node)?, self.view.lower_name(name)?);
        let target = self.view.lower_target(target)?;
        self.become_caller(by, 0)?;
        let folder = self.nodes.fd(&parent)?;
        let _beside = self.make_beside(&folder, &lower)?;
        symlinkat(&*target, &folder, &*lower)?;
        self.find_made(&parent, &lower)
    }

    pub(super) fn readlink(&self, node: u64) -> Answer<Vec<u8>> {
        let node = self.nodes.get(node)?;
        let target = readlinkat(self.nodes.fd(&node)?, "", Vec::new())?;
        self.view.upper_target(target.as_bytes()).inspect_err(|_| {
            self.failure_log.add(|| format!("{}: the symlink's target cannot be decrypted", node.path()));
        })
    }

    /// Creates a file and opens it.
    pub(super) fn create_new(
        &self,
        by: &InHeader,
        name: &[u8],
        make: &FileCreation,
    ) -> Answer<(LookupEntry, Opener)> {
        let (parent, lower) = (self.nodes.get(by.node)?, self.view.lower_name(name)?);
        let folder = self.nodes.fd(&parent)?;
        self.become_caller(by, make.umask)?;
        let _beside = self.make_beside(&folder, &lower)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(&folder, &*lower, flags, Mode::from_raw_mode(make.mode & 0o7777))?;
        let made = self.made(fd, Some((&parent, &*lower)));
        if made.is_err() {
            // The file would never open.
            let _ = unlinkat(&folder, &*lower, AtFlags::empty());
        }
        made
    }

    /// Creates a file without a name.
    pub(super) fn tmpfile(
        &self,
        by: &InHeader,
        make: &FileCreation,
        exclusive: bool,
    ) -> Answer<(LookupEntry, Opener)> {
        let parent = self.nodes.get(by.node)?;
        self.become_caller(by, make.umask)?;
        let mut flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        flags.set(OFlags::EXCL, exclusive);
        let fd = openat(self.nodes.fd(&parent)?, ".", flags, Mode::from_raw_mode(make.mode & 0o7777))?;
        self.made(fd, None)
    }

    fn made(&self, fd: OwnedFd, link: Option<(&Arc<FileNode>, &[u8])>) -> Answer<(LookupEntry, Opener)> {
        let file = Arc::new(OpenFile::create(&self.view, fd).map_err(|e| {
            self.failure_log.add(|| {
                let path = link.map_or(String::new(), |(parent, name)| {
                    format!("{}/{}", parent.path(), name.escape_ascii())
                });
                format!("{path}: cannot be made: {e}")
            });
            e.errno
        })?);
        let stat = fstat(file.as_fd())?;
        let node = self.nodes.enter(&stat, link, None);
        super::locked(&node.file).set_open(&file, true);
        let file = Opener::new(file, true);
        Ok((self.told(node, stat)?, file))
    }

    pub(super) fn link(&self, by: &InHeader, node: u64, name: &[u8]) -> Answer<LookupEntry> {
        let (node, parent) = (self.nodes.get(node)?, self.nodes.get(by.node)?);
        let lower = self.view.lower_name(name)?;
        let folder = self.nodes.fd(&parent)?;
        let fd = self.nodes.fd(&node)?;
        self.nodes.has_its_names(&node)?;
        self.become_caller(by, 0o022)?;
        let _beside = self.make_beside(&folder, &lower)?;
        let change = self.change_closed(&node, false);
        linkat(CWD, proc_path(&fd), &folder, &*lower, AtFlags::SYMLINK_FOLLOW)?;
        drop(change);
        let stat = fstat(fd.as_fd())?;
        let node = self.nodes.enter(&stat, Some((&parent, &lower)), None);
        self.told(node, stat)
    }

    pub(super) fn unlink(&self, by: &InHeader, name: &[u8], flags: AtFlags) -> Answer<()> {
        let (parent, lower) = (self.nodes.get(by.node)?, self.view.lower_name(name)?);
        let folder = self.nodes.fd(&parent)?;
        self.become_caller(by, 0o022)?;
        let removed = pin(&folder, &lower)?;
        let before = fstat(&removed)?;
        self.nodes.was_found(&before, &parent, &lower)?;
        let _beside = self.beside(&[(&folder, &lower)]);
        let _owner = self.only_as_owner(by, &[(&folder, Some(&before))])?;
        let _change = if before.st_nlink > 1 { self.change_names(&before) } else { None };
        match unlinkat(&folder, &*lower, flags) {
            Err(Errno::NOTEMPTY) if self.sweep(&folder, &lower) => unlinkat(&folder, &*lower, flags)?,
            Err(Errno::PERM) => return Err(self.refused(&[(&parent, &lower)])),
            done => done?,
        }
        self.nodes.removed(&removed, &before, &parent, &lower);
        Ok(())
    }

    pub(super) fn rename(&self, by: &InHeader, from: &[u8], to: (u64, &[u8]), flags: u32) -> Answer<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        // A whiteout would belong to the lower filesystem, under a plaintext name.
        if !(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE).contains(flags) {
            return Err(Errno::INVAL);
        }
        let (source, target) = (self.nodes.get(by.node)?, self.nodes.get(to.0)?);
        let (old, new) = (self.view.lower_name(from)?, self.view.lower_name(to.1)?);
        let (source_fd, target_fd) = (self.nodes.fd(&source)?, self.nodes.fd(&target)?);

        self.become_caller(by, 0o022)?;
        let beside = self.beside(&[(&source_fd, &old), (&target_fd, &new)]);
        let found = statat(&source_fd, &*old, AtFlags::SYMLINK_NOFOLLOW)?;
        let _change = self.change_names(&found);
        let _moving = self.nodes.moving();
        let moved = statat(&source_fd, &*old, AtFlags::SYMLINK_NOFOLLOW)?;
        self.nodes.was_found(&moved, &source, &old)?;
        let replaced = match pin(&target_fd, &new) {
            Ok(fd) => Some((fstat(&fd)?, fd)),
            Err(_) => None,
        };
        let other = replaced.as_ref().map(|(other, _)| other);
        if let Some(other) = other {
            self.nodes.was_found(other, &target, &new)?;
        }
        if let Some(beside) = &beside {
            beside.write()?;
        }
        let _owner = self.only_as_owner(by, &[(&source_fd, Some(&moved)), (&target_fd, other)])?;
        match renameat_with(&source_fd, &*old, &target_fd, &*new, flags) {
            Err(Errno::NOTEMPTY) if self.sweep(&target_fd, &new) => {
                renameat_with(&source_fd, &*old, &target_fd, &*new, flags)?;
            }
            Err(Errno::PERM) => return Err(self.refused(&[(&source, &old), (&target, &new)])),
            renamed => renamed?,
        }
        match replaced {
            // Two names of one file: a rename does nothing.
            Some((other, _)) if (other.st_dev, other.st_ino) == (moved.st_dev, moved.st_ino) => return Ok(()),
            Some((other, _)) if flags.contains(RenameFlags::EXCHANGE) => {
                self.nodes.moved(&other, (&target, &new), (&source, &old));
            }
            Some((other, fd)) => self.nodes.removed(&fd, &other, &target, &new),
            None => {}
        }
        self.nodes.moved(&moved, (&source, &old), (&target, &new));
        Ok(())
    }

    /// Lets the lower filesystem check what the kernel has checked for the files that it has found:
    /// that they are the caller's, where a folder is sticky. Another program may put another file
    /// in their place at any moment. A caller who may take files of others keeps the right to.
    fn only_as_owner(
        &self,
        by: &InHeader,
        names: &[(&LowerDescriptor, Option<&Stat>)],
    ) -> Answer<Option<identity::OwnFiles>> {
        if !self.root || by.uid == 0 {
            return Ok(None);
        }
        let mut is_sticky = false;
        for (folder, file) in names {
            let folder = fstat(folder)?;
            if folder.st_mode & 0o1000 == 0 {
                continue;
            }
            if folder.st_uid != by.uid && file.is_some_and(|file| file.st_uid != by.uid) {
                return Ok(None);
            }
            is_sticky = true;
        }
        if !is_sticky {
            return Ok(None);
        }
        let owner = identity::only_own_files();
        owner.map(Some).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }

    /// Returns the error for a change that the lower filesystem does not permit: `ESTALE` when the
    /// kernel has not found the files that are there.
    fn refused(&self, names: &[(&Arc<FileNode>, &[u8])]) -> Errno {
        let found = names.iter().try_for_each(|(folder, name)| {
            match statat(self.nodes.fd(folder)?, *name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => self.nodes.was_found(&stat, folder, name),
                Err(_) => Ok(()),
            }
        });
        found.err().unwrap_or(Errno::PERM)
    }

    fn become_caller(&self, by: &InHeader, umask: u32) -> Answer<()> {
        identity::assume(self.root, by, umask).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
    }
}

/// Opens an entry that is about to lose a name. The lower filesystem reuses the inode number only
/// after the descriptor is closed.
fn pin(folder: impl AsFd, name: &[u8]) -> Answer<OwnedFd> {
    openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::MountConfig;
    use super::super::nodes::ROOT;
    use super::*;

    /// Returns the number of this process's descriptors for a removed file of this path.
    fn descriptors_of(removed: &Path) -> usize {
        let shown = format!("{} (deleted)", removed.display());
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|to| to == Path::new(&shown))).count()
    }

    #[test]
    fn an_inode_number_stays_taken_until_its_node_has_lost_it() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().canonicalize().unwrap();
        let open = || rustix::fs::open(&folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut fs = Fs::new(open(), &folder, None, &MountConfig::default()).unwrap();
        let gone = folder.join("gone");
        let (seen, tell) = std::sync::mpsc::channel();
        fs.nodes.before_removed = Some(Box::new({
            let gone = gone.clone();
            move || seen.send(descriptors_of(&gone)).unwrap()
        }));
        let root = fs.nodes.get(ROOT).unwrap();
        let enter = |fs: &Fs| {
            std::fs::write(&gone, b"x").unwrap();
            // A newly created file has a node without a descriptor.
            fs.nodes.enter(&statat(open(), "gone", AtFlags::empty()).unwrap(), Some((&root, b"gone")), None)
        };
        enter(&fs);
        let by = InHeader { opcode: 0, unique: 0, node: ROOT, uid: 0, gid: 0, pid: 0 };
        fs.unlink(&by, b"gone", AtFlags::empty()).unwrap();
        assert_eq!(tell.recv().unwrap(), 1, "unlink");
        enter(&fs);
        std::fs::write(folder.join("new"), b"y").unwrap();
        fs.lookup(ROOT, b"new", Patience::Wait).unwrap();
        fs.rename(&by, b"new", (ROOT, b"gone"), 0).unwrap();
        assert_eq!(tell.recv().unwrap(), 1, "rename");
    }

    #[test]
    fn the_last_of_two_names_takes_the_inode_number_along() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path();
        let open = || rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let fs = Fs::new(open(), folder, None, &MountConfig::default()).unwrap();
        std::fs::write(folder.join("one"), b"x").unwrap();
        std::fs::hard_link(folder.join("one"), folder.join("two")).unwrap();
        let first = fs.lookup(ROOT, b"one", Patience::Wait).unwrap().unwrap();
        fs.lookup(ROOT, b"two", Patience::Wait).unwrap();
        // Both names were there when each removal began.
        let (one, two) = (pin(open(), b"one").unwrap(), pin(open(), b"two").unwrap());
        std::fs::remove_file(folder.join("one")).unwrap();
        std::fs::remove_file(folder.join("two")).unwrap();
        let root = fs.nodes.get(ROOT).unwrap();
        fs.nodes.removed(&one, &first.stat, &root, b"one");
        fs.nodes.removed(&two, &first.stat, &root, b"two");
        let entered = fs.nodes.enter(&first.stat, None, None);
        assert_ne!(entered.id, first.node.id, "another file has the number now");
    }
}
