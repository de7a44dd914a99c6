//! /proc and sysfs, changed to show device mapper.

use std::ffi::{CStr, c_char, c_int};

use libc::{DIR, FILE, dev_t, mode_t, size_t, ssize_t};

use crate::forward;
use crate::real;

const DEVICES: &CStr = c"/proc/devices";
/// The name that libdevmapper looks for.
const NAME: &[u8] = b" device-mapper\n";
/// Numbers that Linux gives from above down to drivers without a fixed number: the first free
/// number represents device mapper.
const NUMBERS: std::ops::RangeInclusive<u8> = 234..=254;

/// The line before the list of block devices.
const BLOCK: &[u8] = b"Block devices:\n";
/// The folder of block devices by their numbers.
const SYSFS: &[u8] = b"/sys/dev/block/";
/// Returns true for the major numbers that the server's devices have: of loop devices, and of ublk
/// disks, which other disks have, too.
pub(crate) fn may_be_ours(major: u32) -> bool {
    matches!(major, 7 | 259)
}

type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut FILE;
type Readlink = unsafe extern "C" fn(*const c_char, *mut c_char, size_t) -> ssize_t;

/// Opens a stream.
///
/// # Safety
/// As for fopen(3), or fopen64(3) by `name`.
pub(crate) unsafe fn fopen(name: &CStr, path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's promise; the function has this type.
    unsafe {
        let Some(real) = real::function::<Fopen>(name) else { return std::ptr::null_mut() };
        let is_devices = !path.is_null() && CStr::from_ptr(path) == DEVICES;
        if is_devices && forward::is_there() {
            let stream = with_mapper();
            if !stream.is_null() {
                return stream;
            }
        }
        real(path, mode)
    }
}

/// Returns a stream of /proc/devices with a line for device mapper, or null if the kernel has one
/// itself.
fn with_mapper() -> *mut FILE {
    /// More than any kernel's list.
    const ROOM: usize = 16 << 10;
    let mut text = [0_u8; ROOM];
    let len = read(DEVICES, &mut text);
    let text = &text[..len];
    let Some(at) = text.windows(BLOCK.len()).position(|part| part == BLOCK) else {
        return std::ptr::null_mut();
    };
    let (before, after) = text.split_at(at + BLOCK.len());
    let Some(number) = free_number(after) else { return std::ptr::null_mut() };
    // SAFETY: memfd_create makes a descriptor; the written bytes are read during the calls; the
    // stream takes the descriptor.
    unsafe {
        let fd = libc::memfd_create(c"devices".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return std::ptr::null_mut();
        }
        let parts = [before, &digits(number), NAME, after];
        let written = parts.iter().all(|part| {
            usize::try_from(libc::write(fd, part.as_ptr().cast(), part.len())).is_ok_and(|n| n == part.len())
        });
        let begins = libc::lseek(fd, 0, libc::SEEK_SET) == 0;
        let stream = if written && begins { libc::fdopen(fd, c"r".as_ptr()) } else { std::ptr::null_mut() };
        if stream.is_null() {
            libc::close(fd);
        }
        stream
    }
}

/// Returns the number that stands for device mapper's, from the block devices' lines, or `None` if
/// the kernel has one itself.
fn free_number(lines: &[u8]) -> Option<u8> {
    let is_used = |number: u8| {
        let digits = digits(number);
        lines.split(|byte| *byte == b'\n').any(|line| {
            let line = line.trim_ascii_start();
            line.starts_with(&digits) && line.get(3) == Some(&b' ')
        })
    };
    if lines.windows(NAME.len()).any(|part| part == NAME) {
        return None;
    }
    NUMBERS.rev().find(|number| !is_used(*number))
}

/// Returns the major number in answers to LVM, if it differs from the nodes': LVM accepts a device
/// as its own only under the number in /proc/devices.
pub(crate) fn major_in_answers() -> Option<u8> {
    const LVM: &[u8] = b"/lvm";
    let mut path = [0_u8; 256];
    // SAFETY: the kernel writes within the bytes during the call.
    let len = unsafe {
        let own = c"/proc/self/exe".as_ptr();
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, own, path.as_mut_ptr(), path.len())
    };
    let is_lvm = path.get(..usize::try_from(len).ok()?)?.ends_with(LVM);
    if is_lvm { mapper_number() } else { None }
}

/// The same for the devices below a device: libcryptsetup uses it to follow a volume during its
/// reencryption from one device to the next.
pub(crate) fn major_in_deps() -> Option<u8> {
    // SAFETY: the name ends with a zero; the function is not called.
    let is_cryptsetup = unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"crypt_init".as_ptr()).is_null() };
    if is_cryptsetup { mapper_number() } else { None }
}

/// Returns the number in /proc/devices for device mapper here.
fn mapper_number() -> Option<u8> {
    const ROOM: usize = 16 << 10;
    let mut text = [0_u8; ROOM];
    let len = read(DEVICES, &mut text);
    let text = text.get(..len)?;
    let at = text.windows(BLOCK.len()).position(|part| part == BLOCK)?;
    free_number(text.get(at + BLOCK.len()..)?)
}

type GetName = unsafe extern "C" fn(u32, u32, c_int, *mut c_char, size_t) -> c_int;

/// Replaces libdevmapper's function: returns the name of a device, which libdevmapper reads from
/// sysfs. The result is 1, or 0 after a failure.
///
/// # Safety
/// `to` has `len` bytes.
pub(crate) unsafe fn device_name(number: (u32, u32), kernels: c_int, to: *mut c_char, len: size_t) -> c_int {
    let (major, minor) = number;
    let is_ours = kernels == 0 && mapper_number().is_some_and(|number| major == number.into());
    let name = if is_ours { forward::device(major, minor).map(|(_, name)| name) } else { None };
    // SAFETY: the caller's promise; the function has this type.
    unsafe {
        let Some(name) = name else {
            let name = c"dm_device_get_name";
            let real = real::function::<GetName>(name);
            let real = real.or_else(|| real::function_of(c"libdevmapper.so.1.02.1", name));
            return real.map_or(0, |real| real(major, minor, kernels, to, len));
        };
        let end = name.iter().position(|byte| *byte == 0).map_or(name.len(), |at| at + 1);
        if end > len {
            return 0;
        }
        to.copy_from_nonoverlapping(name.as_ptr().cast(), end);
    }
    1
}

type Opendir = unsafe extern "C" fn(*const c_char) -> *mut DIR;

/// Opens a folder: for a device's holders in sysfs, the server's folder, if the server has devices
/// on that device.
///
/// # Safety
/// As for opendir(3).
pub(crate) unsafe fn opendir(path: *const c_char) -> *mut DIR {
    const ROOM: usize = 256;
    // SAFETY: the caller's promise; the function has this type.
    unsafe {
        let Some(real) = real::function::<Opendir>(c"opendir") else { return std::ptr::null_mut() };
        let device = CStr::from_ptr(path).to_bytes().strip_suffix(b"/holders").and_then(|path| {
            number(path)?;
            path.strip_prefix(SYSFS)
        });
        let mut room = [0_u8; ROOM];
        if let Some(place) = device.and_then(|device| forward::holders(device, &mut room)) {
            let before = real::errno();
            let opened = real(place.as_ptr());
            if !opened.is_null() {
                return opened;
            }
            real::set_errno(before);
        }
        real(path)
    }
}

type Mknod = unsafe extern "C" fn(*const c_char, mode_t, dev_t) -> c_int;

/// Creates a node. For a device that the program sees under another major number, the node gets the
/// device's own.
///
/// # Safety
/// As for mknod(2).
pub(crate) unsafe fn mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int {
    let is_ours = mode & libc::S_IFMT == libc::S_IFBLK
        && major_in_answers().is_some_and(|major| libc::major(dev) == major.into());
    let own = if is_ours { forward::device(libc::major(dev), libc::minor(dev)) } else { None };
    let dev = own.map_or(dev, |((major, minor), _)| libc::makedev(major, minor));
    // SAFETY: the caller's promise; the function has this type.
    unsafe {
        match real::function::<Mknod>(c"mknod") {
            Some(real) => real(path, mode, dev),
            None => real::missing(),
        }
    }
}

/// A number of three digits.
fn digits(number: u8) -> [u8; 3] {
    [number / 100, number / 10 % 10, number % 10].map(|digit| b'0' + digit)
}

/// Reads as much of a file as fits.
fn read(path: &CStr, to: &mut [u8]) -> usize {
    // SAFETY: the path ends, and the kernel writes into the bytes during the calls.
    unsafe {
        // Not by open(): that is this library's.
        let fd = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
            0,
        );
        let Ok(fd) = c_int::try_from(fd) else { return 0 };
        if fd < 0 {
            return 0;
        }
        let mut len = 0;
        while let Some(rest) = to.get_mut(len..).filter(|rest| !rest.is_empty()) {
            match usize::try_from(libc::read(fd, rest.as_mut_ptr().cast(), rest.len())) {
                Ok(n) if n > 0 => len += n,
                _ => break,
            }
        }
        libc::close(fd);
        len
    }
}

/// Reads a link. The link /sys/dev/block/MAJOR:MINOR ends in `loopN` or `ublkbN` for a device of
/// the server's, and in `dm-MINOR` here: libraries recognize devices of device mapper by that.
///
/// # Safety
/// As for readlink(2).
pub(crate) unsafe fn readlink(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise; the function has this type.
    unsafe {
        let Some(real) = real::function::<Readlink>(c"readlink") else {
            real::missing();
            return -1;
        };
        let read = real(path, to, len);
        let Ok(n) = usize::try_from(read) else { return read };
        let Some((major, minor)) = number(CStr::from_ptr(path).to_bytes()) else { return read };
        let link = std::slice::from_raw_parts_mut(to.cast::<u8>(), len);
        let name = link[..n].iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let is_ours = [&b"loop"[..], b"ublkb"].iter().any(|kind| link[name..n].starts_with(kind))
            && forward::has_device(major, minor);
        if !is_ours {
            return read;
        }
        let mut at = name;
        let mut put = |byte: u8| {
            if let Some(to) = link.get_mut(at) {
                *to = byte;
                at += 1;
            }
        };
        b"dm-".iter().for_each(|byte| put(*byte));
        let mut unit = 1;
        while minor / unit >= 10 {
            unit *= 10;
        }
        while unit > 0 {
            put(b'0' + (minor / unit % 10) as u8);
            unit /= 10;
        }
        ssize_t::try_from(at).unwrap_or(read)
    }
}

/// Returns the number in a path of /sys/dev/block.
fn number(path: &[u8]) -> Option<(u32, u32)> {
    let text = path.strip_prefix(SYSFS)?;
    let (major, minor) = std::str::from_utf8(text).ok()?.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
