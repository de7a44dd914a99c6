//! Loop devices over the files of tables.
//!
//! ```text
//!   create   a free number from 1000 up; bound to an empty file, so that `losetup -f` skips it
//!   attach   bound to the table's file, and named /dev/mapper/NAME
//!   detach   unbound, if no other program has it open; removed when it is dropped
//! ```

mod free;
mod left;
mod requests;
mod work;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::io::Errno;

use self::free::FreeNumber;
pub use self::left::LeftNode;
use self::requests::{CTL_ADD, ioctl};
pub use self::work::{Attachment, LoopStep, LoopWork, LoopWorker};
use crate::holders::{self, Holders};
use crate::host::{Names, Node, Nodes};
use crate::links::{Links, properties};
use crate::node_name::free_name;
use crate::opens::{loops_over, programs};
use crate::{DeviceNumber, Error, Family, Result, Room};

/// The file with a device's name and UUID, a zero byte between them.
const NAMES: &str = "names";
/// The file with the same for udev's rule (`dm install`).
const UDEV: &str = "udev";
/// The failure to write these files.
const UNKEPT: &str = "its names cannot be kept";

/// Numbers that this module takes: `losetup` takes them from 0 up.
pub(crate) const FIRST: u32 = 1000;
const MOST: u32 = 1 << 16;
/// The folder of udev's names for disks.
const BY_ID: &str = "/dev/disk/by-id";
/// The name of a device's file in its folder.
const FILE: &str = "volume";
/// The file of a device that is removed after its last close.
const DEFERRED: &str = "deferred";
/// The file of a device with an inactive table.
const LOADED: &str = "loaded";
/// The file with the turn of the table server that has the device's file.
pub const OWNER_FILE: &str = "owner";
/// The number of attempts for one device.
const TRIES: u32 = 16;

/// Creates loop devices.
pub struct LoopNodes {
    folder: PathBuf,
    mapper: PathBuf,
    family: Family,
    worker: Arc<dyn LoopWorker>,
    free: FreeNumber,
    holders: Holders,
}

impl LoopNodes {
    /// Loop devices whose files are in `folder`, and whose names are shown in `mapper`.
    pub fn new(
        folder: impl Into<PathBuf>,
        mapper: impl Into<PathBuf>,
        family: Family,
        worker: Arc<dyn LoopWorker>,
    ) -> Self {
        let free = FreeNumber::from(FIRST);
        let folder: PathBuf = folder.into();
        let holders = Holders::new(folder.join(holders::FOLDER));
        Self { folder, mapper: mapper.into(), family, worker, free, holders }
    }

    fn add(wanted: Option<u32>, from: u32) -> Result<u32> {
        let control =
            control().map_err(|e| Error::system(format!("{CONTROL}: there are no loop devices here"), &e))?;
        let numbers = match wanted {
            Some(number) => number..number.saturating_add(1),
            None => from..MOST,
        };
        for number in numbers {
            match ioctl(&control, CTL_ADD, u64::from(number)) {
                Ok(()) => return Ok(number),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::system(format!("loop device {number} cannot be made"), &e)),
            }
        }
        Err(Error::new(Errno::BUSY, "there is a loop device of that number, or of each"))
    }

    fn node(&self, number: u32, dev: DeviceNumber) -> LoopNode {
        LoopNode {
            number,
            dev,
            folder: self.folder.join(number.to_string()),
            mapper: self.mapper.clone(),
            family: self.family.clone(),
            worker: self.worker.clone(),
            free: self.free.clone(),
            attached: Mutex::default(),
            is_gone: AtomicBool::new(false),
        }
    }
}

impl Nodes for LoopNodes {
    fn lies_on(&self, device: DeviceNumber, names: Names<'_>, on: &BTreeSet<DeviceNumber>) {
        self.holders.show(device, names, on);
    }

    fn is_free(&self, name: &str) -> Result<()> {
        free_name(&self.mapper.join(name))
    }

    fn create(&self, minor: Option<u32>) -> Result<Box<dyn Node>> {
        let mut from = self.free.get();
        let mut tries = 0..TRIES;
        loop {
            let number = match Self::add(minor, from) {
                // Numbers that other programs have released.
                Err(e) if e.errno() == Errno::BUSY && minor.is_none() && from > FIRST => {
                    from = FIRST;
                    continue;
                }
                added => added?,
            };
            if minor.is_none() {
                self.free.taken(number);
            }
            let node = self.node(number, device_of(number)?);
            match node.take(LoopStep::Prepare) {
                Ok(_) => return Ok(Box::new(node)),
                // Another program was faster, or a table's server of a back end that is gone serves
                // on.
                Err(e) if minor.is_none() && tries.next().is_some() => {
                    log::warn!("loop device {number} is left out: {e}");
                    from = number.saturating_add(1);
                }
                Err(e) => return Err(e),
            }
        }
    }
}

pub(crate) struct LoopNode {
    number: u32,
    dev: DeviceNumber,
    folder: PathBuf,
    mapper: PathBuf,
    family: Family,
    worker: Arc<dyn LoopWorker>,
    free: FreeNumber,
    /// How it lies over its table's file.
    attached: Mutex<Option<Attachment>>,
    is_gone: AtomicBool,
}

impl Node for LoopNode {
    fn number(&self) -> DeviceNumber {
        self.dev
    }

    fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    fn attach(&self, room: Room, read_only: bool) -> Result<()> {
        let how = Attachment { room, read_only };
        self.take(LoopStep::Attach(how))?;
        self.lies(Some(how));
        Ok(())
    }

    fn follow(&self, room: Room) -> Result<()> {
        self.take(LoopStep::Follow(room))?;
        let how = self.attachment().map(|how| Attachment { room, ..how });
        self.lies(how);
        Ok(())
    }

    fn detach(&self) -> Result<()> {
        self.take(LoopStep::Detach(self.attachment()))?;
        self.lies(None);
        Ok(())
    }

    fn opens(&self, is_below: bool) -> u32 {
        let loops = loops_over(self.dev);
        let opens = programs(self.dev, &self.family).saturating_add(loops);
        if opens > 0 || is_below {
            return opens;
        }
        // A device that cannot be opened in time is in use: a process hangs with it.
        self.take(LoopStep::Look)
            .unwrap_or_else(|e| {
                log::warn!("{e}");
                true
            })
            .into()
    }

    fn sync(&self) -> Result<()> {
        match self.take(LoopStep::Sync) {
            Err(e) if !e.is_of_hanging() => log::warn!("{e}"),
            synced => drop(synced?),
        }
        Ok(())
    }

    fn remember(&self, Names { name, uuid }: Names<'_>) -> Result<()> {
        self.prepare_names(name, uuid).and_then(|()| self.keep_prepared()).map_err(self.failed(UNKEPT))
    }

    fn keep_deferred(&self, deferred: bool) -> Result<()> {
        self.keep(DEFERRED, deferred.then(Vec::new))
    }

    fn keep_loaded(&self, loaded: bool) -> Result<()> {
        // When the turn is another one, another table server has had the file since.
        let turn = || fs::read(self.folder.join(OWNER_FILE)).unwrap_or_default();
        self.keep(LOADED, loaded.then(turn))
    }

    fn name(&self, Names { name, uuid }: Names<'_>, before: Option<Names<'_>>) -> Result<()> {
        let failed = self.failed(UNKEPT);
        // A full file system refuses new names before anything changes.
        if before.is_some() {
            self.prepare_names(name, uuid).map_err(&failed)?;
        }
        let is_made = self.make_node(name).inspect_err(|_| self.drop_prepared())?;
        if before.is_some()
            && let Err(e) = self.keep_prepared()
        {
            self.drop_prepared();
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

    fn give_back(&self) {
        if self.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Err(e) = self.take(LoopStep::GiveBack) {
            log::warn!("{e}");
        }
        self.free.given_back(self.number);
    }

    fn unname(&self, Names { name, uuid }: Names<'_>) {
        self.links().remove(name, uuid);
        self.take_off(name);
    }
}

impl LoopNode {
    /// Takes a step that may hang.
    fn take(&self, step: LoopStep) -> Result<bool> {
        let waits = !matches!(step, LoopStep::Look | LoopStep::Sync | LoopStep::Follow(_));
        let (folder, family) = (self.folder.clone(), if waits { self.family.pids() } else { Vec::new() });
        self.worker.take(LoopWork { number: self.number, dev: self.dev, folder, family, step })
    }

    /// Writes a file of the folder, or removes it.
    fn keep(&self, file: &str, contents: Option<Vec<u8>>) -> Result<()> {
        let path = self.folder.join(file);
        let kept = match contents {
            Some(contents) => fs::write(&path, contents),
            None => fs::remove_file(&path).or_else(|e| match e.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(e),
            }),
        };
        kept.map_err(self.failed("its state cannot be kept"))
    }

    pub(crate) fn lies(&self, how: Option<Attachment>) {
        *self.attached.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    fn attachment(&self) -> Option<Attachment> {
        *self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, what: &str) -> impl Fn(io::Error) -> Error {
        let place = format!("loop device {}: {what}", self.number);
        move |e| Error::system(&place, &e)
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
        [UDEV, NAMES].iter().try_for_each(|file| fs::rename(self.prepared(file), self.folder.join(file)))
    }

    fn drop_prepared(&self) {
        for file in [UDEV, NAMES] {
            let _ = fs::remove_file(self.prepared(file));
        }
    }

    fn prepared(&self, file: &str) -> PathBuf {
        self.folder.join(format!("{file}.new"))
    }

    /// Makes the node of this name. Returns false when it is there already.
    ///
    /// The name is a hard link to `/dev/loopN` where both are in one file system: udev watches and
    /// locks that inode rather than the device, and notices what is written by the name only so.
    fn make_node(&self, name: &str) -> Result<bool> {
        let path = self.mapper.join(name);
        if self.is_node(&path) {
            return Ok(false);
        }
        let own = PathBuf::from(format!("/dev/loop{}", self.number));
        let make = || {
            free_name(&path)?;
            if self.is_node(&own) && fs::hard_link(&own, &path).is_ok() {
                return Ok(());
            }
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
            let made = mknodat(CWD, &path, FileType::BlockDevice, mode, self.dev.for_node());
            made.map_err(|e| Error::system(path.display(), &e.into()))
        };
        let mut made = make();
        if made.is_err() && self.leads_here(&path) {
            // A link of udev's, which was faster: mounts would be shown as those of the loop device.
            // udev leaves a node alone.
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
        let path = format!("/sys/block/loop{}/uevent", self.number);
        if let Err(e) = fs::write(&path, "change") {
            log::debug!("{path}: {e}");
        }
    }

    /// Returns the names outside of /dev/mapper.
    fn links(&self) -> Links<'_> {
        Links { folder: Path::new(BY_ID), to: format!("../../loop{}", self.number).into() }
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

    /// Returns true for a node of the device, or a link to one.
    fn leads_here(&self, path: &Path) -> bool {
        let of = fs::metadata(path).ok().filter(|of| of.file_type().is_block_device());
        of.is_some_and(|of| DeviceNumber::of_node(of.rdev()) == self.dev)
    }
}

impl Drop for LoopNode {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// The number of loop device `number`'s node: a multiple of it where loop devices have partitions.
fn device_of(number: u32) -> Result<DeviceNumber> {
    let path = format!("/sys/block/loop{number}/dev");
    let text = fs::read_to_string(&path).map_err(|e| Error::system(&path, &e))?;
    text.trim().parse().map_err(|_| Error::new(Errno::IO, format!("{path} is no device's number")))
}

const CONTROL: &str = "/dev/loop-control";

fn control() -> io::Result<File> {
    File::options().read(true).write(true).open(CONTROL)
}
