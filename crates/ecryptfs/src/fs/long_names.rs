//! The files that hold long names: created before a name is used, and removed after it.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::MutexGuard;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, openat, unlinkat};
use rustix::io::Errno;

use underseal_fuse::wire::op;

use super::{Answer, Fs, locked};
use crate::file::LowerDescriptor;
use crate::name::long;
use crate::{LowerName, NameCipher};

/// The long names of a call, locked against other changes. At the end, the files of unused names
/// are removed.
pub(super) struct LongNameLock<'a> {
    names: Vec<(&'a LowerDescriptor, &'a LowerName<'a>)>,
    _alone: MutexGuard<'a, ()>,
}

impl LongNameLock<'_> {
    /// Creates the missing files.
    pub(super) fn write(&self) -> Answer<()> {
        for (folder, name) in &self.names {
            let encoded = name.encoded().unwrap_or_default();
            long::write(folder, name, encoded, long::NameOwner::Thread)?;
        }
        Ok(())
    }
}

impl Drop for LongNameLock<'_> {
    fn drop(&mut self) {
        for (folder, name) in &self.names {
            long::tidy(folder, name);
        }
    }
}

impl Fs {
    /// Returns true when a request of `len` bytes may read, write or remove files of long names:
    /// each is a wait for the disk, and for other requests of that kind.
    pub(super) fn may_wait_for_names(&self, opcode: u32, len: usize) -> bool {
        let may_wait = match opcode {
            // A folder that is removed or replaced may have files of unused names.
            op::RMDIR | op::RENAME | op::RENAME2 | op::READDIR | op::READDIRPLUS => true,
            // A shorter request has no long name.
            op::CREATE | op::MKNOD | op::MKDIR | op::SYMLINK | op::LINK | op::UNLINK => {
                len > NameCipher::MAX_NAME
            }
            _ => false,
        };
        may_wait && self.view.has_long_names()
    }

    /// Returns the long names among `names`, locked, or `None` without long names.
    pub(super) fn beside<'a>(
        &'a self,
        names: &[(&'a LowerDescriptor, &'a LowerName<'a>)],
    ) -> Option<LongNameLock<'a>> {
        let names: Vec<_> = names.iter().filter(|(_, name)| name.encoded().is_some()).copied().collect();
        (!names.is_empty()).then(|| LongNameLock { names, _alone: locked(&self.long_names) })
    }

    /// Creates the file of a name that is about to be used.
    pub(super) fn make_beside<'a>(
        &'a self,
        folder: &'a LowerDescriptor,
        name: &'a LowerName<'a>,
    ) -> Answer<Option<LongNameLock<'a>>> {
        let beside = self.beside(&[(folder, name)]);
        beside.as_ref().map_or(Ok(()), LongNameLock::write)?;
        Ok(beside)
    }

    /// Empties a folder with nothing but unused files of names. Returns true in this case.
    pub(super) fn sweep(&self, parent: &LowerDescriptor, name: &[u8]) -> bool {
        self.view.has_long_names() && sweep(parent, name).is_ok_and(|empty| empty)
    }
}

/// Removes the files of unused names. If the folder has any other entry, all stay.
fn sweep(parent: &LowerDescriptor, name: &[u8]) -> Answer<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(parent, name, flags, Mode::empty())?;
    let mut left_over = Vec::new();
    let mut chunk = [MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(folder.as_fd(), &mut chunk);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        match entry.file_name().to_bytes() {
            b"." | b".." => {}
            entry => match long::is_beside(entry) {
                Some(of) => left_over.push((of.to_vec(), entry.to_vec())),
                None => return Ok(false),
            },
        }
    }
    for (of, _) in &left_over {
        if rustix::fs::statat(&folder, &**of, AtFlags::SYMLINK_NOFOLLOW).err() != Some(Errno::NOENT) {
            return Ok(false);
        }
    }
    for (_, beside) in &left_over {
        unlinkat(&folder, &**beside, AtFlags::empty())?;
    }
    Ok(true)
}
