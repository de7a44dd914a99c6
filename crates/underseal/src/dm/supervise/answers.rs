//! The answers of a supervisor. They are those of the preloaded library (crates/dm-preload), except
//! for keys by name: the kernel does not report the serial number of a key that another process
//! adds. Programs see a crypt target that does not know keys by name, and send digits.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, getpeername};
use underseal_cipher::Key;
use underseal_dm::server::thread_may_ask;

use super::notice::Notice;
use crate::dm::backend;
use crate::error::{Error, Result};

const CONTROL: &[u8] = b"/dev/mapper/control";
const DEVICES: &[u8] = b"/proc/devices";
const SYSFS: &[u8] = b"/sys/dev/block/";
/// A length above that of the longest path that is looked for.
const PATH: usize = 64;

/// Numbers of ioctls, and device mapper's structure (include/uapi/linux/dm-ioctl.h).
const DEV_STATUS: u32 = 0xc138_fd07;
const LIST_VERSIONS: u32 = 13;
const GET_TARGET_VERSION: u32 = 17;
const SIZE: u32 = 312;
const HEADER: usize = SIZE as usize;
const LEAST: usize = 305;
const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const MOST: usize = 4 << 20;
/// The last version of the crypt target whose keys are digits only.
const DIGITS_ONLY: [u32; 3] = [1, 18, 0];
/// The interval at which a waiting caller is checked.
const LOOK: Duration = Duration::from_millis(200);

/// Answers calls with the help of a back end.
pub(super) struct Answers {
    folder: PathBuf,
    /// The connection that keeps the back end running.
    _stays: UnixStream,
}

impl Answers {
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let folder = std::path::absolute(folder).map_err(|e| Error::io(folder, "cannot be found", e))?;
        let stays = backend::connect(&folder)?;
        Ok(Self { folder, _stays: stays })
    }

    /// Answers one call, or leaves it to the kernel.
    pub(super) fn answer(&self, notice: Notice) {
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
        let mut room = [0; PATH];
        let Some(path) = notice.string(path, &mut room) else { return };
        let close_on_exec = flags & u64::from(libc::O_CLOEXEC.cast_unsigned()) != 0;
        if path == CONTROL && thread_may_ask(notice.thread) {
            match backend::connect(&self.folder) {
                Ok(stays) => notice.answer_with(stays.as_fd(), close_on_exec),
                Err(e) => {
                    log::error!("{}", e.what());
                    notice.answer(Err(Errno::NODEV));
                }
            }
        } else if path == DEVICES
            && let Some(devices) = with_mapper()
        {
            notice.answer_with(devices.as_fd(), close_on_exec);
        } else if let Some(holders) = self.holders(path)
            && thread_may_ask(notice.thread)
        {
            notice.answer_with(holders.as_fd(), close_on_exec);
        }
    }

    /// Opens the back end's folder of a device's holders, in place of the one in sysfs.
    fn holders(&self, path: &[u8]) -> Option<File> {
        let device = path.strip_prefix(SYSFS)?.strip_suffix(b"/holders")?;
        let device = std::str::from_utf8(device).ok().filter(|device| !device.contains('/'))?;
        File::open(self.folder.join("holders").join(device)).ok()
    }

    /// Does an ioctl in a separate thread: it may wait for a disk, or for an event.
    fn ioctl(&self, notice: Notice, request: u64, argument: u64) {
        let is_ours = notice.descriptor(notice.arguments[0]).is_some_and(|fd| {
            let peer = getpeername(&fd).ok().flatten().and_then(|peer| SocketAddrUnix::try_from(peer).ok());
            peer.is_some_and(|peer| peer == address(&self.folder))
        });
        if !is_ours {
            return;
        }
        let socket = backend::socket(&self.folder);
        // The lower half of the argument is the request, as in the kernel.
        let request = (request & 0xffff_ffff) as u32;
        let work = move || {
            let done = do_ioctl(&notice, &socket, request, argument);
            notice.answer(done.map(|()| 0));
        };
        // Without a thread the call is left to the kernel, where it fails.
        if let Err(e) = thread::Builder::new().name("ioctl".into()).spawn(work) {
            log::error!("no thread for a call: {e}");
        }
    }

    fn read_link(&self, notice: Notice, path: u64, to: u64, len: u64) {
        let mut room = [0; PATH];
        let Some(path) = notice.string(path, &mut room) else { return };
        let Some(link) = std::str::from_utf8(path).ok().and_then(|path| self.link(path)) else { return };
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(link.len());
        let written = notice.write(to, &link.as_bytes()[..len]);
        notice.answer(written.map(|()| i64::try_from(len).unwrap_or_default()));
    }

    /// Returns the link of a device's folder in sysfs, with the name that device mapper would have
    /// given it as its last part; `None` for a device that is not the back end's.
    fn link(&self, path: &str) -> Option<String> {
        let number = path.as_bytes().strip_prefix(SYSFS)?;
        let (major, minor) = std::str::from_utf8(number).ok()?.split_once(':')?;
        let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
        let link = fs::read_link(path).ok()?.into_os_string().into_string().ok()?;
        let (folder, name) = link.rsplit_once('/')?;
        (name.starts_with("loop") && self.has_device(major, minor)).then(|| format!("{folder}/dm-{minor}"))
    }

    fn has_device(&self, major: u32, minor: u32) -> bool {
        let mut buffer = [0; HEADER];
        let [size, four] = [SIZE, 4].map(u32::to_ne_bytes);
        buffer[..4].copy_from_slice(&four);
        buffer[DATA_SIZE..DATA_SIZE + 4].copy_from_slice(&size);
        buffer[DATA_START..DATA_START + 4].copy_from_slice(&size);
        let (major, minor) = (u64::from(major), u64::from(minor));
        let dev = (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12;
        buffer[40..48].copy_from_slice(&dev.to_ne_bytes());
        let asked = ask(&backend::socket(&self.folder), DEV_STATUS, &mut buffer, &|| true);
        asked.is_ok()
    }
}

fn address(folder: &Path) -> SocketAddrUnix {
    // No back end has a path that is too long for a socket.
    SocketAddrUnix::new(backend::socket(folder)).unwrap_or_else(|_| SocketAddrUnix::new_unnamed())
}

fn do_ioctl(notice: &Notice, socket: &Path, request: u32, argument: u64) -> std::result::Result<(), Errno> {
    // The kernel requires the same capability for each ioctl.
    if !thread_may_ask(notice.thread) {
        return Err(Errno::ACCESS);
    }
    let mut size = [0; 4];
    notice.read(argument.saturating_add(DATA_SIZE as u64), &mut size)?;
    let size = u32::from_ne_bytes(size) as usize;
    // The back end refuses a structure that is too short.
    let size = if size < LEAST { HEADER } else { size };
    if size > MOST {
        return Err(Errno::NOMEM);
    }
    // Tables contain keys.
    let mut buffer = Key::zeroed(size).map_err(|_| Errno::NOMEM)?;
    notice.read(argument, buffer.as_mut_bytes())?;
    if !notice.waits() {
        return Err(Errno::INTR);
    }
    let asked = ask(socket, request, buffer.as_mut_bytes(), &|| notice.waits());
    let (done, len) = match asked {
        Ok(len) => (Ok(()), len),
        Err((errno, len)) => (Err(errno), len),
    };
    if matches!(request & 0xff, LIST_VERSIONS | GET_TARGET_VERSION) {
        without_named_keys(buffer.as_mut_bytes());
    }
    notice.write(argument, &buffer.as_bytes()[..len])?;
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

/// Lowers crypt's version in an answer: records of `next u32, version u32 * 3, name`.
fn without_named_keys(buffer: &mut [u8]) {
    let number = |buffer: &[u8], at: usize| {
        let bytes = buffer.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let Some(mut at) = number(buffer, DATA_START) else { return };
    while let Some(next) = number(buffer, at) {
        if buffer.get(at + 16..at + 22) == Some(b"crypt\0") {
            let version = DIGITS_ONLY.map(u32::to_ne_bytes).concat();
            buffer[at + 4..at + 16].copy_from_slice(&version);
        }
        if next == 0 {
            return;
        }
        at = at.saturating_add(next);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_crypts_version_is_lowered_and_bad_records_end_it() {
        let mut buffer = vec![0_u8; HEADER];
        buffer[DATA_START..DATA_START + 4].copy_from_slice(&312_u32.to_ne_bytes());
        for (name, next) in [("linear\0\0", 24_u32), ("crypt\0\0\0", 24), ("cryptic\0", u32::MAX)] {
            buffer.extend_from_slice(&[next, 1, 28, 5].map(u32::to_ne_bytes).concat());
            buffer.extend_from_slice(name.as_bytes());
        }
        let mut expected = buffer.clone();
        without_named_keys(&mut buffer);
        expected[HEADER + 28..HEADER + 40].copy_from_slice(&DIGITS_ONLY.map(u32::to_ne_bytes).concat());
        assert_eq!(buffer, expected);
        without_named_keys(&mut []);
    }

    /// The back end fills an answer in; the rest of the buffer is the caller's.
    #[test]
    fn any_answer_keeps_its_length_and_changes_in_versions_only() {
        for _ in 0..2000 {
            let mut buffer: Vec<u8> =
                std::iter::repeat_with(|| fastrand::u8(..)).take(fastrand::usize(..600)).collect();
            for _ in 0..fastrand::usize(..6) {
                let at = fastrand::usize(..=buffer.len());
                let next = [fastrand::u32(..64), fastrand::u32(..)][fastrand::usize(..2)];
                let record = [&next.to_ne_bytes()[..], &[0xee; 12], b"crypt\0"].concat();
                buffer.splice(at..at, record);
            }
            if let Some(start) = buffer.get_mut(DATA_START..DATA_START + 4) {
                start.copy_from_slice(&fastrand::u32(..640).to_ne_bytes());
            }
            let before = buffer.clone();
            without_named_keys(&mut buffer);
            assert_eq!(buffer.len(), before.len());
            let lowered = DIGITS_ONLY.map(u32::to_ne_bytes).concat();
            let mut at = 0;
            while let Some(found) = (at..buffer.len()).find(|at| buffer[*at] != before[*at]) {
                // The change lies in the version of a record with that name.
                let version = (found.saturating_sub(11)..=found).find(|at| {
                    buffer.get(*at..at + 12) == Some(&lowered)
                        && before.get(at + 12..at + 18) == Some(b"crypt\0")
                });
                at = version.expect("a record") + 12;
            }
        }
    }
}
