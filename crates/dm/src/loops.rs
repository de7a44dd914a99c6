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
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

pub(crate) use self::free::FreeNumber;
use self::requests::{CTL_ADD, ioctl};
pub use self::work::{Attachment, LoopStep, LoopWork, LoopWorker};
use crate::holders::{self, Holders};
use crate::host::{Names, Node, Nodes, Served};
use crate::left::{FILE, LeftDisk};
use crate::names::{DeviceFolder, KernelDisk, NodeNames};
use crate::node_name::free_name;
use crate::{DeviceNumber, Error, Family, Result, Room};

/// Numbers that this module takes: `losetup` takes them from 0 up.
pub(crate) const FIRST: u32 = 1000;
pub(crate) const MOST: u32 = 1 << 16;
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
            folder: DeviceFolder::new(self.folder.join(number.to_string()), format!("loop device {number}")),
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
    folder: DeviceFolder,
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

    fn show(&self, table: &dyn Served, room: Room, read_only: bool) -> Result<()> {
        table.show(&self.folder.path().join(FILE))?;
        let how = Attachment { room, read_only };
        self.take(LoopStep::Attach(how))?;
        self.attach(Some(how));
        Ok(())
    }

    fn follow(&self, room: Room) -> Result<()> {
        self.take(LoopStep::Follow(room))?;
        let how = self.attachment().map(|how| Attachment { room, ..how });
        self.attach(how);
        Ok(())
    }

    fn detach(&self, _table: &dyn Served) -> Result<()> {
        self.release()
    }

    fn opens(&self, is_below: bool) -> u32 {
        self.worker.opens(self.work(LoopStep::Look), &self.family, is_below)
    }

    fn sync(&self) -> Result<()> {
        self.worker.sync(self.work(LoopStep::Sync))
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
        self.shown().name(names, before)
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

    fn unname(&self, names: Names<'_>) {
        self.shown().unname(names);
    }
}

impl LeftDisk for LoopNode {
    fn folder(&self) -> &DeviceFolder {
        &self.folder
    }

    fn names(&self) -> Option<NodeNames<'_>> {
        Some(self.shown())
    }

    fn lies(&self, room: Room, read_only: bool) {
        self.attach(Some(Attachment { room, read_only }));
    }

    fn release(&self) -> Result<()> {
        self.take(LoopStep::Detach(self.attachment()))?;
        self.attach(None);
        Ok(())
    }
}

impl LoopNode {
    /// Takes a step that may hang.
    fn take(&self, step: LoopStep) -> Result<bool> {
        self.worker.take(self.work(step))
    }

    fn work(&self, step: LoopStep) -> LoopWork {
        let waits = !matches!(step, LoopStep::Look | LoopStep::Sync | LoopStep::Follow(_));
        let family = if waits { self.family.pids() } else { Vec::new() };
        let folder = self.folder.path().to_owned();
        LoopWork { number: self.number, dev: self.dev, folder, family, step, disk: None }
    }

    fn attach(&self, how: Option<Attachment>) {
        *self.attached.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }

    fn attachment(&self) -> Option<Attachment> {
        *self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> NodeNames<'_> {
        let disk = KernelDisk { name: format!("loop{}", self.number), number: self.dev };
        NodeNames { folder: &self.folder, mapper: &self.mapper, disk }
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
