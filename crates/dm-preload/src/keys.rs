//! Keys of the keyring: keys that programs add, and keys that tables name. The server's module
//! `keys` (crates/dm) documents the messages.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "numbers of the system's that fit: descriptors' serial numbers and lengths that were measured"
)]

use std::ffi::{CStr, c_char, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::real::{self, errno, set_errno};

/// keyctl(2)'s operations.
const UPDATE: c_long = 2;
const DESCRIBE: c_long = 6;
const READ: c_long = 11;

/// The longest name of a key, with its zero, and the longest payload that a table's key can have.
const NAME: usize = 4096;
const PAYLOAD: usize = 4096;
/// The most keys that one table or message names: further keys are ignored.
const MOST: usize = 256;

/// syscall(2) with all arguments that a call can have.
type Syscall = unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// Returns the C library's own function. It is looked up once: some programs make all their calls
/// through it.
fn real_syscall() -> Option<Syscall> {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let found = FOUND.load(Ordering::Relaxed);
    if !found.is_null() {
        // SAFETY: the function that was found below, which is of this type.
        return Some(unsafe { std::mem::transmute::<*mut c_void, Syscall>(found) });
    }
    // SAFETY: the function has this type: integers are passed in the same way where their number
    // varies.
    let real = unsafe { real::function::<Syscall>(c"syscall") }?;
    FOUND.store(real as *mut c_void, Ordering::Relaxed);
    Some(real)
}

/// Makes a system call. The server gets each added key that programs cannot read.
///
/// # Safety
/// As for syscall(2).
pub(crate) unsafe fn syscall(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let Some(real) = real_syscall() else { return real::missing().into() };
    // SAFETY: as the caller says.
    let result = unsafe { real(number, a, b, c, d, e, f) };
    let payload = match number {
        libc::SYS_add_key if result > 0 && a != 0 => {
            // SAFETY: the kernel has just read the type, which is a string.
            let is_logon = unsafe { CStr::from_ptr(a as *const c_char) } == c"logon";
            is_logon.then_some((result, c, d))
        }
        libc::SYS_keyctl if a == UPDATE && result == 0 && is_logon(b) => Some((b, c, d)),
        _ => None,
    };
    if let Some((serial, payload, len)) = payload
        && payload != 0
    {
        let before = errno();
        // SAFETY: the kernel has just read `len` bytes there.
        let payload = unsafe { std::slice::from_raw_parts(payload as *const u8, len as usize) };
        crate::forward::keep(serial as i32, payload);
        set_errno(before);
    }
    result
}

/// Whether a key is of the type `logon`, which no program can read.
fn is_logon(serial: c_long) -> bool {
    let mut text = [0_u8; NAME];
    let room = text.len() as c_long;
    let before = errno();
    let n = keyctl([DESCRIBE, serial, text.as_mut_ptr() as c_long, room]);
    set_errno(before);
    n > 0 && text.starts_with(b"logon;")
}

fn keyctl([a, b, c, d]: [c_long; 4]) -> c_long {
    // SAFETY: operations that write within the buffer that they are given.
    real_syscall().map_or(-1, |real| unsafe { real(libc::SYS_keyctl, a, b, c, d, 0, 0) })
}

/// Calls `each(serial number, TYPE:NAME, payload)` for each key that a table or a message names, if
/// the caller's keyrings have it. Keys that no program can read have no payload here.
pub(crate) fn named_in(data: &[u8], mut each: impl FnMut(i32, &[u8], &[u8])) {
    let before = errno();
    let starts = data.windows(2).enumerate().filter(|(_, pair)| *pair == b" :").map(|(at, _)| at + 2);
    for start in starts.take(MOST) {
        let mut name = [0; NAME];
        let Some(len) = data.get(start..).and_then(|word| name_of(word, &mut name)) else { continue };
        look_up(&name[..len], &mut each);
    }
    set_errno(before);
}

/// Returns the name of a key, `TYPE:NAME`, from the rest of a word that begins with its size, or
/// `None` for another word.
fn name_of(word: &[u8], name: &mut [u8; NAME]) -> Option<usize> {
    let colon = word.iter().position(|byte| *byte == b':')?;
    let (size, rest) = (&word[..colon], &word[colon + 1..]);
    if size.is_empty() || !size.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let mut len = 0;
    let mut bytes = rest.iter();
    while let Some(byte) = bytes.next().filter(|byte| !matches!(byte, 0 | b' ')) {
        // A backslash takes the next character literally.
        let byte = if *byte == b'\\' { bytes.next()? } else { byte };
        // The zero that ends the name stays.
        *name.get_mut(len).filter(|_| len + 1 < NAME)? = *byte;
        len += 1;
    }
    Some(len)
}

fn look_up(name: &[u8], each: &mut impl FnMut(i32, &[u8], &[u8])) {
    let kind: &CStr = match name {
        _ if name.starts_with(b"logon:") => c"logon",
        _ if name.starts_with(b"user:") => c"user",
        _ => return,
    };
    let mut text = [0_u8; NAME];
    let description = &name[kind.count_bytes() + 1..];
    text[..description.len()].copy_from_slice(description);
    let Some(real) = real_syscall() else { return };
    let (kind_at, text_at) = (kind.as_ptr() as c_long, text.as_ptr() as c_long);
    // SAFETY: both are strings that end.
    let serial = unsafe { real(libc::SYS_request_key, kind_at, text_at, 0, 0, 0, 0) };
    if serial <= 0 {
        return;
    }
    if kind == c"logon" {
        return each(serial as i32, name, &[]);
    }
    let mut payload = [0_u8; PAYLOAD];
    let n = keyctl([READ, serial, payload.as_mut_ptr() as c_long, PAYLOAD as c_long]);
    if let Some(payload) = usize::try_from(n).ok().and_then(|n| payload.get(..n)) {
        each(serial as i32, name, payload);
    }
    // SAFETY: the array has that size.
    unsafe { libc::explicit_bzero(payload.as_mut_ptr().cast(), PAYLOAD) };
}
