//! Open files that must keep their names.
//!
//! The bytes of a file that was removed are lost with the last program that has it open. Those of
//! one that was replaced stay behind where it has another name, a hard link, and no program that
//! opens the usual one finds them. So a program that promises bytes compares the file that its name
//! leads to now with the one that it has open.
//!
//! The folder is kept open, without the right to read it, from before a server enters its sandbox:
//! renaming the folder, or one above, changes nothing. A file that was moved to another name is
//! still there, unless another one has taken the first name since.

#![forbid(unsafe_code)]

mod loops;
mod mount_table;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

pub use loops::{backing_file, backing_file_in, backing_range};
pub use mount_table::{MOUNT_SOURCE, MountEntry};

/// The name that an open file had when it was opened.
#[derive(Debug)]
pub struct FileName {
    /// Whether the file must keep it. A file that had none is a temporary one; a block device keeps
    /// its own.
    is_needed: bool,
    /// The folder, and the name in it. `None` where they could not be found out: without `/proc`,
    /// or for a file of another mount namespace.
    place: Option<(OwnedFd, OsString)>,
}

/// The present state of a file's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameState {
    /// The file has its name, or another one.
    Kept,
    /// The file has no name, and no other file has taken the one that it had.
    Removed,
    /// Another file has the name; or the file has none any more, and its old one does not show
    /// whether another file has it.
    Replaced,
}

impl FileName {
    /// Finds out the name of a file that was opened.
    pub fn of_opened(file: &File) -> Self {
        let had_one = |of: Stat| FileType::from_raw_mode(of.st_mode).is_file() && of.st_nlink > 0;
        match fstat(file).is_ok_and(had_one) {
            true => Self::of_made(file),
            false => Self { is_needed: false, place: None },
        }
    }

    /// Finds out the name of a file that this program has made under one. Another program may have
    /// removed it by now.
    fn of_made(file: &File) -> Self {
        Self { is_needed: true, place: place(file) }
    }

    /// Looks at the name. Without a descriptor of the folder, or the right to search it, only the
    /// loss of the last name is noticed.
    ///
    /// # Errors
    /// The errors of the system for the open file.
    pub fn state(&self, file: &File) -> io::Result<NameState> {
        if !self.is_needed {
            return Ok(NameState::Kept);
        }
        let here = fstat(file)?;
        let there = self.place.as_ref().map(|(folder, name)| there(folder, name));
        Ok(match there {
            Some(Ok(there)) if !is_same(&here, &there) => NameState::Replaced,
            _ if here.st_nlink > 0 => NameState::Kept,
            Some(Err(Errno::NOENT)) => NameState::Removed,
            // A bind mount leads to it still.
            _ => NameState::Replaced,
        })
    }
}

/// The folder and name of an open file, where they lead to it.
fn place(file: &File) -> Option<(OwnedFd, OsString)> {
    let path: PathBuf = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let name = path.file_name()?.to_owned();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, path.parent()?, flags, Mode::empty()).ok()?;
    let is_its = is_same(&fstat(file).ok()?, &there(&folder, &name).ok()?);
    is_its.then_some((folder, name))
}

fn there(folder: &OwnedFd, name: &OsStr) -> Result<Stat, Errno> {
    statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// A file with a header, or another record of progress, and the name that it must keep.
#[derive(Debug)]
pub struct NamedFile {
    file: File,
    name: Arc<FileName>,
}

impl NamedFile {
    /// Takes over a file that was opened.
    pub fn opened(file: File) -> Self {
        Self { name: FileName::of_opened(&file).into(), file }
    }

    /// Takes over a file that this program has made under a name. Another program may have removed
    /// it by now.
    pub fn made(file: File) -> Self {
        Self { name: FileName::of_made(&file).into(), file }
    }

    /// Takes over another open file of the same file.
    #[must_use]
    pub fn opened_again(&self, file: File) -> Self {
        Self { file, name: self.name.clone() }
    }

    /// The same open file, by another descriptor.
    ///
    /// # Errors
    /// The system's: this process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.opened_again(self.file.try_clone()?))
    }

    /// The open file, to read it and to lock it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the open file.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Looks at the file's name.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn name_state(&self) -> io::Result<NameState> {
        self.name.state(&self.file)
    }

    /// Checks that the file was neither removed nor replaced.
    ///
    /// # Errors
    /// `Other` once it was; otherwise the error of the system.
    pub fn keeps_name(&self) -> io::Result<()> {
        match self.name_state()? {
            NameState::Kept => Ok(()),
            NameState::Removed | NameState::Replaced => Err(io::Error::other(
                "the header's file, or the one that records the progress, was removed or replaced",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{hard_link, remove_file, rename};
    use std::path::Path;

    use super::NameState::{Kept, Removed, Replaced};
    use super::*;

    /// A file and its name, and paths in the same folder.
    fn file_in(folder: &Path) -> (NamedFile, PathBuf, PathBuf) {
        let [path, other] = ["file", "other"].map(|name| folder.join(name));
        let file = NamedFile::opened(File::create(&path).unwrap());
        assert_eq!(file.name_state().unwrap(), Kept);
        (file, path, other)
    }

    fn put(path: &Path) {
        let new = path.with_extension("new");
        File::create(&new).unwrap();
        rename(new, path).unwrap();
    }

    #[test]
    fn a_file_is_replaced_by_another_one_of_its_name_whatever_links_it_has() {
        for links in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (file, path, other) = file_in(folder.path());
            if links {
                hard_link(&path, &other).unwrap();
            }
            put(&path);
            assert_eq!(file.name_state().unwrap(), Replaced);
            let again = file.opened_again(file.file().try_clone().unwrap());
            assert_eq!(again.name_state().unwrap(), Replaced);
            again.keeps_name().unwrap_err();
            file.try_clone().unwrap().keeps_name().unwrap_err();
        }
    }

    #[test]
    fn a_file_may_be_moved_until_another_one_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path, other) = file_in(folder.path());
        rename(&path, &other).unwrap();
        assert_eq!(file.name_state().unwrap(), Kept);
        put(&path);
        assert_eq!(file.name_state().unwrap(), Replaced, "the old one is a backup");
        rename(&other, &path).unwrap();
        assert_eq!(file.name_state().unwrap(), Kept, "back again");
        // The file has two names now.
        hard_link(&path, &other).unwrap();
        remove_file(&path).unwrap();
        file.keeps_name().unwrap();
        remove_file(&other).unwrap();
        assert_eq!(file.name_state().unwrap(), Removed);
        file.keeps_name().unwrap_err();
    }

    #[test]
    fn a_folder_may_be_renamed() {
        let top = tempfile::tempdir().unwrap();
        let [folder, moved] = ["folder", "moved"].map(|name| top.path().join(name));
        std::fs::create_dir(&folder).unwrap();
        let (file, _, _) = file_in(&folder);
        rename(&folder, &moved).unwrap();
        assert_eq!(file.name_state().unwrap(), Kept);
        std::fs::create_dir(&folder).unwrap();
        put(&folder.join("file"));
        assert_eq!(file.name_state().unwrap(), Kept, "another folder's file");
        put(&moved.join("file"));
        assert_eq!(file.name_state().unwrap(), Replaced);
        std::fs::remove_dir_all(&moved).unwrap();
        assert_eq!(file.name_state().unwrap(), Removed);
    }

    #[test]
    fn a_file_that_is_opened_through_a_link_has_its_own_name() {
        let folder = tempfile::tempdir().unwrap();
        let (_, path, other) = file_in(folder.path());
        std::os::unix::fs::symlink(&path, &other).unwrap();
        let file = NamedFile::opened(File::open(&other).unwrap());
        put(&other);
        assert_eq!(file.name_state().unwrap(), Kept);
        put(&path);
        assert_eq!(file.name_state().unwrap(), Replaced);
    }

    #[test]
    fn a_temporary_file_needs_no_name_and_one_that_was_made_needs_it_from_the_start() {
        let temporary = tempfile::tempfile().unwrap();
        NamedFile::opened(temporary.try_clone().unwrap()).keeps_name().unwrap();
        // A file that was made, and removed before it came here.
        NamedFile::made(temporary).keeps_name().unwrap_err();
    }

    #[test]
    fn without_a_place_the_last_name_counts() {
        let folder = tempfile::tempdir().unwrap();
        let (file, path, other) = file_in(folder.path());
        let name = FileName { is_needed: true, place: None };
        hard_link(&path, &other).unwrap();
        put(&path);
        assert_eq!(name.state(file.file()).unwrap(), Kept);
        put(&other);
        assert_eq!(name.state(file.file()).unwrap(), Replaced);
    }
}
