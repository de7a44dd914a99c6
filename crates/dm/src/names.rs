//! The names of a device: its node in /dev/mapper, its links, udev's properties, and the files in
//! its folder for a later server.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::host::Names;
use crate::links::{Links, properties};
use crate::node_name::free_name;
use crate::{DeviceNumber, Error, Result};

/// The file with a device's name and UUID, a zero byte between them.
const NAMES: &str = "names";
/// The file with the same for udev's rule (`dm install`).
const UDEV: &str = "udev";
/// The file of a device that is removed after its last close.
const DEFERRED: &str = "deferred";
/// The file of a device with an inactive table.
const LOADED: &str = "loaded";
/// The file with the turn of the table server that has the device's file.
pub const OWNER_FILE: &str = "owner";
/// The files that go with the device.
pub(crate) const KEPT: [&str; 4] = [NAMES, UDEV, DEFERRED, LOADED];
/// The failure to write these files.
const UNKEPT: &str = "its names cannot be kept";
/// The folder of udev's names for disks.
const BY_ID: &str = "/dev/disk/by-id";

/// A disk of the kernel's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KernelDisk {
    /// The kernel's name: `loop1000`, `ublkb1000`.
    pub(crate) name: String,
    pub(crate) number: DeviceNumber,
}

impl KernelDisk {
    /// Returns the path of the kernel's node.
    pub(crate) fn node(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }
}

/// A device's folder.
#[derive(Debug)]
pub(crate) struct DeviceFolder {
    path: PathBuf,
    /// The device, as errors call it.
    what: String,
}

impl DeviceFolder {
    pub(crate) fn new(path: PathBuf, what: String) -> Self {
        Self { path, what }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Stores the names for a later server.
    pub(crate) fn remember(&self, Names { name, uuid }: Names<'_>) -> Result<()> {
        self.prepare_names(name, uuid).and_then(|()| self.keep_prepared()).map_err(self.failed(UNKEPT))
    }

    /// Returns the stored name and UUID; empty where there are none.
    pub(crate) fn remembered(&self) -> (String, String) {
        let names = fs::read_to_string(self.path.join(NAMES)).unwrap_or_default();
        let (name, uuid) = names.split_once('\0').unwrap_or_default();
        (name.into(), uuid.into())
    }

    pub(crate) fn keep_deferred(&self, deferred: bool) -> Result<()> {
        self.keep(DEFERRED, deferred.then(Vec::new))
    }

    pub(crate) fn is_deferred(&self) -> bool {
        self.path.join(DEFERRED).exists()
    }

    pub(crate) fn keep_loaded(&self, loaded: bool) -> Result<()> {
        // When the turn is another one, another table server has had the file since.
        self.keep(LOADED, loaded.then(|| self.turn()))
    }

    /// Returns true for a device that has lost an inactive table.
    pub(crate) fn was_loaded(&self) -> bool {
        fs::read(self.path.join(LOADED)).is_ok_and(|turn| turn == self.turn())
    }

    fn turn(&self) -> Vec<u8> {
        fs::read(self.path.join(OWNER_FILE)).unwrap_or_default()
    }

    /// Writes a file of the folder, or removes it.
    pub(crate) fn keep(&self, file: &str, contents: Option<Vec<u8>>) -> Result<()> {
        let path = self.path.join(file);
        let kept = match contents {
            Some(contents) => fs::write(&path, contents),
            None => fs::remove_file(&path).or_else(|e| match e.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            }),
        };
        kept.map_err(self.failed("its state cannot be kept"))
    }

    /// Writes the names for another server, beside the old ones: they take the old ones' place
    /// without further room.
    fn prepare_names(&self, name: &str, uuid: &str) -> io::Result<()> {
        let written = fs::write(self.prepared(UDEV), properties(name, uuid))
            .and_then(|()| fs::write(self.prepared(NAMES), format!("{name}\0{uuid}")));
        written.inspect_err(|_| self.drop_prepared())
    }

    /// Keeps the prepared names in place of the old ones.
    fn keep_prepared(&self) -> io::Result<()> {
        [UDEV, NAMES].iter().try_for_each(|file| fs::rename(self.prepared(file), self.path.join(file)))
    }

    fn drop_prepared(&self) {
        for file in [UDEV, NAMES] {
            let _ = fs::remove_file(self.prepared(file));
        }
    }

    fn prepared(&self, file: &str) -> PathBuf {
        self.path.join(format!("{file}.new"))
    }

    fn failed(&self, what: &str) -> impl Fn(io::Error) -> Error {
        let place = format!("{}: {what}", self.what);
        move |e| Error::system(&place, &e)
    }
}

/// The names of a device with a disk.
pub(crate) struct NodeNames<'n> {
    pub(crate) folder: &'n DeviceFolder,
    pub(crate) mapper: &'n Path,
    pub(crate) disk: KernelDisk,
}

impl NodeNames<'_> {
    /// Shows the device by its names, in place of others.
    pub(crate) fn name(&self, Names { name, uuid }: Names<'_>, before: Option<Names<'_>>) -> Result<()> {
        let failed = self.folder.failed(UNKEPT);
        // A full file system refuses new names before anything changes.
        if before.is_some() {
            self.folder.prepare_names(name, uuid).map_err(&failed)?;
        }
        let is_made = self.make_node(name).inspect_err(|_| self.folder.drop_prepared())?;
        if before.is_some()
            && let Err(e) = self.folder.keep_prepared()
        {
            self.folder.drop_prepared();
            if is_made {
                self.take_off(name);
            }
            return Err(failed(e));
        }
        self.links().make(name, uuid);
        if let Some(Names { name: old, uuid: old_uuid }) = before {
            self.links()
                .remove(if old == name { "" } else { old }, if old_uuid == uuid { "" } else { old_uuid });
            if old != name {
                self.take_off(old);
            }
            self.tell_udev();
        }
        Ok(())
    }

    /// Removes the device's names.
    pub(crate) fn unname(&self, Names { name, uuid }: Names<'_>) {
        self.links().remove(name, uuid);
        self.take_off(name);
    }

    /// Shows the device under its names, and under no other name: the server may have been killed
    /// during a rename.
    pub(crate) fn show_again(&self, names: Names<'_>) {
        if let Err(e) = self.folder.remember(names) {
            log::warn!("{}: {e}", names.name);
        }
        match self.name(names, None) {
            Ok(()) => self.take_off_others(names.name, names.uuid),
            // The device's only node may have another name.
            Err(e) => log::error!("{}: {e}", names.name),
        }
    }

    /// Makes the node of this name. Returns false when it is there already.
    ///
    /// The name is a hard link to the kernel's node where both are in one file system: udev
    /// watches and locks that inode rather than the device, and notices what is written by the
    /// name only so.
    fn make_node(&self, name: &str) -> Result<bool> {
        let path = self.mapper.join(name);
        if self.is_node(&path) {
            return Ok(false);
        }
        let own = self.disk.node();
        let make = || {
            free_name(&path)?;
            if self.is_node(&own) && fs::hard_link(&own, &path).is_ok() {
                return Ok(());
            }
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
            let made = mknodat(CWD, &path, FileType::BlockDevice, mode, self.disk.number.for_node());
            made.map_err(|e| Error::system(path.display(), &e.into()))
        };
        let mut made = make();
        if made.is_err() && self.leads_here(&path) {
            // A link of udev's, which was faster: mounts would be shown as those of the kernel's
            // node. udev leaves a node alone.
            fs::remove_file(&path).map_err(|e| Error::system(path.display(), &e))?;
            made = make();
        }
        match made {
            // udev has made its link once more.
            Err(_) if self.leads_here(&path) => Ok(false),
            made => made.map(|()| true),
        }
    }

    /// Has udev read the names anew. A machine without udev needs no word.
    fn tell_udev(&self) {
        let path = format!("/sys/block/{}/uevent", self.disk.name);
        if let Err(e) = fs::write(&path, "change") {
            log::debug!("{path}: {e}");
        }
    }

    /// Returns the names outside of /dev/mapper.
    fn links(&self) -> Links<'_> {
        Links { folder: Path::new(BY_ID), to: Path::new("../..").join(&self.disk.name) }
    }

    /// Removes its node of this name.
    fn take_off(&self, name: &str) {
        let path = self.mapper.join(name);
        if self.leads_here(&path)
            && let Err(e) = fs::remove_file(&path)
        {
            log::warn!("{}: cannot be removed: {e}", path.display());
        }
    }

    /// Removes nodes of the device, and links to it, under other names.
    pub(crate) fn take_off_others(&self, name: &str, uuid: &str) {
        self.links().remove_others(name, uuid);
        for path in self.nodes().filter(|node| node.file_name() != Some(name.as_ref())) {
            if let Err(e) = fs::remove_file(&path) {
                log::warn!("{}: cannot be removed: {e}", path.display());
            }
        }
    }

    /// Returns the nodes of the device in /dev/mapper.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = PathBuf> {
        let all = fs::read_dir(self.mapper).into_iter().flatten().flatten().map(|node| node.path());
        all.filter(|path| self.is_node(path))
    }

    /// Returns true for a node of the device that its name leads to.
    pub(crate) fn leads_here_by(&self, name: &str) -> bool {
        self.leads_here(&self.mapper.join(name))
    }

    /// Returns true for a node of the device, or a link to one.
    fn leads_here(&self, path: &Path) -> bool {
        let of = fs::metadata(path).ok().filter(|of| of.file_type().is_block_device());
        of.is_some_and(|of| DeviceNumber::of_node(of.rdev()) == self.disk.number)
    }

    /// Returns true for a node of the device, but not for a link.
    fn is_node(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|of| !of.is_symlink()) && self.leads_here(path)
    }
}
