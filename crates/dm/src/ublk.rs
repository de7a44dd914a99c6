//! ublk disks that the tables' servers serve.
//!
//! ```text
//!   create   a folder, and a number that no disk has; the system shows nothing yet
//!   show     the table's server makes the disk, with the table's size and block size; named
//!            /dev/mapper/NAME; the device has the disk's number from then on
//!   follow   the next table's server has taken the disk over, and has set its size
//!   detach   the server stops the disk, unless a program has it open
//! ```
//!
//! The kernel gives a disk its number as it starts, and never changes its block size later, so that
//! a disk for a device without a table would soon be another one.

mod left;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::host::{Names, Node, Nodes, Served, UblkDisk};
use crate::left::{FILE, LeftDisk};
use crate::loops::{FIRST, FreeNumber, MOST};
use crate::names::{DeviceFolder, KernelDisk, NodeNames};
use crate::{DeviceNumber, Error, Family, LoopNodes, LoopStep, LoopWork, LoopWorker, Result, Room};

/// The major number of ublk disks (`BLOCK_EXT_MAJOR`). The kernel gives out its minor numbers from
/// 0 up, and those that devices without a table have lie at the end.
const MAJOR: u32 = 259;
const LAST_MINOR: u32 = (1 << 20) - 1;
/// The beginning of a disk's name.
const PREFIX: &str = "ublkb";
/// The file with the number of the device's disk.
const DISK: &str = "disk";
/// The file with the device number of that disk.
const NUMBER: &str = "number";
/// How many numbers are tried for a disk: other programs make such disks, too.
const TRIES: u32 = 8;

/// Stops the disks of servers that have ended.
pub trait UblkDriver: Send + Sync {
    /// Computes a disk's identity from a name.
    fn identity(&self, name: &[u8]) -> u64;

    /// Returns true when there is a disk of this number and identity.
    fn has(&self, id: u32, identity: u64) -> bool;

    /// Stops and deletes the disk of this number and identity, if there is one: its users get
    /// errors.
    ///
    /// # Errors
    /// `EBUSY` while a process serves it; the system's errors.
    fn stop(&self, id: u32, identity: u64) -> Result<()>;
}

/// Creates ublk disks. A device whose number its maker chooses is a loop device.
pub struct UblkNodes {
    loops: LoopNodes,
    folder: PathBuf,
    means: UblkMeans,
    makes_loops: bool,
}

/// The means that all disks share.
#[derive(Clone)]
struct UblkMeans {
    mapper: PathBuf,
    family: Family,
    worker: Arc<dyn LoopWorker>,
    driver: Arc<dyn UblkDriver>,
    free: FreeNumber,
}

impl UblkNodes {
    /// Disks whose folders are in `folder`, and whose names are shown in `mapper`.
    pub fn new(
        folder: impl Into<PathBuf>,
        mapper: impl Into<PathBuf>,
        family: Family,
        worker: Arc<dyn LoopWorker>,
        driver: Arc<dyn UblkDriver>,
    ) -> Self {
        let (folder, mapper) = (folder.into(), mapper.into());
        let loops = LoopNodes::new(&folder, &mapper, family.clone(), worker.clone());
        let means = UblkMeans { mapper, family, worker, driver, free: FreeNumber::from(FIRST) };
        Self { loops, folder, means, makes_loops: false }
    }

    /// Makes loop devices for new devices.
    #[must_use]
    pub fn making_loops(self, makes_loops: bool) -> Self {
        Self { makes_loops, ..self }
    }

    fn node(&self, number: u32) -> Result<UblkNode> {
        let path = self.folder.join(format!("{PREFIX}{number}"));
        let of = fs::symlink_metadata(&path).map_err(|e| Error::system(path.display(), &e))?;
        // Another back end may have a folder of the same path, in a file system of its own.
        let name = [path.as_os_str().as_bytes(), format!("\0{} {}", of.dev(), of.ino()).as_bytes()].concat();
        Ok(UblkNode {
            number,
            identity: self.means.driver.identity(&name),
            folder: DeviceFolder::new(path, format!("device {number}")),
            means: self.means.clone(),
            shown: Mutex::default(),
            is_gone: AtomicBool::new(false),
        })
    }
}

impl Nodes for UblkNodes {
    fn lies_on(&self, device: DeviceNumber, names: Names<'_>, on: &BTreeSet<DeviceNumber>) {
        self.loops.lies_on(device, names, on);
    }

    fn is_free(&self, name: &str) -> Result<()> {
        self.loops.is_free(name)
    }

    fn create(&self, minor: Option<u32>) -> Result<Box<dyn Node>> {
        if minor.is_some() || self.makes_loops {
            return self.loops.create(minor);
        }
        let first = self.means.free.get();
        for number in (first..MOST).chain(FIRST..first) {
            let path = self.folder.join(format!("{PREFIX}{number}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    self.means.free.taken(number);
                    return Ok(Box::new(self.node(number)?));
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::system(path.display(), &e)),
            }
        }
        Err(Error::new(Errno::BUSY, format!("{}: it has a device of each number", self.folder.display())))
    }
}

/// A disk that shows a table.
#[derive(Clone)]
struct ShownDisk {
    id: u32,
    disk: KernelDisk,
    /// The logical block size.
    block: u32,
}

struct UblkNode {
    /// The number in the folder's name, which the disk has, too, where it is free.
    number: u32,
    identity: u64,
    folder: DeviceFolder,
    means: UblkMeans,
    shown: Mutex<Option<ShownDisk>>,
    is_gone: AtomicBool,
}

impl Node for UblkNode {
    fn number(&self) -> DeviceNumber {
        let none = || DeviceNumber::new(MAJOR, LAST_MINOR.saturating_sub(self.number));
        self.shown().as_ref().map_or_else(none, |shown| shown.disk.number)
    }

    fn show(&self, table: &dyn Served, room: Room, read_only: bool) -> Result<()> {
        let file = self.folder.path().join(FILE);
        let mut tried = 0;
        let id = loop {
            let id = self.number + tried * MOST;
            self.keep_id(Some(id))?;
            let disk = UblkDisk { file: file.clone(), id, identity: self.identity, read_only };
            match table.show_disk(&disk) {
                Ok(()) => break id,
                Err(e) if e.errno() == Errno::BUSY && tried < TRIES => {
                    log::info!("disk {PREFIX}{id} is left out: {e}");
                    self.drop_link(id);
                    tried += 1;
                }
                Err(e) => {
                    self.forget_disk(id);
                    return Err(e);
                }
            }
        };
        let kept = ShownDisk::of(id).and_then(|shown| {
            self.folder.keep(NUMBER, Some(shown.disk.number.to_string().into_bytes())).map(|()| shown)
        });
        let shown = kept.or_else(|e| table.hide_disk().and(Err(e)))?;
        *self.shown() = Some(ShownDisk { block: room.block, ..shown });
        Ok(())
    }

    fn accepts(&self, room: Room) -> Result<()> {
        match &*self.shown() {
            Some(shown) if shown.block != room.block => {
                let why = format!(
                    "its blocks have {} bytes, and those of a table for it cannot have {}: remove the device, and create it anew",
                    shown.block, room.block
                );
                Err(Error::new(Errno::INVAL, why))
            }
            _ => Ok(()),
        }
    }

    fn follow(&self, room: Room) -> Result<()> {
        let Some(ShownDisk { disk, .. }) = self.shown().clone() else { return Ok(()) };
        let block = u64::from(room.block.max(512)) / 512;
        let (is, wanted) = (sectors(&disk.name)?, room.sectors / block * block);
        if is == wanted {
            return Ok(());
        }
        let why = format!("{} has {is} sectors, and the table {wanted}", disk.node().display());
        Err(Error::new(Errno::IO, why))
    }

    fn detach(&self, table: &dyn Served) -> Result<()> {
        // The server looks for programs that have claimed it.
        self.is_unused(true)?;
        // Once the disk is gone another one may have its number: no name leads there by then.
        let (name, uuid) = self.folder.remembered();
        let names = Names { name: &name, uuid: &uuid };
        self.unname(names);
        if let Err(e) = table.hide_disk() {
            if let Err(worse) = self.name(names, None) {
                log::error!("{worse}");
            }
            return Err(e);
        }
        let shown = self.shown().take();
        shown.into_iter().for_each(|shown| self.forget_disk(shown.id));
        Ok(())
    }

    fn opens(&self, is_below: bool) -> u32 {
        let Some(ShownDisk { disk, .. }) = self.shown().clone() else { return 0 };
        // The disk of a server that has ended is gone, and cannot be opened.
        let knows_claims = is_below || !disk.node().exists();
        self.means.worker.opens(LoopWork::of_disk(&disk, LoopStep::Look), &self.means.family, knows_claims)
    }

    fn sync(&self) -> Result<()> {
        let Some(ShownDisk { disk, .. }) = self.shown().clone() else { return Ok(()) };
        self.means.worker.sync(LoopWork::of_disk(&disk, LoopStep::Sync))
    }

    fn remember(&self, names: Names<'_>) -> Result<()> {
        self.folder.remember(names)
    }

    fn keep_deferred(&self, deferred: bool) -> Result<()> {
        self.folder.keep_deferred(deferred)
    }

    fn keep_loaded(&self, loaded: bool) -> Result<()> {
        self.folder.keep_loaded(loaded)
    }

    fn name(&self, names: Names<'_>, before: Option<Names<'_>>) -> Result<()> {
        self.names().map_or(Ok(()), |shown| shown.name(names, before))
    }

    fn give_back(&self) {
        if self.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        let id = self.kept_id();
        let stopped = id.map_or(Ok(()), |id| self.means.driver.stop(id, self.identity));
        if let Err(e) = stopped {
            // The next back end finds the folder, and tries it again.
            log::error!("{}: {e}", self.folder.path().display());
            return;
        }
        id.into_iter().for_each(|id| self.drop_link(id));
        match fs::remove_dir_all(self.folder.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                log::warn!("{}: cannot be removed: {e}", self.folder.path().display());
            }
            _ => self.means.free.given_back(self.number),
        }
    }

    fn unname(&self, names: Names<'_>) {
        self.names().into_iter().for_each(|shown| shown.unname(names));
    }
}

impl LeftDisk for UblkNode {
    fn folder(&self) -> &DeviceFolder {
        &self.folder
    }

    fn names(&self) -> Option<NodeNames<'_>> {
        let shown = self.shown().as_ref().map(|shown| shown.disk.clone());
        let disk = shown.or_else(|| self.kept_disk())?;
        Some(NodeNames { folder: &self.folder, mapper: &self.means.mapper, disk })
    }

    fn lies(&self, room: Room, _read_only: bool) {
        if let Some(shown) = &mut *self.shown() {
            shown.block = room.block;
        }
    }

    fn release(&self) -> Result<()> {
        self.is_unused(false)
    }

    fn is_gone(&self) -> bool {
        self.shown().as_ref().is_none_or(|shown| !shown.disk.node().exists())
    }

    fn ublk(&self) -> Option<(u32, u64)> {
        self.shown().as_ref().map(|shown| (shown.id, self.identity))
    }
}

impl UblkNode {
    fn shown(&self) -> MutexGuard<'_, Option<ShownDisk>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails with `EBUSY` while a program has the disk open; with `or_claimed`, it may be claimed.
    fn is_unused(&self, or_claimed: bool) -> Result<()> {
        match self.opens(or_claimed) {
            0 => Ok(()),
            _ => Err(Error::new(
                Errno::BUSY,
                format!("{}: a program has it open", self.folder.path().display()),
            )),
        }
    }

    /// Records the disk for the next back end, and for udev, before it is made.
    fn keep_id(&self, id: Option<u32>) -> Result<()> {
        self.folder.keep(DISK, id.map(|id| id.to_string().into_bytes()))?;
        let Some(id) = id.filter(|id| *id != self.number) else { return Ok(()) };
        let path = self.folder.path().with_file_name(format!("{PREFIX}{id}"));
        match symlink(format!("{PREFIX}{}", self.number), &path) {
            // As a back end that was killed leaves it.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(|e| Error::system(path.display(), &e)),
        }
    }

    fn kept_id(&self) -> Option<u32> {
        fs::read_to_string(self.folder.path().join(DISK)).ok()?.parse().ok()
    }

    /// Returns the disk that the device had last.
    fn kept_disk(&self) -> Option<KernelDisk> {
        let number = fs::read_to_string(self.folder.path().join(NUMBER)).ok()?.parse().ok()?;
        Some(KernelDisk { name: format!("{PREFIX}{}", self.kept_id()?), number })
    }

    fn drop_link(&self, id: u32) {
        if id != self.number {
            let _ = fs::remove_file(self.folder.path().with_file_name(format!("{PREFIX}{id}")));
        }
    }

    /// Forgets a disk that there is no more.
    fn forget_disk(&self, id: u32) {
        // A server that was killed as it made the disk has left it.
        let forgotten = self.means.driver.stop(id, self.identity).and_then(|()| self.keep_id(None));
        match forgotten {
            Ok(()) => self.drop_link(id),
            Err(e) => log::error!("{}: {e}", self.folder.path().display()),
        }
    }
}

impl Drop for UblkNode {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl ShownDisk {
    /// Looks at a disk that there is.
    fn of(id: u32) -> Result<Self> {
        let name = format!("{PREFIX}{id}");
        let path = format!("/sys/block/{name}/dev");
        let text = fs::read_to_string(&path).map_err(|e| Error::system(&path, &e))?;
        let number = text.trim().parse();
        let number = number.map_err(|_| Error::new(Errno::IO, format!("{path} is no device's number")))?;
        Ok(Self { id, disk: KernelDisk { name, number }, block: 512 })
    }
}

/// Returns a disk's size.
fn sectors(name: &str) -> Result<u64> {
    let path = format!("/sys/block/{name}/size");
    let text = fs::read_to_string(&path).map_err(|e| Error::system(&path, &e))?;
    text.trim().parse().map_err(|_| Error::new(Errno::IO, format!("{path} is no number")))
}
