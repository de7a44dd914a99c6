//! Loop devices over the files that tables show.
//!
//! ```text
//!   create   a number from 1000 up that no loop device has; bound to an empty file, so that `losetup -f` never finds it free
//!   attach   bound to the table's file, and named /dev/mapper/NAME
//!   detach   unbound, where nobody else has it open; and gone when it is dropped
//! ```
//!
//! Source of structures and numbers: include/uapi/linux/loop.h.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat, statfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::host::{Node, Nodes};
use crate::node_name::free_name;
use crate::opens::opens;
use crate::{DeviceNumber, Error, Family, Result, Room};

const CLR_FD: libc::Ioctl = 0x4c01;
const SET_STATUS64: libc::Ioctl = 0x4c04;
const GET_STATUS64: libc::Ioctl = 0x4c05;
const SET_CAPACITY: libc::Ioctl = 0x4c07;
const SET_BLOCK_SIZE: libc::Ioctl = 0x4c09;
const CONFIGURE: libc::Ioctl = 0x4c0a;
const CTL_ADD: libc::Ioctl = 0x4c80;
const CTL_REMOVE: libc::Ioctl = 0x4c81;

const READ_ONLY: u32 = 1;
const DIRECT_IO: u32 = 16;
/// Bytes of `loop_info64`, and of a name in it.
const INFO: usize = 232;
const NAME: usize = 64;

/// Numbers that this module takes: `losetup` takes them from 0 up.
const FIRST: u32 = 1000;
const MOST: u32 = 1 << 16;
/// The name of a device's file in its folder.
const FILE: &str = "volume";
/// Numbers that are tried for one device.
const TRIES: u32 = 16;
/// How long a device may take to be unbound after its last user has closed it.
const UNBINDING: Duration = Duration::from_secs(5);
/// How long others, like udev, may look at a device that is to be unbound.
const LOOKING: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(2);

/// `loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block: u32,
    info: Info,
    reserved: [u64; 8],
}

/// `loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    before: [u64; 3],
    number: u32,
    encrypt: [u32; 2],
    flags: u32,
    file_name: [u8; NAME],
    after: [u8; 112],
}

const _: () = assert!(size_of::<Info>() == INFO && size_of::<Config>() == 304);

/// Makes loop devices.
pub struct LoopNodes {
    folder: PathBuf,
    mapper: PathBuf,
    family: Family,
}

impl LoopNodes {
    /// Loop devices whose files are in `folder`, and whose names are shown in `mapper`.
    pub fn new(folder: impl Into<PathBuf>, mapper: impl Into<PathBuf>, family: Family) -> Self {
        Self { folder: folder.into(), mapper: mapper.into(), family }
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
    fn is_free(&self, name: &str) -> Result<()> {
        free_name(&self.mapper.join(name))
    }

    fn create(&self, minor: Option<u32>) -> Result<Box<dyn Node>> {
        let mut from = FIRST;
        loop {
            let number = Self::add(minor, from)?;
            let folder = self.folder.join(number.to_string());
            let (mapper, family) = (self.mapper.clone(), self.family.clone());
            let node = LoopNode { number, folder, mapper, family, dev: device_of(number)? };
            match node.prepare() {
                Ok(()) => return Ok(Box::new(node)),
                // Another program was faster, or a table's server of a back end that is gone serves
                // on.
                Err(e) if minor.is_none() && from < FIRST + TRIES => {
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

struct LoopNode {
    number: u32,
    dev: DeviceNumber,
    folder: PathBuf,
    mapper: PathBuf,
    family: Family,
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
        let info = Info { flags, file_name: self.file_name(), ..Info::zeroed() };
        let mut config = Config { fd, block, info, reserved: [0; 8] };
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

    /// Unbinds the device. While others have it open it stays bound. Another program's file stays
    /// bound: that program took the device's number when the device was free for a moment.
    fn unbind(&self) -> io::Result<()> {
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
            return self.stay_bound();
        }
    }

    /// Fails with `EBUSY`: others keep the device, and the kernel is not to unbind it when they
    /// close it.
    fn stay_bound(&self) -> io::Result<()> {
        let node = self.open()?;
        if !self.is_bound()? {
            return Ok(());
        }
        let info = Info { file_name: self.file_name(), ..Info::zeroed() };
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
        self.unbind().map_err(self.failed("cannot be made free"))?;
        let file = File::options().read(true).write(!read_only).open(self.file());
        let file = file.map_err(self.failed("its file cannot be opened"))?;
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
        let block = ioctl(&node, SET_BLOCK_SIZE, room.block.clamp(512, 4096).into());
        let resized = looked.and_then(|_| ioctl(&node, SET_CAPACITY, 0));
        block.and(resized).map_err(self.failed("cannot get another size"))
    }

    fn detach(&self) -> Result<()> {
        self.unbind().map_err(self.failed("cannot be unbound"))
    }

    fn opens(&self, is_below: bool) -> u32 {
        opens(self.dev, &self.node(), &self.family, is_below)
    }

    fn sync(&self) {
        if let Err(e) = self.open().and_then(|node| node.sync_data()) {
            log::warn!("{}: what the kernel has of it cannot be written: {e}", self.node().display());
        }
    }

    fn name(&self, name: &str, before: Option<&str>) -> Result<()> {
        let path = self.mapper.join(name);
        if !self.leads_here(&path) {
            let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
            free_name(&path)?;
            let made = mknodat(CWD, &path, FileType::BlockDevice, mode, self.dev.for_node());
            made.map_err(|e| Error::system(path.display(), &e.into()))?;
        }
        if let Some(before) = before {
            self.unname(before);
        }
        Ok(())
    }

    fn unname(&self, name: &str) {
        let path = self.mapper.join(name);
        if self.leads_here(&path)
            && let Err(e) = fs::remove_file(&path)
        {
            log::warn!("{}: cannot be removed: {e}", path.display());
        }
    }
}

impl LoopNode {
    /// Whether this is a node of the device, or a link to one.
    fn leads_here(&self, path: &Path) -> bool {
        let of = fs::metadata(path).ok().filter(|of| of.file_type().is_block_device());
        of.is_some_and(|of| DeviceNumber::of_node(of.rdev()) == self.dev)
    }
}

impl Drop for LoopNode {
    fn drop(&mut self) {
        let gone = self.unbind().and_then(|()| {
            let control = File::options().read(true).write(true).open(CONTROL)?;
            ioctl(&control, CTL_REMOVE, u64::from(self.number))
        });
        if let Err(e) = gone {
            log::warn!("{} stays: {e}", self.node().display());
        }
        // A server that was killed has left its mount.
        self.clear();
        let _ = fs::remove_file(self.file()).and_then(|()| fs::remove_dir(&self.folder));
    }
}

impl Info {
    const fn zeroed() -> Self {
        Self {
            device: 0,
            inode: 0,
            before: [0; 3],
            number: 0,
            encrypt: [0; 2],
            flags: 0,
            file_name: [0; NAME],
            after: [0; 112],
        }
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

fn ioctl(file: &File, request: libc::Ioctl, argument: u64) -> io::Result<()> {
    // SAFETY: these requests take a number, or nothing.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request, argument) })
}

fn configure(node: &File, config: &Config) -> io::Result<()> {
    // SAFETY: the kernel reads the structure, whose size is asserted above, during the call.
    check(unsafe { libc::ioctl(node.as_raw_fd(), CONFIGURE, std::ptr::from_ref(config)) })
}

fn set_status(node: &File, info: &Info) -> io::Result<()> {
    // SAFETY: as above.
    check(unsafe { libc::ioctl(node.as_raw_fd(), SET_STATUS64, std::ptr::from_ref(info)) })
}

/// The device and the inode number of the file that an open loop device lies on.
///
/// # Errors
/// `ENXIO` for one that is bound to nothing; the system's.
pub fn backing_file(node: &File) -> io::Result<(DeviceNumber, u64)> {
    let mut info = Info::zeroed();
    // SAFETY: the kernel fills the structure, whose size is asserted above, during the call.
    check(unsafe { libc::ioctl(node.as_raw_fd(), GET_STATUS64, &raw mut info) })?;
    Ok((DeviceNumber::decode(info.device), info.inode))
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
