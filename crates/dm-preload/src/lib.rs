//! The preloaded library of programs (`LD_PRELOAD`), which redirects device mapper's ioctls to
//! underseal.
//!
//! ```text
//!   open("/dev/mapper/control")  ->  a socket of the server's, as the program's descriptor
//!   ioctl(that socket, ..)       ->  a request over a separate connection, an answer  forward.rs
//!   fopen("/proc/devices")       ->  the same, with a line for device-mapper          devices.rs
//!   readlink("/sys/dev/block/N") ->  dm-N for a disk of the server's                  devices.rs
//!   opendir("/sys/../holders")   ->  the server's folder of the devices on a device   devices.rs
//!   dm_device_get_name(..)       ->  the server's name of a device                    devices.rs
//!   mknod(..)                    ->  a device's own number, if LVM means one          devices.rs
//!   syscall(SYS_add_key, ..)     ->  Linux; keys go to the server, too                keys.rs
//!   other calls                  ->  the C library                                    real.rs
//! ```
//!
//! The library keeps no state between two calls: a descriptor is the server's if its peer is the
//! server, so duplicates, forks and closes need no handling. The library does not allocate, lock or
//! panic: these calls come from signal handlers and between fork and exec, too.
//!
//! C functions with a variable number of arguments are defined with all possible arguments: on
//! Linux's x86-64 and aarch64 integers are passed in the same registers either way.

#![expect(unsafe_code, reason = "C functions that take a program's arguments")]

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("variadic arguments are known to be passed like others on Linux's x86-64 and aarch64 only");

mod devices;
mod forward;
mod keys;
mod real;

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};

use libc::{DIR, FILE, dev_t, mode_t, size_t, ssize_t};

/// The node that programs open.
const CONTROL: &CStr = c"/dev/mapper/control";
/// The number of the control node, a character device (include/linux/miscdevice.h,
/// `MAPPER_CTRL_MINOR`).
const CONTROL_NUMBER: (u32, u32) = (10, 236);

/// Returns true for the node's path.
///
/// # Safety
/// `path` is null or a string that ends.
unsafe fn is_control(path: *const c_char) -> bool {
    // SAFETY: as the caller says.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == CONTROL
}

/// Defines functions of C that open a path, each by its name: `dir` for functions that take a
/// folder's descriptor first, `mode` for functions that take the mode of a new file last.
macro_rules! open_functions {
    ($(fn $name:ident $([$before:ident: $first:ty])? (path, flags $(, $mode:ident: $last:ty)?);)*) => {$(
        /// Opens a path: a socket of the server in place of the node.
        ///
        /// # Safety
        /// As for the function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($before: $first,)?
            path: *const c_char,
            flags: c_int
            $(, $mode: $last)?
        ) -> c_int {
            type Real = unsafe extern "C" fn($($first,)? *const c_char, c_int $(, $last)?) -> c_int;
            // SAFETY: the caller promises what the function of this name wants, and that function
            // has this type.
            unsafe {
                if is_control(path) {
                    return forward::open(flags);
                }
                match real::function::<Real>(real::name(concat!(stringify!($name), "\0"))) {
                    Some(real) => real($($before,)? path, flags $(, $mode)?),
                    None => real::missing(),
                }
            }
        }
    )*};
}

open_functions! {
    fn open(path, flags, mode: mode_t);
    fn open64(path, flags, mode: mode_t);
    fn openat[dir: c_int](path, flags, mode: mode_t);
    fn openat64[dir: c_int](path, flags, mode: mode_t);
    fn __open_2(path, flags);
    fn __open64_2(path, flags);
    fn __openat_2[dir: c_int](path, flags);
    fn __openat64_2[dir: c_int](path, flags);
}

/// Opens a stream; `/proc/devices` gets a line for device mapper.
///
/// # Safety
/// As for fopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller promises what fopen(3) wants.
    unsafe { devices::fopen(c"fopen", path, mode) }
}

/// Opens a stream, like [`fopen`].
///
/// # Safety
/// As for fopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller promises what fopen(3) wants.
    unsafe { devices::fopen(c"fopen64", path, mode) }
}

/// Makes an ioctl: on a socket of the server through the server.
///
/// # Safety
/// As for ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    type Real = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
    // SAFETY: the caller promises what ioctl(2) wants; the function has this type.
    unsafe {
        if forward::is_ours(fd, request) {
            return forward::ioctl(request, argument);
        }
        match real::function::<Real>(c"ioctl") {
            Some(real) => real(fd, request, argument),
            None => real::missing(),
        }
    }
}

/// Makes a system call; the server gets the keys that are added.
///
/// # Safety
/// As for syscall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller promises what syscall(2) wants. Registers of arguments that the caller did
    // not pass are read here and not used.
    unsafe { keys::syscall(number, [a, b, c, d, e, f]) }
}

/// Replaces libdevmapper's function: returns the name of a device.
///
/// # Safety
/// `to` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dm_device_get_name(
    major: u32,
    minor: u32,
    kernels: c_int,
    to: *mut c_char,
    len: size_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { devices::device_name((major, minor), kernels, to, len) }
}

/// Opens a folder.
///
/// # Safety
/// As for opendir(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the caller promises what opendir(3) wants.
    unsafe { devices::opendir(path) }
}

/// Creates a node.
///
/// # Safety
/// As for mknod(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mknod(path: *const c_char, mode: mode_t, dev: dev_t) -> c_int {
    // SAFETY: the caller promises what mknod(2) wants.
    unsafe { devices::mknod(path, mode, dev) }
}

/// Reads a link: for a loop device of the server in sysfs, the link of a device of device mapper.
///
/// # Safety
/// As for readlink(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the caller promises what readlink(2) wants.
    unsafe { devices::readlink(path, to, len) }
}

/// Reads a link, as [`readlink`]: the C library's headers call this function where they know the
/// buffer's size.
///
/// # Safety
/// As for readlink(2). `room` is the buffer's size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    to: *mut c_char,
    len: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: as above, within the smaller of the two sizes.
    unsafe { devices::readlink(path, to, len.min(room)) }
}

/// Defines functions of C that stat a path, each by its name.
macro_rules! stat_functions {
    ($($name:ident($of:ty);)*) => {$(
        /// Stats a path; a missing node appears to exist.
        ///
        /// # Safety
        /// As for the function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, of: *mut $of) -> c_int {
            type Real = unsafe extern "C" fn(*const c_char, *mut $of) -> c_int;
            // SAFETY: the caller promises what the function of this name wants, and that function
            // has this type.
            unsafe {
                let Some(real) = real::function::<Real>(real::name(concat!(stringify!($name), "\0"))) else {
                    return real::missing();
                };
                let result = real(path, of);
                if result == 0 || of.is_null() || !is_control(path) || !forward::is_there() {
                    return result;
                }
                std::ptr::write_bytes(of, 0, 1);
                (*of).st_mode = libc::S_IFCHR | 0o600;
                (*of).st_nlink = 1;
                (*of).st_rdev = libc::makedev(CONTROL_NUMBER.0, CONTROL_NUMBER.1);
                0
            }
        }
    )*};
}

stat_functions! {
    stat(libc::stat);
    stat64(libc::stat64);
    lstat(libc::stat);
    lstat64(libc::stat64);
}
