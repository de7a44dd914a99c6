//! The answers of a supervisor. They are those of the preloaded library (crates/dm-preload), except
//! for keys by name: the kernel does not report the serial number of a key that another process
//! adds. Programs see a crypt target that does not know keys by name, and send digits.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, getpeername};
use underseal_dm::DeviceNumber;
use underseal_dm::header::HEADER;
use underseal_dm::server::thread_may_ask;
use underseal_dm::supervised::{CallerBuffer, CallerMemory, CallerPath, LONGEST_PATH};

use super::notice::Notice;
use crate::dm::backend;
use crate::error::{Error, Result};

/// The number of the ioctl that asks for a device (include/uapi/linux/dm-ioctl.h).
const DEV_STATUS: u32 = 0xc138_fd07;
const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const DEV: usize = 40;
/// The interval at which a waiting caller is checked.
const LOOK: Duration = Duration::from_millis(200);
/// How many ioctls run at a time.
const MOST_IOCTLS: usize = 1024;

/// Answers calls with the help of a back end.
pub(super) struct Answers {
    folder: PathBuf,
    /// The connection that keeps the back end running.
    stays: UnixStream,
    /// Each ioctl's thread has a copy.
    ioctls: Arc<()>,
}

impl Answers {
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let folder = std::path::absolute(folder).map_err(|e| Error::io(folder, "cannot be found", e))?;
        let stays = backend::connect(&folder)?;
        Ok(Self { folder, stays, ioctls: Arc::new(()) })
    }

    /// Needs the back end no longer.
    pub(super) fn leave(&self) {
        // A connection that has ended already keeps nothing.
        let _ = self.stays.shutdown(Shutdown::Both);
    }

    /// Answers one call, or leaves it to the kernel. This may wait for a server of the caller's
    /// files, for ever.
    pub(super) fn answer(&self, notice: Notice) {
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "of open(2) alone"))]
        let [first, second, third, fourth, ..] = notice.arguments;
        match notice.number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => self.open(notice, first, second),
            libc::SYS_openat => self.open(notice, second, third),
            libc::SYS_openat2 => {
                let mut flags = [0; 8];
                if notice.read(third, &mut flags).is_ok() {
                    self.open(notice, second, u64::from_ne_bytes(flags));
                }
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_readlink => self.read_link(notice, first, second, third),
            libc::SYS_readlinkat => self.read_link(notice, second, third, fourth),
            libc::SYS_ioctl => self.ioctl(notice, second, third),
            _ => {}
        }
    }

    fn open(&self, notice: Notice, path: u64, flags: u64) {
        let mut room = [0; LONGEST_PATH];
        let path = notice.string(path, &mut room).and_then(CallerPath::parse);
        let close_on_exec = flags & u64::from(libc::O_CLOEXEC.cast_unsigned()) != 0;
        match path {
            Some(CallerPath::Control) if thread_may_ask(notice.thread) => {
                match backend::connect(&self.folder) {
                    Ok(stays) => notice.answer_with(stays.as_fd(), close_on_exec),
                    Err(e) => {
                        log::error!("{}", e.what());
                        notice.answer(Err(Errno::NODEV));
                    }
                }
            }
            Some(CallerPath::Devices) => {
                if let Some(devices) = with_mapper() {
                    notice.answer_with(devices.as_fd(), close_on_exec);
                }
            }
            Some(CallerPath::Holders(device)) if thread_may_ask(notice.thread) => {
                // The back end's folder of a device's holders, in place of the one in sysfs.
                if let Ok(holders) = File::open(self.folder.join("holders").join(device.to_string())) {
                    notice.answer_with(holders.as_fd(), close_on_exec);
                }
            }
            _ => {}
        }
    }

    /// Does an ioctl in a separate thread: it may wait for a disk, or for an event.
    fn ioctl(&self, notice: Notice, request: u64, argument: u64) {
        let is_ours = notice.socket(notice.arguments[0]).is_some_and(|fd| {
            let peer = getpeername(&fd).ok().flatten().and_then(|peer| SocketAddrUnix::try_from(peer).ok());
            peer.is_some_and(|peer| peer == address(&self.folder))
        });
        if !is_ours {
            return;
        }
        // The kernel requires the same capability for each ioctl.
        if !thread_may_ask(notice.thread) {
            return notice.answer(Err(Errno::ACCESS));
        }
        let counted = self.ioctls.clone();
        if Arc::strong_count(&counted) > MOST_IOCTLS + 1 {
            return notice.answer(Err(Errno::NOMEM));
        }
        let socket = backend::socket(&self.folder);
        // The lower half of the argument is the request, as in the kernel.
        let request = (request & 0xffff_ffff) as u32;
        let work = move || {
            let done = do_ioctl(&notice, &socket, request, argument);
            notice.answer(done.map(|()| 0));
            drop(counted);
        };
        // Without a thread the call is left to the kernel, where it fails.
        if let Err(e) = thread::Builder::new().name("ioctl".into()).spawn(work) {
            log::error!("no thread for a call: {e}");
        }
    }

    fn read_link(&self, notice: Notice, path: u64, to: u64, len: u64) {
        let mut room = [0; LONGEST_PATH];
        let path = notice.string(path, &mut room).and_then(CallerPath::parse);
        let Some(CallerPath::Device(device)) = path else { return };
        let Some(link) = self.link(device) else { return };
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(link.len());
        let written = notice.write(to, &link.as_bytes()[..len]);
        notice.answer(written.map(|()| i64::try_from(len).unwrap_or_default()));
    }

    /// Returns the link of a device's folder in sysfs, with the name that device mapper would have
    /// given it as its last part; `None` for a device that is not the back end's.
    fn link(&self, device: DeviceNumber) -> Option<String> {
        let link =
            fs::read_link(format!("/sys/dev/block/{device}")).ok()?.into_os_string().into_string().ok()?;
        let (folder, name) = link.rsplit_once('/')?;
        let may_be_ours = ["loop", "ublkb"].iter().any(|kind| name.starts_with(kind));
        let is_ours = may_be_ours && self.has_device(device);
        is_ours.then(|| format!("{folder}/dm-{}", device.minor))
    }

    fn has_device(&self, device: DeviceNumber) -> bool {
        let mut buffer = [0; HEADER];
        let [size, four] = [HEADER, 4].map(|number| u32::try_from(number).unwrap_or_default().to_ne_bytes());
        buffer[..4].copy_from_slice(&four);
        buffer[DATA_SIZE..DATA_SIZE + 4].copy_from_slice(&size);
        buffer[DATA_START..DATA_START + 4].copy_from_slice(&size);
        buffer[DEV..DEV + 8].copy_from_slice(&device.encode().to_ne_bytes());
        let asked = ask(&backend::socket(&self.folder), DEV_STATUS, &mut buffer, &|| true);
        asked.is_ok()
    }
}

fn address(folder: &Path) -> SocketAddrUnix {
    // No back end has a path that is too long for a socket.
    SocketAddrUnix::new(backend::socket(folder)).unwrap_or_else(|_| SocketAddrUnix::new_unnamed())
}

fn do_ioctl(notice: &Notice, socket: &Path, request: u32, argument: u64) -> std::result::Result<(), Errno> {
    let mut buffer = CallerBuffer::read(notice, argument)?;
    if !notice.waits() {
        return Err(Errno::INTR);
    }
    let asked = ask(socket, request, buffer.as_mut_bytes(), &|| notice.waits());
    let (done, len) = match asked {
        Ok(len) => (Ok(()), len),
        Err((errno, len)) => (Err(errno), len),
    };
    buffer.write_back(notice, request, len)?;
    done
}

/// Asks the back end. Returns the length of the answer in the buffer.
fn ask(
    socket: &Path,
    request: u32,
    buffer: &mut [u8],
    waits: &dyn Fn() -> bool,
) -> std::result::Result<usize, (Errno, usize)> {
    let exchange = |buffer: &mut [u8]| -> io::Result<(u32, usize)> {
        let mut socket = UnixStream::connect(socket)?;
        let len = u32::try_from(buffer.len()).map_err(io::Error::other)?;
        socket.write_all(&[request, len].map(u32::to_ne_bytes).concat())?;
        socket.write_all(buffer)?;
        let mut head = [0; 8];
        socket.set_read_timeout(Some(LOOK))?;
        let n = loop {
            match socket.read(&mut head) {
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    if !waits() {
                        return Err(Errno::INTR.into());
                    }
                }
                read => break read?,
            }
        };
        socket.set_read_timeout(None)?;
        if n == 0 {
            return Err(Errno::NODEV.into());
        }
        socket.read_exact(&mut head[n..])?;
        let [a, b, c, d, e, f, g, h] = head;
        let len = u32::from_ne_bytes([e, f, g, h]) as usize;
        let answer = buffer.get_mut(..len).ok_or(Errno::IO)?;
        socket.read_exact(answer)?;
        Ok((u32::from_ne_bytes([a, b, c, d]), len))
    };
    match exchange(buffer) {
        Ok((0, len)) => Ok(len),
        Ok((errno, len)) => Err((Errno::from_raw_os_error(errno.cast_signed()), len)),
        Err(e) => Err((Errno::from_io_error(&e).filter(|e| *e == Errno::INTR).unwrap_or(Errno::NODEV), 0)),
    }
}

/// Returns a file like /proc/devices with a line for device mapper; `None` where the kernel has
/// one.
fn with_mapper() -> Option<File> {
    let text = fs::read_to_string("/proc/devices").ok()?;
    let (before, after) = text.split_once("Block devices:\n")?;
    let numbers = || after.lines().filter_map(|line| line.trim_start().split_once(' '));
    if numbers().any(|(_, name)| name == "device-mapper") {
        return None;
    }
    // Drivers without a fixed number get these numbers, from the highest down.
    let is_free = |number: &u8| numbers().all(|(used, _)| used.parse() != Ok(*number));
    let number = (234..=254).rev().find(is_free)?;
    let mut file = File::from(memfd_create("devices", MemfdFlags::CLOEXEC).ok()?);
    write!(file, "{before}Block devices:\n{number:3} device-mapper\n{after}").ok()?;
    std::io::Seek::rewind(&mut file).ok()?;
    Some(file)
}
