//! A regular file or a block device as a lower device.

#![expect(unsafe_code, reason = "an ioctl")]

mod below;
mod channel;
mod cut;
mod expected;
mod extents;
mod reopened;
pub(crate) mod sysfs;
mod trim;
mod write_back;
mod zones;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, fstatfs, ioctl_blksszget, statx};
use rustix::io::Errno;

use crate::losses::{FlushLosses, Sticky};
use crate::ring::restrictions;
use crate::{
    Channel, Device, Error, ErrorKind, Extent, Geometry, Result, Zone, ZoneAction, ZoneControl, ZoneLimits,
};
use below::FileBelow;
use channel::FileChannel;
use cut::KnownSize;
use expected::Expected;
pub use expected::{ExpectedBytes, Runs};
pub use reopened::ReopenedFile;

/// `_IOR(0x12, 114, size_t)` (linux/fs.h).
const BLKGETSIZE64: u64 = 2 << 30 | 8 << 16 | 0x12 << 8 | 114;

/// Options for opening a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Take no lock: the caller has excluded other writers.
    pub unlocked: bool,
}

/// A regular file or a block device, locked while it is open.
pub struct FileDevice {
    shared: Arc<Shared>,
    /// The geometry, with the size at the opening.
    geometry: Geometry,
}

/// The state that all channels share.
struct Shared {
    /// The file that was opened first: the only one that knows of every write-back error. It is
    /// synced in `write_back.rs` only.
    file: File,
    /// Held while the kernel is asked for a write-back error.
    asking: Mutex<()>,
    /// Another filesystem has the file's pages and write-back errors.
    is_stacked: bool,
    /// The file that a loop device lies on.
    below: Option<FileBelow>,
    name: String,
    way: FileAccess,
    size: KnownSize,
    /// The unit of discards on a block device, in bytes.
    discard_unit: Option<u32>,
    losses: Arc<FlushLosses>,
    /// Bytes whose absence shows that another program has taken the data over.
    expected: OnceLock<Expected>,
    /// Another open file, whose lock is held as long.
    also_open: OnceLock<File>,
}

/// The access to a file's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileAccess {
    /// Through the page cache of a disk: at once for cached data, otherwise through the ring.
    Cached,
    /// A file in memory (tmpfs, ramfs): system calls never wait for a disk. RWF_NOWAIT is refused
    /// there.
    Memory,
    /// Past the page cache, always through the ring.
    Direct,
}

impl FileDevice {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// `Open` when the file cannot be opened or is neither a regular file nor a block device;
    /// `Locked` when another program uses it, or the kernel a block device that is to be written
    /// to; `NoLock` when its filesystem has no locks; `Alignment` when it has no direct I/O.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self> {
        Self::over(open(path, options)?, &path.display().to_string(), options)
    }

    /// As [`FileDevice::open`], for a file that another process has opened with these options, and
    /// may still have: both processes share its lock.
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn over(file: File, name: &str, options: OpenOptions) -> Result<Self> {
        let name = name.to_owned();
        let cannot = |e| Error::new(ErrorKind::Open, format!("cannot open {name}")).with_source(e);
        let kind = file.metadata().map_err(cannot)?.file_type();
        if !options.unlocked {
            crate::lock::lock(&file, &name, !options.read_only)?;
        }
        let size = size(&file).map_err(cannot)?;
        let way = match () {
            () if options.direct => FileAccess::Direct,
            () if kind.is_file() && lives_in_memory(&file) => FileAccess::Memory,
            () => FileAccess::Cached,
        };
        let (block, memory_alignment) = if options.direct { direct_alignment(&file, &name)? } else { (1, 1) };
        if kind.is_block_device() {
            // Discards are commands of this kind.
            restrictions::allow_commands();
        }
        let zones = if kind.is_block_device() { zones::of(&file, size) } else { None };
        if zones.is_some() && !options.direct && !options.read_only {
            let context =
                format!("{name} has zones: the page cache would not write them in order; use --direct");
            return Err(Error::new(ErrorKind::Open, context));
        }
        let geometry = Geometry {
            size,
            block,
            preferred_block: 4096.max(block),
            memory_alignment,
            read_only: options.read_only,
            discard: !kind.is_block_device() || discards(&file),
            zones,
            tag_size: 0,
        };
        let discard_unit = match kind.is_block_device() {
            true => Some(ioctl_blksszget(&file).map_err(|e| cannot(e.into()))?.max(512)),
            false => None,
        };
        let losses = Arc::new(FlushLosses::new(&name));
        let is_stacked = write_back::is_stacked(&file);
        let below = if kind.is_block_device() { FileBelow::of(&file, size) } else { None };
        let known = KnownSize::new(size, &file);
        let shared = Shared {
            file,
            asking: Mutex::default(),
            is_stacked,
            below,
            name,
            way,
            size: known,
            discard_unit,
            losses,
            expected: OnceLock::new(),
            also_open: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared), geometry })
    }

    /// Keeps another file open as long as this device, for its lock. Later calls have no effect.
    pub fn keep_open(&self, file: File) {
        let _ = self.shared.also_open.set(file);
    }

    /// Returns the file that is [kept open](FileDevice::keep_open).
    pub fn kept_open(&self) -> Option<&File> {
        self.shared.also_open.get()
    }

    /// The open file with the lock: for a format, and for handing the device to another process.
    /// While the device is in use no other code may sync it: a sync would take the write-back
    /// errors that the device's flushes have to report.
    pub fn file(&self) -> &File {
        &self.shared.file
    }

    /// Checks that the file may be changed up to byte `end` by a caller that writes to it by other
    /// means: no other program has made it shorter, removed or replaced it. An `end` of `u64::MAX`
    /// always looks at the file.
    ///
    /// # Errors
    /// `Flush`, as every flush does from then on.
    pub fn may_change_to(&self, end: u64) -> Result<()> {
        self.shared.allow_change_to(end)
    }

    /// Checks whether acknowledged writes may be lost, as a flush does.
    ///
    /// # Errors
    /// `Flush`, as every flush does from then on; once, where another program holds the lock of
    /// [expected](FileDevice::expect) bytes that are missing.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    fn open_again(&self, way: FileAccess) -> Result<File> {
        self.open_again_as(&self.shared.file, way)
    }

    fn open_again_as(&self, file: &File, way: FileAccess) -> Result<File> {
        let name = &self.shared.name;
        let cannot = |e| {
            Error::new(ErrorKind::Open, format!("cannot open {name} again, by /proc/self/fd")).with_source(e)
        };
        open_again(file, if way == FileAccess::Direct { libc::O_DIRECT } else { 0 }).map_err(cannot)
    }
}

impl Device for FileDevice {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.shared.size.get(), ..self.geometry }
    }

    fn refresh(&self) -> Result<u64> {
        let Shared { file, name, .. } = &*self.shared;
        let cannot =
            |e| Error::new(ErrorKind::Open, format!("cannot tell the size of {name}")).with_source(e);
        let size = size(file).map_err(cannot)?;
        self.shared.size.set(size);
        Ok(size)
    }

    fn need(&self, end: u64) {
        self.shared.size.need(end);
        self.shared.below.iter().for_each(|below| below.need(end));
    }

    fn channel(&self, depth: u32) -> Result<Box<dyn Channel>> {
        let shared = self.shared.clone();
        let file = self.open_again(shared.way)?;
        let losses = shared.losses.clone();
        Ok(Box::new(Sticky::new(FileChannel::new(shared, file, depth), losses)))
    }

    fn name(&self) -> &str {
        &self.shared.name
    }

    fn extent(&self, offset: u64, len: u64) -> Extent {
        extents::extent(&self.shared.file, offset, len)
    }

    fn zone_control(&self) -> Option<&dyn ZoneControl> {
        self.geometry.zones.map(|_| self as &dyn ZoneControl)
    }
}

impl ZoneControl for FileDevice {
    fn report_zones(&self, offset: u64, most: usize) -> std::io::Result<Vec<Zone>> {
        zones::report(&self.shared.file, offset, most)
    }

    fn zone_limits(&self) -> ZoneLimits {
        zones::limits(&self.shared.file)
    }

    fn act_on_zones(&self, action: ZoneAction, offset: u64, len: u64) -> std::io::Result<()> {
        zones::act(&self.shared.file, action, offset, len)
    }
}

/// Opens a regular file or a block device. A block device that will be written to is opened
/// exclusively, as the kernel does for mounts, mappings and swap.
fn open(path: &Path, options: OpenOptions) -> Result<File> {
    let name = path.display();
    let refuse = |why: String| Err(Error::new(ErrorKind::Open, why));
    let cannot = |e| Error::new(ErrorKind::Open, format!("cannot open {name}")).with_source(e);
    let is_block = std::fs::metadata(path).map_err(cannot)?.file_type().is_block_device();
    let claim = if is_block && !options.read_only { libc::O_EXCL } else { 0 };
    let direct = if options.direct { libc::O_DIRECT } else { 0 };
    let mut how = std::fs::OpenOptions::new();
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | direct | claim;
    how.read(true).write(!options.read_only).custom_flags(flags);
    let opened = crate::lock::for_a_moment(|| how.open(path));
    let file = opened.map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::BUSY) if claim != 0 => in_use(path, e),
        _ => cannot(e),
    })?;
    let kind = file.metadata().map_err(cannot)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return refuse(format!("{name} is neither a regular file nor a block device"));
    }
    if kind.is_block_device() != is_block {
        return refuse(format!("{name} became another file while it was opened"));
    }
    // The flag was for the open only: io_uring takes it to mean that nothing may be waited for, and
    // before Linux 6.5 fails with EAGAIN where a device cannot promise that (dm-crypt).
    fcntl_getfl(&file)
        .and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK))
        .map_err(|e| cannot(e.into()))?;
    Ok(file)
}

/// The size of a file or a block device. The file's position does not move: other code may read
/// from it.
fn size(file: &File) -> std::io::Result<u64> {
    let of = file.metadata()?;
    if !of.file_type().is_block_device() {
        return Ok(of.len());
    }
    let mut size = 0_u64;
    // SAFETY: the kernel writes 64 bits.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size) } == 0 {
        return Ok(size);
    }
    Err(std::io::Error::last_os_error())
}

/// True when a block device supports discards.
fn discards(file: &File) -> bool {
    let most = file.metadata().ok().and_then(|of| sysfs::queue(of.rdev(), "discard_max_bytes"));
    // Without sysfs, the device is asked at the first discard.
    most.is_none_or(|most| most != "0")
}

/// Opens an open file once more, for the same access and with these flags. A duplicate of the
/// descriptor would share the flock and the record of write-back errors, so that one user would
/// take errors that the other relies on.
///
/// # Errors
/// The system's: `/proc` is missing, or the permission is gone since.
pub fn open_again(file: &File, flags: i32) -> std::io::Result<File> {
    let access = fcntl_getfl(file)? & OFlags::RWMODE;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let (read, write) = (access != OFlags::WRONLY, access != OFlags::RDONLY);
    std::fs::OpenOptions::new().read(read).write(write).custom_flags(flags).open(path)
}

/// The error for a block device that is opened exclusively elsewhere.
fn in_use(path: &Path, e: std::io::Error) -> Error {
    let holders = std::fs::metadata(path).map(|of| sysfs::holders(of.rdev())).unwrap_or_default();
    let who =
        if holders.is_empty() { "by another program, or by the kernel".into() } else { holders.join(", ") };
    Error::new(ErrorKind::Locked, format!("{} is in use: {who}", path.display())).with_source(e)
}

/// The alignment of offsets and of memory for direct I/O, from statx where the kernel supports that
/// (6.1).
fn direct_alignment(file: &File, name: &str) -> Result<(u32, u32)> {
    let page = 4096;
    let told = statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|s| StatxFlags::from_bits_retain(s.stx_mask).contains(StatxFlags::DIOALIGN));
    let (block, memory) = match told {
        Some(s) => (s.stx_dio_offset_align, s.stx_dio_mem_align),
        None => match ioctl_blksszget(file) {
            // A block device; before Linux 6.11 statx reports no alignment for one.
            Ok(sector) => (sector, sector),
            // A page suits every filesystem.
            Err(_) => (page, page),
        },
    };
    if block == 0 || memory == 0 || memory > page {
        let context = format!("{name}: its filesystem has no direct I/O; open it without --direct");
        return Err(Error::new(ErrorKind::Alignment, context));
    }
    // Requests may begin at any block within a buffer.
    Ok((block.max(memory), memory))
}

fn lives_in_memory(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    #[allow(clippy::unnecessary_cast, reason = "f_type's width differs between architectures")]
    fstatfs(file).is_ok_and(|s| matches!(s.f_type as i64, TMPFS | RAMFS))
}
