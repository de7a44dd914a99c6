//! The lower form of an archive.
//!
//! Archives are not trusted. A member is created at its path below the lower folder only: no path
//! begins at the root, leads upwards, or leads through entries other than folders; a hard link
//! leads to an earlier file; no existing entry is overwritten. Refused members are reported, and
//! the import continues with the others.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use tar::EntryType;

use super::ImportOptions;
use super::archive::{Archive, Member};
use crate::tools::attributes::TreeAttributes;
use crate::tools::maker::{LookAlikes, placed};
use crate::tools::tree::TreeFolder;
use crate::tools::walk::{EntryKind, join};
use crate::tools::{ProgressWatch, Summary, sink};
use crate::{Error, ErrorKind, Result};

/// Encrypts a tar archive into a lower folder, which must not exist or must be empty.
///
/// # Errors
/// `BadOption` when the lower folder is not empty; `Busy`; `Io`. Failures in the archive are
/// reported to the watch, with their paths in the archive.
pub fn import_tar(
    from: &mut dyn Read,
    lower: &Path,
    how: &ImportOptions,
    watch: &mut dyn ProgressWatch,
) -> Result<Summary> {
    let (root, _claim) = sink::empty(lower)?;
    let (folders, alike) = (BTreeMap::new(), LookAlikes::default());
    let mut run = Run { how, root: &root, watch, folders, alike, summary: Summary::default() };
    run.folders.insert(PathBuf::new(), None);
    let mut archive = Archive::new(from);
    loop {
        match archive.next() {
            Ok(None) => break,
            Ok(Some(member)) => {
                let done = run.member(&member, &mut archive);
                let path = shown(&member.path);
                run.note(&path, done.map_err(|e| e.in_file(&path)));
            }
            Err(error) => {
                run.note(Path::new(""), Err(error));
                break;
            }
        }
    }
    archive.end();
    run.finish();
    run.alike.finish(root.path(), run.watch);
    root.sync()?;
    Ok(run.summary)
}

struct Run<'r> {
    how: &'r ImportOptions,
    root: &'r TreeFolder,
    watch: &'r mut dyn ProgressWatch,
    /// The folders made so far, by their lower paths from the root on, and the attributes to set
    /// when their contents are complete.
    folders: BTreeMap<PathBuf, Option<TreeAttributes>>,
    alike: LookAlikes,
    summary: Summary,
}

impl Run<'_> {
    fn note(&mut self, path: &Path, done: Result<()>) {
        if let Err(error) = done {
            self.summary.failed += 1;
            self.watch.failed(path, error);
        }
    }

    fn finish(&mut self) {
        // The contents of a folder come after it.
        for (lower, attributes) in std::mem::take(&mut self.folders).into_iter().rev() {
            self.summary.folders += 1;
            let done = self.root.beneath(&lower).and_then(|folder| folder.folder()).and_then(|folder| {
                if let Some(attributes) = attributes {
                    attributes.apply(&folder, folder.path())?;
                }
                folder.sync_entries()
            });
            self.note(&self.root.path().join(&lower), done);
        }
    }

    fn member(&mut self, member: &Member, data: &mut Archive<'_>) -> Result<()> {
        let names = names(&member.path)?;
        let Some((last, folders)) = names.split_last() else {
            if member.kind.is_dir() {
                self.folders.insert(PathBuf::new(), Some(member.folder()));
                return Ok(());
            }
            return Err(refused("its path is that of the archive itself"));
        };
        let owner = (member.attributes.uid, member.attributes.gid);
        let mut folder = PathBuf::new();
        for name in folders {
            folder = self.folder(&folder, name, ids())?;
        }
        if member.kind.is_dir() {
            let made = self.folder(&folder, last, owner)?;
            self.folders.insert(made, Some(member.folder()));
            return Ok(());
        }
        self.alike.look(self.how, last, &shown(&member.path), self.watch);
        let name = self.how.name(last)?;
        let folder = self.root.beneath(&folder)?.folder()?;
        placed(&folder, &name, owner, |lower| self.make(member, &folder, lower, data))
    }

    /// Returns a folder in a folder, and creates it if missing: archives may leave folders out.
    fn folder(&mut self, folder: &Path, name: &[u8], owner: (u32, u32)) -> Result<PathBuf> {
        let (plain, name) = (name, self.how.name(name)?);
        let lower = join(folder, name.to_vec());
        if self.folders.contains_key(&lower) {
            return Ok(lower);
        }
        self.alike.look(self.how, plain, &lower, self.watch);
        let folder = self.root.beneath(folder)?.folder()?;
        placed(&folder, &name, owner, |lower| folder.make_folder(lower)).map_err(|e| {
            // In particular not through a symlink.
            e.within("its path leads through an entry that is no folder, or its place is taken")
        })?;
        self.folders.insert(lower.clone(), None);
        Ok(lower)
    }

    fn make(
        &mut self,
        member: &Member,
        folder: &TreeFolder,
        name: &[u8],
        data: &mut Archive<'_>,
    ) -> Result<()> {
        let kind = match member.kind {
            _ if member.sparse => {
                return Err(refused("a sparse file: make the archive without --sparse"));
            }
            EntryType::Regular | EntryType::Continuous => {
                let attributes = member.with(FileType::RegularFile);
                let size = self.how.make_file(folder, name, &attributes, data, self.watch)?;
                self.summary.files += 1;
                self.summary.bytes += size;
                return Ok(());
            }
            EntryType::Link => return self.link(&member.link, folder, name),
            EntryType::Symlink => {
                let attributes = member.with(FileType::Symlink);
                self.alike.look(self.how, &member.link, &shown(&member.path), self.watch);
                self.how.make_symlink(folder, name, &member.link, &attributes)?;
                self.summary.others += 1;
                return Ok(());
            }
            EntryType::Fifo => FileType::Fifo,
            EntryType::Char => FileType::CharacterDevice,
            EntryType::Block => FileType::BlockDevice,
            other => {
                let context = format!("a member of the type \"{}\"", other.as_byte().escape_ascii());
                return Err(Error::new(ErrorKind::Unsupported, context));
            }
        };
        member.with(kind).make_special(folder, name)?;
        self.summary.others += 1;
        Ok(())
    }

    /// Creates another name of a file that this archive has created.
    fn link(&mut self, to: &[u8], folder: &TreeFolder, name: &[u8]) -> Result<()> {
        let names = names(to).map_err(|e| e.within("the link's target"))?;
        let mut first = PathBuf::new();
        for part in names {
            if !self.folders.contains_key(&first) {
                return Err(refused("the link's target is not in a folder of the archive"));
            }
            first = join(&first, self.how.name(part)?.to_vec());
        }
        let first = self.root.beneath(&first);
        let first = first.map_err(|e| refused("the link's target is missing").with_source(e))?;
        if first.kind() == EntryKind::Folder {
            return Err(refused("the link's target is a folder"));
        }
        folder.link(&first, name)?;
        self.summary.others += 1;
        Ok(())
    }
}

impl Member {
    fn with(&self, kind: FileType) -> TreeAttributes {
        let attributes = self.attributes.clone();
        TreeAttributes { mode: attributes.mode | kind.as_raw_mode(), ..attributes }
    }

    fn folder(&self) -> TreeAttributes {
        self.with(FileType::Directory)
    }
}

/// Returns a member's names from the archive's root on.
fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.starts_with(b"/") {
        return Err(refused("its path begins at the root: make the archive without --absolute-names"));
    }
    if path.contains(&0) || path.split(|&byte| byte == b'/').any(|name| name == b"..") {
        return Err(refused("its path leads out of the archive"));
    }
    Ok(path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect())
}

/// The owner of a folder that an archive leaves out.
fn ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::BadFile, why)
}

fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(path))
}
