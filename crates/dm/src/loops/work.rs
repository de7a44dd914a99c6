//! The steps over a loop device that wait for the server of its file, or for the kernel that waits
//! for it: a server that hangs keeps the one that takes the step, for ever perhaps.
//!
//! A step knows all that it needs, so that another process can take it. It can be taken twice: a
//! process that is killed in the middle of one leaves nothing that the next one stumbles over.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, flock, mknodat, statfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::control;
use super::requests::{
    CLR_FD, CTL_REMOVE, DIRECT_IO, LoopConfig, LoopInfo, NAME, READ_ONLY, SET_BLOCK_SIZE, SET_CAPACITY,
    configure, ioctl, set_status,
};
use crate::left::FILE;
use crate::names::{KEPT, KernelDisk};
use crate::opens::{is_claimed, opens};
use crate::{DeviceNumber, Error, Family, Result, Room};

/// The file that is locked while a process binds or unbinds the device.
const TURN: &str = "work";
/// How long a step waits for another one on the same device: a back end that was killed may have
/// left a process that is not done.
const WAITING: Duration = Duration::from_secs(10);
/// How long a device may take to be unbound after its last user has closed it.
const UNBINDING: Duration = Duration::from_secs(5);
/// How long others, like udev, may look at a device that is to be unbound.
const LOOKING: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(2);

/// A step over one loop device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoopWork {
    pub(super) number: u32,
    pub(super) dev: DeviceNumber,
    pub(super) folder: PathBuf,
    /// The processes that answer for devices, for steps that wait for others.
    pub(super) family: Vec<u32>,
    pub(super) step: LoopStep,
    /// The kernel's name of a disk that is no loop device, which is looked at or synced.
    pub(super) disk: Option<String>,
}

/// The kinds of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoopStep {
    /// The device gets an empty file.
    Prepare,
    /// The device is put over its table's file.
    Attach(Attachment),
    /// The device gets the size of another table.
    Follow(Room),
    /// The device is taken off the file, and put over it again where that came too late.
    Detach(Option<Attachment>),
    /// Whether another program has claimed the device.
    Look,
    /// The pages that the kernel keeps of the device are written to the file.
    Sync,
    /// The device goes back to the system, with its folder.
    GiveBack,
}

impl fmt::Display for LoopStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prepare => "being made",
            Self::Attach(_) => "being put over its file",
            Self::Follow(_) => "getting another size",
            Self::Detach(_) => "being taken off its file",
            Self::Look => "being looked at",
            Self::Sync => "being written out",
            Self::GiveBack => "being given back",
        })
    }
}

/// How a device lies over its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    pub(crate) room: Room,
    pub(crate) read_only: bool,
}

/// Takes steps that may hang, with an end to its patience.
pub trait LoopWorker: Send + Sync {
    /// Takes a step. The answer to [`LoopStep::Look`].
    ///
    /// # Errors
    /// The step's; `ETIMEDOUT` when it hangs, and `EBUSY` while an earlier one of the device does.
    /// A step that is done after that is taken back.
    fn take(&self, work: LoopWork) -> Result<bool>;
}

impl LoopWork {
    /// The step.
    pub fn step(&self) -> LoopStep {
        self.step
    }

    pub(crate) fn dev(&self) -> DeviceNumber {
        self.dev
    }

    /// A look at another disk than a loop device, or its sync.
    pub(crate) fn of_disk(disk: &KernelDisk, step: LoopStep) -> Self {
        let (number, folder, family) = (0, PathBuf::new(), Vec::new());
        Self { number, dev: disk.number, folder, family, step, disk: Some(disk.name.clone()) }
    }

    /// The device, as the log calls it.
    pub fn subject(&self) -> String {
        match &self.disk {
            Some(disk) => format!("disk {disk}"),
            None => format!("loop device {}", self.number),
        }
    }

    /// The work that takes this one back, which was done after its caller's deadline.
    #[must_use]
    pub fn undoing(&self) -> Option<Self> {
        let step = match self.step {
            LoopStep::Attach(_) => LoopStep::Detach(None),
            LoopStep::Detach(again) => LoopStep::Attach(again?),
            LoopStep::Prepare => LoopStep::GiveBack,
            LoopStep::Follow(_) | LoopStep::Look | LoopStep::Sync | LoopStep::GiveBack => return None,
        };
        Some(Self { step, ..self.clone() })
    }

    /// Takes the step, however long that takes.
    ///
    /// # Errors
    /// `EBUSY` while others have the device open; `ETIMEDOUT` while another process takes a step on
    /// it; the system's.
    pub fn run(&self) -> Result<bool> {
        match self.step {
            LoopStep::Look => return Ok(is_claimed(&self.node())),
            LoopStep::Sync => {
                let synced = self.open_for_sync().and_then(|node| node.sync_data());
                synced.map_err(self.failed("what the kernel has of it cannot be written"))?;
                return Ok(false);
            }
            LoopStep::Follow(room) => return self.follow(room).map(|()| false),
            _ => {}
        }
        if self.step == LoopStep::Prepare {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
            made.map_err(|e| Error::system(self.folder.display(), &e))?;
        }
        let turn = self.turn()?;
        let done = match self.step {
            LoopStep::Prepare => self.prepare(),
            LoopStep::Attach(how) => self.attach(how),
            LoopStep::Detach(_) => {
                self.unbind(WhileOpen::StaysBound).map_err(self.failed("cannot be unbound"))
            }
            LoopStep::GiveBack => self.give_back(),
            LoopStep::Look | LoopStep::Sync | LoopStep::Follow(_) => Ok(()),
        };
        drop(turn);
        done.map(|()| false)
    }

    /// Keeps other processes from binding or unbinding the device. None for a device without a
    /// folder.
    fn turn(&self) -> Result<Option<File>> {
        let path = self.folder.join(TURN);
        let until = Instant::now() + WAITING;
        loop {
            let mut how = File::options();
            let file = match how.write(true).create(true).truncate(false).mode(0o600).open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file.map_err(|e| Error::system(path.display(), &e))?,
            };
            let is_mine = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let is_same = |of: fs::Metadata| file.metadata().is_ok_and(|file| file.ino() == of.ino());
            // The process that had the lock may have removed the folder.
            if is_mine && fs::metadata(&path).is_ok_and(is_same) {
                return Ok(Some(file));
            }
            if Instant::now() > until {
                let what = format!("{}: another process has not done with it", self.node().display());
                return Err(Error::new(Errno::TIMEDOUT, what));
            }
            thread::sleep(AGAIN);
        }
    }
}

/// The file that a loop device is bound to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
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

impl LoopWork {
    /// Makes the file, and binds the device to it while it is empty.
    fn prepare(&self) -> Result<()> {
        let failed = |e: io::Error| Error::system(self.folder.display(), &e);
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
        if self.is_bound().map_err(failed)? {
            // The process that took this step before was killed.
            self.unbind(WhileOpen::StaysBound).map_err(failed)?;
        }
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

    fn attach(&self, Attachment { room, read_only }: Attachment) -> Result<()> {
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

    fn give_back(&self) -> Result<()> {
        // A process that was killed may have come this far.
        let is_there = fs::exists(format!("/sys/block/loop{}", self.number)).unwrap_or(true);
        let gone = match is_there {
            true => self
                .unbind(WhileOpen::GoesWhenClosed)
                .and_then(|()| ioctl(&control()?, CTL_REMOVE, u64::from(self.number)))
                .map_err(self.failed("stays")),
            false => Ok(()),
        };
        // A server that was killed has left its mount.
        self.clear();
        for file in KEPT {
            let _ = fs::remove_file(self.folder.join(file));
        }
        // Files of a table's server lie beside it, and go too, unless a server is still there.
        let removed = fs::remove_file(self.file());
        if removed.is_ok() || removed.is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            let _ = fs::remove_dir_all(&self.folder);
        }
        gone
    }

    fn file(&self) -> PathBuf {
        self.folder.join(FILE)
    }

    pub(super) fn node(&self) -> PathBuf {
        match &self.disk {
            Some(disk) => Path::new("/dev").join(disk),
            None => format!("/dev/loop{}", self.number).into(),
        }
    }

    /// Opens the device to sync it. A read-only ublk disk is opened for reading only.
    fn open_for_sync(&self) -> io::Result<File> {
        match &self.disk {
            Some(_) => File::options().read(true).custom_flags(libc::O_NONBLOCK).open(self.node()),
            None => self.open(),
        }
    }

    fn open(&self) -> io::Result<File> {
        // A loop device's users may write: the flag of the binding says whether that reaches the
        // file.
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

    fn binding(&self) -> io::Result<Binding> {
        binding(self.number, &self.folder)
    }

    fn is_bound(&self) -> io::Result<bool> {
        Ok(self.binding()? == Binding::Own)
    }

    /// Unbinds the device. While others have it open it stays bound: for good, or until they close
    /// it. Another program's file stays bound: that program took the device's number when the
    /// device was free for a moment.
    fn unbind(&self, while_open: WhileOpen) -> io::Result<()> {
        let family = Family::of(&self.family);
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
                && opens(self.dev, &self.node(), &family) == 0
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

/// Whether a process that a back end has left behind binds or unbinds a device still.
pub(super) fn is_taken(folder: &Path) -> bool {
    let turn = File::open(folder.join(TURN));
    turn.is_ok_and(|turn| flock(&turn, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
}

/// The file that a device is bound to now. An open descriptor of the node keeps that from changing:
/// the kernel unbinds a device when its last user closes it.
pub(super) fn binding(number: u32, folder: &Path) -> io::Result<Binding> {
    let path = format!("/sys/block/loop{number}/loop/backing_file");
    let found = match fs::read(path) {
        // An attribute that was opened before the device was unbound reads as nothing, or
        // fails.
        Ok(found) if found.is_empty() => return Ok(Binding::Nothing),
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Binding::Nothing),
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NODEV) => return Ok(Binding::Nothing),
        Err(e) => return Err(e),
    };
    let own = fs::canonicalize(folder)?.join(FILE);
    let is_own = found.strip_suffix(b"\n") == Some(own.as_os_str().as_encoded_bytes());
    Ok(if is_own { Binding::Own } else { Binding::Other })
}

/// Whether the kernel makes the nodes in /dev.
fn is_devtmpfs() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev", "devtmpfs"]))
}
