//! Loop devices over the files that tables show.
//!
//! ```text
//!   create   a number from 1000 up that no loop device has; bound to an empty file, so that `losetup -f` never finds it free
//!   attach   bound to the table's file, and named /dev/mapper/NAME
//!   detach   unbound, where nobody else has it open; and gone when it is dropped
//! ```

mod free;
mod left;
mod requests;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat, statfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use self::free::FreeNumber;
pub use self::left::LeftNode;
pub use self::requests::backing_file;
use self::requests::{
    CLR_FD, CTL_ADD, CTL_REMOVE, DIRECT_IO, LoopConfig, LoopInfo, NAME, READ_ONLY, SET_BLOCK_SIZE,
    SET_CAPACITY, configure, ioctl, set_status,
};
use crate::holders::{self, Holders};
use crate::host::{Names, Node, Nodes};
use crate::links::Links;
use crate::node_name::free_name;
use crate::opens::opens;
use crate::{DeviceNumber, Error, Family, Result, Room};

/// The file with a device's name and UUID, a zero byte between them.
const NAMES: &str = "names";

/// Numbers that this module takes: `losetup` takes them from 0 up.
const FIRST: u32 = 1000;
const MOST: u32 = 1 << 16;
/// Where udev shows disks by what they are.
const BY_ID: &str = "/dev/disk/by-id";
/// The name of a device's file in its folder.
const FILE: &str = "volume";
/// Numbers that are tried for one device.
const TRIES: u32 = 16;
/// How long a device may take to be unbound after its last user has closed it.
const UNBINDING: Duration = Duration::from_secs(5);
/// How long others, like udev, may look at a device that is to be unbound.
const LOOKING: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(2);

/// Makes loop devices.
pub struct LoopNodes {
    folder: PathBuf,
    mapper: PathBuf,
    family: Family,
    free: FreeNumber,
    holders: Holders,
}

impl LoopNodes {
    /// Loop devices whose files are in `folder`, and whose names are shown in `mapper`.
    pub fn new(folder: impl Into<PathBuf>, mapper: impl Into<PathBuf>, family: Family) -> Self {
        let free = FreeNumber::from(FIRST);
        let folder: PathBuf = folder.into();
        let holders = Holders::new(folder.join(holders::FOLDER));
        Self { folder, mapper: mapper.into(), family, free, holders }
    }

    fn add(wanted: Option<u32>, from: u32) -> Result<u32> {
        let control = control()?;
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
                // Numbers that other programs have given back.
                Err(e) if e.errno() == Errno::BUSY && minor.is_none() && from > FIRST => {
                    from = FIRST;
                    continue;
                }
                added => added?,
            };
            if minor.is_none() {
                self.free.taken(number);
            }
            let folder = self.folder.join(number.to_string());
            let (mapper, family) = (self.mapper.clone(), self.family.clone());
            let free = self.free.clone();
            let (dev, is_gone) = (device_of(number)?, AtomicBool::new(false));
            let node = LoopNode { number, dev, folder, mapper, family, free, is_gone };
            match node.prepare() {
                Ok(()) => return Ok(Box::new(node)),
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

/// The number of loop device `number`'s node: a multiple of it where loop devices have partitions.
fn device_of(number: u32) -> Result<DeviceNumber> {
    let path = format!("/sys/block/loop{number}/dev");
    let text = fs::read_to_string(&path).map_err(|e| Error::system(&path, &e))?;
    text.trim().parse().map_err(|_| Error::new(Errno::IO, format!("{path} is no device's number")))
}

/// The file that a loop device is bound to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Binding {
    Nothing,
    /// The device's own file.
    Own,
    /// A file of another program.
    Other,
}

/// The fate of a device that is to be unbound while others have it open.
#[derive(Clone, Copy)]
enum WhileOpen {
    StaysBound,
    /// The kernel unbinds it.
    GoesWhenClosed,
}

pub(crate) struct LoopNode {
    number: u32,
    dev: DeviceNumber,
    folder: PathBuf,
    mapper: PathBuf,
    family: Family,
    free: FreeNumber,
    is_gone: AtomicBool,
}

impl LoopNode {
    /// Makes the file, and binds the device to it while it is empty.
    fn prepare(&self) -> Result<()> {
        let failed = |e: io::Error| Error::system(self.folder.display(), &e);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        self.clear();
        let of_folder = fs::symlink_metadata(&self.folder).map_err(failed)?;
        if fs::symlink_metadata(self.file()).is_ok_and(|of| of.dev() != of_folder.dev()) {
            let what = format!("{} is another back end's table", self.file().display());
            return Err(Error::new(Errno::BUSY, what));
        }
        let mut how = File::options();
        how.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = how.open(self.file()).map_err(failed)?;
        self.node_exists().map_err(failed)?;
        self.bind(&file, 512, READ_ONLY).map_err(failed)
    }

    /// Takes away the mount of a table's server that was killed. The folder is this process's
    /// alone, so the path leads nowhere else.
    fn clear(&self) {
        if statfs(self.file()).err() != Some(Errno::NOTCONN) {
            return;
        }
        match unmount(self.file(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => log::warn!("{}: its server was killed; it was unmounted", self.file().display()),
            Err(e) => log::warn!("{}: cannot be unmounted: {e}", self.file().display()),
        }
    }

    /// The device's node, which devtmpfs makes; somebody has to where there is none.
    fn node_exists(&self) -> io::Result<()> {
        let until = Instant::now() + LOOKING;
        while !self.node().exists() && Instant::now() < until && is_devtmpfs() {
            thread::sleep(AGAIN);
        }
        if !self.node().exists() {
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, self.node(), FileType::BlockDevice, mode, self.dev.for_node())?;
        }
        Ok(())
    }

    fn node(&self) -> PathBuf {
        format!("/dev/loop{}", self.number).into()
    }

    fn open(&self) -> io::Result<File> {
        // A loop device's users may write: the flag of the binding says whether that reaches the file.
        File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(self.node())
    }

    fn bind(&self, file: &File, block: u32, flags: u32) -> io::Result<()> {
        let node = self.open()?;
        let fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
        let info = LoopInfo::new(flags, self.file_name());
        let mut config = LoopConfig { fd, block, info, reserved: [0; 8] };
        match configure(&node, &config) {
            // A file system that knows no direct I/O.
            Err(e) if flags & DIRECT_IO != 0 && e.kind() == io::ErrorKind::InvalidInput => {
                config.info.flags &= !DIRECT_IO;
                configure(&node, &config)
            }
            bound => bound,
        }
    }

    /// The file name that `losetup` shows.
    fn file_name(&self) -> [u8; NAME] {
        let mut name = [0; NAME];
        let path = self.file();
        let bytes = path.as_os_str().as_encoded_bytes();
        let n = bytes.len().min(NAME - 1);
        name[..n].copy_from_slice(&bytes[..n]);
        name
    }

    /// The file that the device is bound to now. An open descriptor of the node keeps that from
    /// changing: the kernel unbinds a device when its last user closes it.
    fn binding(&self) -> io::Result<Binding> {
        let path = format!("/sys/block/loop{}/loop/backing_file", self.number);
        let found = match fs::read(path) {
            // An attribute that was opened before the device was unbound reads as nothing, or
            // fails.
            Ok(found) if found.is_empty() => return Ok(Binding::Nothing),
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Binding::Nothing),
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => return Ok(Binding::Nothing),
            Err(e) => return Err(e),
        };
        let own = fs::canonicalize(&self.folder)?.join(FILE);
        let is_own = found.strip_suffix(b"\n") == Some(own.as_os_str().as_encoded_bytes());
        Ok(if is_own { Binding::Own } else { Binding::Other })
    }

    fn is_bound(&self) -> io::Result<bool> {
        Ok(self.binding()? == Binding::Own)
    }

    /// Unbinds the device. While others have it open it stays bound: for good, or until they close
    /// it. Another program's file stays bound: that program took the device's number when the
    /// device was free for a moment.
    fn unbind(&self, while_open: WhileOpen) -> io::Result<()> {
        let until = Instant::now() + LOOKING;
        loop {
            let node = self.open()?;
            match self.binding()? {
                Binding::Own => {}
                Binding::Nothing => return Ok(()),
                Binding::Other => {
                    log::warn!("{} is bound to another program's file, and stays", self.node().display());
                    return Ok(());
                }
            }
            match ioctl(&node, CLR_FD, 0) {
                Err(e) if Errno::from_io_error(&e) == Some(Errno::NXIO) => return Ok(()),
                cleared => cleared?,
            }
            drop(node);
            // The last opener unbinds the device by closing it. /proc does not show each opener.
            while self.is_bound()?
                && opens(self.dev, &self.node(), &self.family, false) == 0
                && Instant::now() < until + UNBINDING
            {
                thread::sleep(AGAIN);
            }
            if !self.is_bound()? {
                return Ok(());
            }
            if Instant::now() < until {
                thread::sleep(AGAIN);
                continue;
            }
            return match while_open {
                WhileOpen::StaysBound => self.stay_bound(),
                WhileOpen::GoesWhenClosed => Err(Errno::BUSY.into()),
            };
        }
    }

    /// Fails with `EBUSY`: others keep the device, and the kernel is not to unbind it when they
    /// close it.
    fn stay_bound(&self) -> io::Result<()> {
        let node = self.open()?;
        if !self.is_bound()? {
            return Ok(());
        }
        let info = LoopInfo::new(0, self.file_name());
        match set_status(&node, &info) {
            Err(e) if Errno::from_io_error(&e) == Some(Errno::NXIO) => Ok(()),
            Err(e) => {
                log::error!("{}: the kernel unbinds it when it is closed: {e}", self.node().display());
                Err(Errno::BUSY.into())
            }
            Ok(()) => Err(Errno::BUSY.into()),
        }
    }

    fn failed(&self, what: &str) -> impl Fn(io::Error) -> Error {
        let place = format!("{}: {what}", self.node().display());
        move |e| Error::system(&place, &e)
    }
}

impl Node for LoopNode {
    fn number(&self) -> DeviceNumber {
        self.dev
    }

    fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    fn attach(&self, room: Room, read_only: bool) -> Result<()> {
        let open = |writes: bool| {
            let file = File::options().read(true).write(writes).open(self.file())?;
            Ok((file, !writes))
        };
        let opened = match open(!read_only) {
            // The table serves no writes, whatever it was loaded for: dm-integrity's recovery.
            Err(e) if Errno::from_io_error(&e) == Some(Errno::ROFS) => open(false),
            opened => opened,
        };
        let (file, read_only) = opened.map_err(self.failed("its file cannot be opened"))?;
        // Between these two others may take the device: whatever takes time is done before.
        self.unbind(WhileOpen::StaysBound).map_err(self.failed("cannot be made free"))?;
        let flags = DIRECT_IO | if read_only { READ_ONLY } else { 0 };
        self.bind(&file, room.block.clamp(512, 4096), flags).map_err(self.failed("cannot be bound"))
    }

    fn follow(&self, room: Room) -> Result<()> {
        let node = self.open().map_err(self.failed("cannot be opened"))?;
        if !self.is_bound().map_err(self.failed("cannot be looked at"))? {
            let what = format!("{} is not bound to its file any more", self.node().display());
            return Err(Error::new(Errno::IO, what));
        }
        // The kernel asks for the file's size again when it is looked at.
        let looked = fs::metadata(self.file()).map(|of| of.len());
        let block = room.block.clamp(512, 4096);
        let path = format!("/sys/block/loop{}/queue/logical_block_size", self.number);
        let now = fs::read_to_string(path).unwrap_or_default();
        // The kernel refuses it, the same one too, while the device is mounted.
        let is_same = now.trim().parse() == Ok(block);
        let block = if is_same { Ok(()) } else { ioctl(&node, SET_BLOCK_SIZE, block.into()) };
        let resized = looked.and_then(|_| ioctl(&node, SET_CAPACITY, 0));
        block.and(resized).map_err(self.failed("cannot get another size"))
    }

    fn detach(&self) -> Result<()> {
        self.unbind(WhileOpen::StaysBound).map_err(self.failed("cannot be unbound"))
    }

    fn opens(&self, is_below: bool) -> u32 {
        opens(self.dev, &self.node(), &self.family, is_below)
    }

    fn sync(&self) {
        if let Err(e) = self.open().and_then(|node| node.sync_data()) {
            log::warn!("{}: what the kernel has of it cannot be written: {e}", self.node().display());
        }
    }

    fn remember(&self, Names { name, uuid }: Names<'_>) -> Result<()> {
        self.write_names(name, uuid).map_err(self.failed("its names cannot be kept"))
    }

    fn name(&self, Names { name, uuid }: Names<'_>, before: Option<Names<'_>>) -> Result<()> {
        // First, so that a server that comes after this one knows what it finds.
        if let Err(e) = self.write_names(name, uuid) {
            log::warn!("{name}: a server that comes after this one will not find it: {e}");
        }
        let path = self.mapper.join(name);
        if !self.leads_here(&path) {
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
            free_name(&path)?;
            let made = mknodat(CWD, &path, FileType::BlockDevice, mode, self.dev.for_node());
            made.map_err(|e| Error::system(path.display(), &e.into()))?;
        }
        self.links().make(name, uuid);
        if let Some(Names { name: old, uuid: old_uuid }) = before {
            self.links()
                .remove(if old == name { "" } else { old }, if old_uuid == uuid { "" } else { old_uuid });
            if old != name {
                self.take_off(old);
            }
        }
        Ok(())
    }

    fn give_back(&self) {
        if self.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        let gone = self.unbind(WhileOpen::GoesWhenClosed).and_then(|()| {
            let control = File::options().read(true).write(true).open(CONTROL)?;
            ioctl(&control, CTL_REMOVE, u64::from(self.number))
        });
        if let Err(e) = gone {
            log::warn!("{} stays: {e}", self.node().display());
        }
        // A server that was killed has left its mount.
        self.clear();
        let _ = fs::remove_file(self.folder.join(NAMES));
        // Files of a table's server lie beside it, and go too, unless a server is still there.
        let _ = fs::remove_file(self.file()).and_then(|()| fs::remove_dir_all(&self.folder));
        self.free.given_back(self.number);
    }

    fn unname(&self, Names { name, uuid }: Names<'_>) {
        self.links().remove(name, uuid);
        self.take_off(name);
    }
}

impl LoopNode {
    /// Keeps the names for another server: the old ones or these, also on a full file system.
    fn write_names(&self, name: &str, uuid: &str) -> io::Result<()> {
        let (new, path) = (self.folder.join("names.new"), self.folder.join(NAMES));
        let written = fs::write(&new, format!("{name}\0{uuid}")).and_then(|()| fs::rename(&new, path));
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }

    /// The names that are not in /dev/mapper.
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

    /// Whether this is a node of the device, or a link to one.
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

const CONTROL: &str = "/dev/loop-control";

fn control() -> Result<File> {
    let opened = File::options().read(true).write(true).open(CONTROL);
    opened.map_err(|e| Error::system(format!("{CONTROL}: there are no loop devices here"), &e))
}

/// Whether the kernel makes the nodes in /dev.
fn is_devtmpfs() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev", "devtmpfs"]))
}
