//! Conversions between C and Rust: a pointer becomes a slice, a result -errno, a panic an error.

#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::{CStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use underseal_image::{Error, ErrorKind, Result};

use crate::handle::Handle;
use crate::inside::CallMark;

pub(crate) const EINVAL: c_int = 22;
const EIO: c_int = 5;

/// Runs a call on a handle: 0, or -errno with the text kept in the handle.
///
/// # Safety
/// `handle` is null or came from `underseal_new` and was not freed.
pub(crate) unsafe fn call(handle: *const Handle, run: impl FnOnce(&Handle) -> Result<()>) -> c_int {
    // SAFETY: the caller's promise.
    let Some(handle) = (unsafe { handle.as_ref() }) else { return -EINVAL };
    let run = || CallMark::enter(handle).and_then(|_inside| run(handle));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => 0,
        Ok(Err(e)) => {
            let code = e.errno();
            handle.error.set(&e.text());
            if code > 0 { -code } else { -EIO }
        }
        Err(_) => {
            handle.error.set("an internal error; please report it");
            -EIO
        }
    }
}

/// Returns the bytes at a pointer; an empty slice for no bytes.
///
/// # Safety
/// `bytes` points to `len` bytes that no thread changes during the call, or `len` is 0.
pub(crate) unsafe fn slice<'a>(bytes: *const u8, len: usize) -> Result<&'a [u8]> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(bad("a null pointer with a length")),
        // SAFETY: the caller's promise; a length beyond isize is refused first.
        (false, len) if isize::try_from(len).is_ok() => Ok(unsafe { std::slice::from_raw_parts(bytes, len) }),
        _ => Err(bad("a length beyond the address space")),
    }
}

/// The bytes at a pointer, to be filled.
///
/// # Safety
/// `bytes` points to `len` bytes that are the call's alone, or `len` is 0.
pub(crate) unsafe fn slice_mut<'a>(bytes: *mut u8, len: usize) -> Result<&'a mut [u8]> {
    match (bytes.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(bad("a null pointer with a length")),
        (false, len) if isize::try_from(len).is_ok() => {
            // SAFETY: the caller's promise; a length beyond isize is refused first.
            Ok(unsafe { std::slice::from_raw_parts_mut(bytes, len) })
        }
        _ => Err(bad("a length beyond the address space")),
    }
}

/// Stores a value where the caller wants it; nowhere for a null pointer.
///
/// # Safety
/// `to` is null or valid for a write.
pub(crate) unsafe fn write<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(value) };
    }
}

/// A path from a C string.
///
/// # Safety
/// `path` is null or ends with a zero byte.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    if path.is_null() {
        return Err(bad("a null pointer instead of a path"));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(std::ffi::OsStr::from_bytes(text.to_bytes())))
}

/// A C string that is UTF-8.
///
/// # Safety
/// `text` is null or ends with a zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(bad("a null pointer instead of a text"));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| bad("a text that is not UTF-8"))
}

pub(crate) fn bad(what: &str) -> Error {
    Error::new(ErrorKind::BadOption, what)
}
