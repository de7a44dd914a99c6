//! An ioctl: a request to the server, and its answer. The server's module `server` (crates/dm)
//! documents the format.

#![allow(
    clippy::cast_possible_truncation,
    reason = "an ioctl's number, a buffer that was measured and constants of the system: all have 32 bits at most"
)]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};

use crate::devices;
use crate::keys;
use crate::real::{errno, set_errno};

/// The type of device mapper's ioctls, and the size of their common structure.
const DM_IOCTL: c_ulong = 0xfd;
/// The numbers of the ioctl that lists devices, and of the ioctl that waits for an event.
const LIST_DEVICES: u32 = 2;
const DEV_WAIT: u32 = 8;
/// The number of the ioctl that returns the devices below a device.
const TABLE_DEPS: u32 = 11;
/// The numbers of ioctls whose text may name keys of the keyring.
const TABLE_LOAD: u32 = 9;
const TARGET_MSG: u32 = 14;
/// Requests that are no ioctls: adding a key, and granting a key to the next ioctl.
const KEEP: u32 = 0x4b01;
const GRANT: u32 = 0x4b02;
const HEADER: usize = 312;
/// The structure without its last bytes: the smallest buffer of a caller.
const LEAST: usize = 305;
const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const DEV: usize = 40;
const NAME: usize = 48;
const NAME_LEN: usize = 128;
/// The limit of the server's buffers.
const MOST: usize = 4 << 20;

/// The request after which a connection carries no others (the server's `STAY`), and its length.
const STAY: [u8; 8] = {
    let [a, b, c, d] = 0x5354_u32.to_ne_bytes();
    [a, b, c, d, 0, 0, 0, 0]
};

/// The server's socket, unless `UNDERSEAL_DM_SOCKET` names another.
const SOCKET: &CStr = c"/run/underseal/dm/control";
const VARIABLE: &CStr = c"UNDERSEAL_DM_SOCKET";

unsafe extern "C" {
    /// Like getenv(3), but safe in programs with more rights than their callers.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Opens a connection in place of the node; it carries no requests, as other programs may inherit
/// it. Without a server errno is that of a kernel without device mapper.
pub(crate) fn open(flags: c_int) -> c_int {
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::SOCK_CLOEXEC } else { 0 };
    let opened = connect(close_on_exec).filter(|fd| {
        let stays = send(*fd, &STAY).and_then(|()| receive(*fd, &mut [0; 8], false));
        stays.inspect_err(|_| close(*fd)).is_ok()
    });
    opened.unwrap_or_else(|| {
        set_errno(libc::ENODEV);
        -1
    })
}

/// Returns true when a server is running.
pub(crate) fn is_there() -> bool {
    let there = connect(libc::SOCK_CLOEXEC);
    there.inspect(|fd| close(*fd)).is_some()
}

/// Returns true for an ioctl of device mapper on a connection to the server.
pub(crate) fn is_ours(fd: c_int, request: c_ulong) -> bool {
    if (request >> 8) & 0xff != DM_IOCTL {
        return false;
    }
    let before = errno();
    let Some(server) = address() else { return false };
    // SAFETY: zeros are an address of no family.
    let mut peer: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = ADDRESS_LEN;
    // SAFETY: the kernel writes at most `len` bytes of the address.
    let known = unsafe { libc::getpeername(fd, (&raw mut peer).cast(), &raw mut len) };
    set_errno(before);
    known == 0 && i32::from(peer.sun_family) == libc::AF_UNIX && peer.sun_path == server.sun_path
}

/// Carries out an ioctl. Its argument is a buffer that begins with device mapper's structure.
///
/// # Safety
/// `argument` is valid for ioctl(2) with this request: null, or a buffer of the length in its
/// structure.
pub(crate) unsafe fn ioctl(request: c_ulong, argument: *mut c_void) -> c_int {
    let failed = |errno| {
        set_errno(errno);
        -1
    };
    if argument.is_null() {
        return failed(libc::EFAULT);
    }
    // SAFETY: the structure is there, as the caller says.
    let size = unsafe { argument.cast::<u8>().add(DATA_SIZE).cast::<u32>().read_unaligned() } as usize;
    // The server refuses a structure that is too short.
    let size = if size < LEAST { HEADER } else { size };
    if size > MOST {
        return failed(libc::ENOMEM);
    }
    // SAFETY: the buffer has `size` bytes, by the caller's promise.
    let buffer = unsafe { std::slice::from_raw_parts_mut(argument.cast::<u8>(), size) };
    let Some(socket) = connect(libc::SOCK_CLOEXEC) else { return failed(libc::ENODEV) };
    let done = ask(socket, request, buffer);
    close(socket);
    if let Some(seen) = devices::major_in_answers() {
        show_major(request, buffer, seen.into());
    }
    if done == Ok(0)
        && request as u32 & 0xff == TABLE_DEPS
        && let Some(seen) = devices::major_in_deps()
    {
        show_deps(buffer, seen.into());
    }
    match done {
        Ok(0) => 0,
        Ok(errno) | Err(errno) => failed(errno),
    }
}

/// Replaces the major number in the devices of an answer: the answer's own device, and those of a
/// list.
fn show_major(request: c_ulong, buffer: &mut [u8], seen: u32) {
    let change = |major| if devices::may_be_ours(major) { seen } else { major };
    change_major(buffer, DEV, change);
    if request as u32 & 0xff != LIST_DEVICES {
        return;
    }
    let number = |buffer: &[u8], at: usize| {
        let bytes = buffer.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?) as usize)
    };
    let Some(mut at) = number(buffer, DATA_START) else { return };
    // Records of a number, the bytes to the next record, and a name.
    while let Some(next) = at.checked_add(8).and_then(|at| number(buffer, at)) {
        change_major(buffer, at, change);
        if next == 0 {
            return;
        }
        at = at.saturating_add(next);
    }
}

/// Replaces the major number of the server's devices among the devices below a device.
fn show_deps(buffer: &mut [u8], seen: u32) {
    let word = |buffer: &[u8], at: usize| {
        let bytes = buffer.get(at..at.checked_add(4)?)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let Some((at, count)) =
        word(buffer, DATA_START).and_then(|at| Some((at as usize, word(buffer, at as usize)?)))
    else {
        return;
    };
    for number in 0..count as usize {
        let at = at.saturating_add(8 + number.saturating_mul(8));
        let Some(dev) = word(buffer, at) else { return };
        // The upper half has the higher bits of a minor number that no device of the server's has.
        let (major, minor) = (dev >> 8 & 0xfff, dev & 0xff | dev >> 12 & 0xf_ff00);
        if devices::may_be_ours(major) && has_device(major, minor) {
            change_major(buffer, at, |_| seen);
        }
    }
}

/// Changes the major number of a device's number, which has 64 bits (`huge_encode_dev`).
fn change_major(buffer: &mut [u8], at: usize, change: impl Fn(u32) -> u32) {
    let Some(bytes) = at.checked_add(8).and_then(|end| buffer.get_mut(at..end)) else { return };
    let mut dev = [0; 8];
    dev.copy_from_slice(bytes);
    let dev = u64::from_ne_bytes(dev);
    let major = change((dev >> 8) as u32 & 0xfff);
    bytes.copy_from_slice(&(dev & !0xf_ff00 | u64::from(major) << 8).to_ne_bytes());
}

/// Sends a request to the server. Returns the errno of the answer, or of a failed connection.
fn ask(socket: c_int, request: c_ulong, buffer: &mut [u8]) -> Result<c_int, c_int> {
    if matches!(request as u32 & 0xff, TABLE_LOAD | TARGET_MSG) {
        let mut granted = Ok(());
        let data = buffer.get(HEADER..).unwrap_or_default();
        keys::named_in(data, |serial, name, payload| {
            if granted.is_ok() {
                let len = (name.len() as u32).to_ne_bytes();
                granted = tell(socket, GRANT, &[&serial.to_ne_bytes(), &len, name, payload]);
            }
        });
        granted?;
    }
    let mut head = [0; 8];
    let (request, len) = (request as u32, buffer.len() as u32);
    head[..4].copy_from_slice(&request.to_ne_bytes());
    head[4..].copy_from_slice(&len.to_ne_bytes());
    send(socket, &head)?;
    send(socket, buffer)?;
    // A wait for an event may be interrupted by a signal. Other ioctls are completed before the
    // caller continues, which would repeat them.
    receive(socket, &mut head, request & 0xff == DEV_WAIT)?;
    let [a, b, c, d, e, f, g, h] = head;
    let (errno, len) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
    let answer = buffer.get_mut(..len as usize).ok_or(libc::EIO)?;
    receive(socket, answer, false)?;
    Ok(errno as c_int)
}

/// Sends a key to the server. The server's verdict on the key is repeated when a table is refused.
fn tell(socket: c_int, request: u32, parts: &[&[u8]]) -> Result<(), c_int> {
    let len = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut head = [0; 8];
    head[..4].copy_from_slice(&request.to_ne_bytes());
    head[4..].copy_from_slice(&(len as u32).to_ne_bytes());
    send(socket, &head)?;
    parts.iter().try_for_each(|part| send(socket, part))?;
    receive(socket, &mut head, false)
}

/// Makes the server keep a key, if a server is running.
pub(crate) fn keep(serial: i32, payload: &[u8]) {
    let Some(socket) = connect(libc::SOCK_CLOEXEC) else { return };
    // Without the key, a table that names it is refused.
    let _ = tell(socket, KEEP, &[&serial.to_ne_bytes(), payload]);
    close(socket);
}

fn send(socket: c_int, mut bytes: &[u8]) -> Result<(), c_int> {
    while !bytes.is_empty() {
        // SAFETY: the kernel reads the bytes during the call.
        let n = unsafe { libc::send(socket, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        match usize::try_from(n) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            // A partial request is never carried out.
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(libc::ENODEV),
        }
    }
    Ok(())
}

/// With `may_stop`, a signal handler that does not restart calls ends it.
fn receive(socket: c_int, mut bytes: &mut [u8], may_stop: bool) -> Result<(), c_int> {
    while !bytes.is_empty() {
        // SAFETY: the kernel writes into the bytes during the call.
        let n = unsafe { libc::recv(socket, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match usize::try_from(n) {
            Ok(0) => return Err(libc::ENODEV),
            Ok(n) => bytes = bytes.get_mut(n..).unwrap_or_default(),
            Err(_) if errno() == libc::EINTR && may_stop => return Err(libc::EINTR),
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => return Err(libc::ENODEV),
        }
    }
    Ok(())
}
const ADDRESS_LEN: libc::socklen_t = size_of::<libc::sockaddr_un>() as libc::socklen_t;

/// A connection to the server, if the server is root's or this user's.
fn connect(flags: c_int) -> Option<c_int> {
    let address = address()?;
    // SAFETY: it makes a descriptor.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | flags, 0) };
    if socket < 0 {
        return None;
    }
    // SAFETY: the kernel reads the address during the call.
    let connected = unsafe { libc::connect(socket, (&raw const address).cast(), ADDRESS_LEN) };
    if connected < 0 || !is_trusted(socket) {
        close(socket);
        return None;
    }
    Some(socket)
}

/// Returns true when the server belongs to root or to this user, according to the kernel, since it
/// receives keys.
fn is_trusted(socket: c_int) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    let known = unsafe {
        let peer = (&raw mut peer).cast();
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, peer, &raw mut len)
    };
    // SAFETY: it always succeeds.
    known == 0 && (peer.uid == 0 || peer.uid == unsafe { libc::geteuid() })
}

/// Returns the server's address, or `None` if its path is too long.
fn address() -> Option<libc::sockaddr_un> {
    // SAFETY: zeros are an address of no family.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // SAFETY: both are strings that end; no thread changes the environment meanwhile, as for any
    // program that reads it.
    let path = unsafe {
        let given = secure_getenv(VARIABLE.as_ptr());
        if given.is_null() || *given == 0 { SOCKET } else { CStr::from_ptr(given) }
    };
    let path = path.to_bytes();
    if path.len() >= address.sun_path.len() {
        return None;
    }
    for (to, byte) in address.sun_path.iter_mut().zip(path) {
        *to = *byte as c_char;
    }
    Some(address)
}

/// Returns the folder of a device's holders, beside the server's socket, or `None` if it does not
/// fit.
pub(crate) fn holders<'r>(device: &[u8], room: &'r mut [u8]) -> Option<&'r CStr> {
    let socket = address()?.sun_path;
    let len = socket.iter().position(|byte| *byte == 0)?;
    let folder = socket.get(..len)?.iter().rposition(|byte| *byte == b'/' as c_char)?;
    let folder = socket.get(..folder)?.iter().map(|byte| *byte as u8);
    let path = folder.chain(*b"/holders/").chain(device.iter().copied()).chain([0]);
    let mut len = 0;
    for byte in path {
        *room.get_mut(len)? = byte;
        len += 1;
    }
    CStr::from_bytes_with_nul(room.get(..len)?).ok()
}

fn close(fd: c_int) {
    let before = errno();
    // SAFETY: this module's own descriptor, which is not used again.
    unsafe { libc::close(fd) };
    set_errno(before);
}

/// Returns true when the server has a device of exactly this number.
pub(crate) fn has_device(major: u32, minor: u32) -> bool {
    device(major, minor).is_some_and(|(number, _)| number == (major, minor))
}

/// A device's name, with its zero.
type Name = [u8; NAME_LEN];

/// Returns the number and the name of the server's device of this number, or of the device of this
/// minor number if the major number is device mapper's.
pub(crate) fn device(major: u32, minor: u32) -> Option<((u32, u32), Name)> {
    /// `DM_DEV_STATUS`.
    const STATUS: c_ulong = 0xc138_fd07;
    let mut buffer = [0_u8; HEADER];
    buffer[0] = 4;
    let size = HEADER as u32;
    buffer[DATA_SIZE..DATA_SIZE + 4].copy_from_slice(&size.to_ne_bytes());
    buffer[16..20].copy_from_slice(&size.to_ne_bytes());
    let (major, minor) = (u64::from(major), u64::from(minor));
    let dev = (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12;
    buffer[DEV..DEV + 8].copy_from_slice(&dev.to_ne_bytes());
    let before = errno();
    // The answer has the device's own number, whatever the program sees.
    let known = connect(libc::SOCK_CLOEXEC).is_some_and(|socket| {
        let done = ask(socket, STATUS, &mut buffer);
        close(socket);
        done == Ok(0)
    });
    set_errno(before);
    let mut dev = [0; 4];
    dev.copy_from_slice(&buffer[DEV..DEV + 4]);
    let dev = u32::from_ne_bytes(dev);
    let number = (dev >> 8 & 0xfff, dev & 0xff | dev >> 12 & 0xf_ff00);
    let mut name = [0; NAME_LEN];
    name.copy_from_slice(&buffer[NAME..NAME + NAME_LEN]);
    known.then_some((number, name))
}
