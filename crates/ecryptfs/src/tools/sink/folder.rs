//! A new or empty folder as the target.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, mkdirat};
use rustix::io::Errno;

use super::{Sink, why};
use crate::lock::{LockMode, RootLock};
use crate::tools::attributes::TreeAttributes;
use crate::tools::inherited::close_to_others;
use crate::tools::sync::sync_new;
use crate::tools::tree::TreeFolder;
use crate::tools::walk::{EntryKind, last};
use crate::{Error, ErrorKind, Result};

/// A tree in a folder. No existing entry is ever replaced or followed.
#[derive(Debug)]
pub struct FolderSink {
    root: TreeFolder,
    /// The device and inode number of `root`.
    inode: (u64, u64),
    /// Incomplete folders, each inside of the previous.
    open: Vec<(PathBuf, TreeFolder)>,
    _claim: RootLock,
}

impl FolderSink {
    /// Returns a sink in a folder that does not exist, or is empty. No other tool writes to the
    /// folder meanwhile.
    ///
    /// # Errors
    /// `BadOption` when it is not empty; `Busy`; `Io`.
    pub fn new(root: &Path) -> Result<Self> {
        let (root, claim) = empty(root)?;
        Ok(Self { inode: root.itself()?.inode(), root, open: Vec::new(), _claim: claim })
    }

    /// Returns the open folder for an entry.
    fn above(&self, plain: &Path) -> Result<&TreeFolder> {
        let above = plain.parent().unwrap_or(Path::new(""));
        match self.open.last() {
            Some((path, folder)) if path == above => Ok(folder),
            None if above.as_os_str().is_empty() => Ok(&self.root),
            _ => Err(Error::new(ErrorKind::Io, "its folder was not made").in_file(plain)),
        }
    }
}

/// Creates a folder for its owner only, unless it exists and is empty, opens it, and locks it
/// against other tools and mounts.
pub(in crate::tools) fn empty(root: &Path) -> Result<(TreeFolder, RootLock)> {
    let folder = new_folder(root)?.map_or_else(|| TreeFolder::open(root), Ok)?;
    let claim = RootLock::on(&folder, root, LockMode::Alone)?;
    // Under the lock: another tool may have filled it until now.
    if folder.names()?.is_empty() {
        return Ok((folder, claim));
    }
    Err(Error::new(ErrorKind::BadOption, "there is something in it").in_file(root))
}

/// Creates a folder, and returns `None` when it exists.
fn new_folder(root: &Path) -> Result<Option<TreeFolder>> {
    if root.file_name().is_none() {
        return Ok(None);
    }
    let above = TreeFolder::above(root)?;
    match mkdirat(&above, last(root), Mode::from_raw_mode(0o700)) {
        Err(Errno::EXIST) => return Ok(None),
        made => made.map_err(|e| Error::io(root, "cannot be made", e))?,
    }
    // A symlink that replaced it meanwhile is not followed.
    let folder = above.pin(last(root))?.folder()?.called(root);
    close_to_others(&folder, root)?;
    above.sync_entries()?;
    Ok(Some(folder))
}

impl Sink for FolderSink {
    fn folder(&mut self, plain: &Path, _attributes: &TreeAttributes) -> Result<()> {
        if plain.as_os_str().is_empty() {
            return Ok(());
        }
        let made = self.above(plain)?.make_folder(last(plain))?;
        self.open.push((plain.into(), made));
        Ok(())
    }

    fn leave(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()> {
        if plain.as_os_str().is_empty() {
            attributes.apply(&self.root, self.root.path())?;
            return self.root.sync_entries();
        }
        match self.open.pop() {
            Some((path, folder)) if path == plain => {
                attributes.apply(&folder, folder.path())?;
                folder.sync_entries()
            }
            _ => Err(Error::new(ErrorKind::Io, "it is not the folder that was begun last").in_file(plain)),
        }
    }

    fn file(
        &mut self,
        plain: &Path,
        attributes: &TreeAttributes,
        size: u64,
        data: &mut dyn Read,
    ) -> Result<()> {
        let (folder, name) = (self.above(plain)?, last(plain));
        let (mut file, path) = (folder.make_file(name)?, folder.path_of(name));
        let written = io::copy(data, &mut file).and_then(|written| match written == size {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        });
        let unwritten = |e| {
            // A partial file looks like a whole one.
            let _ = folder.remove(name);
            why(e, |e| Error::io(&path, "cannot be written", e))
        };
        written.map_err(unwritten)?;
        attributes.apply(&file, &path)?;
        sync_new(&file).map_err(unwritten)
    }

    fn link(&mut self, plain: &Path, to: &Path, _attributes: &TreeAttributes) -> Result<()> {
        let first = self.root.beneath(to)?;
        if first.kind() != EntryKind::File {
            return Err(Error::new(ErrorKind::Busy, "it was replaced meanwhile").in_file(first.path()));
        }
        self.above(plain)?.link(&first, last(plain))
    }

    fn symlink(&mut self, plain: &Path, target: &[u8], attributes: &TreeAttributes) -> Result<()> {
        let made = self.above(plain)?.make_symlink(last(plain), target)?;
        attributes.apply(&made, made.path())
    }

    fn special(&mut self, plain: &Path, attributes: &TreeAttributes) -> Result<()> {
        attributes.make_special(self.above(plain)?, last(plain))
    }

    fn is_target(&self, inode: (u64, u64)) -> bool {
        self.inode == inode
    }

    fn sync(&mut self) -> Result<()> {
        self.root.sync()
    }
}
