//! Keyslots of the image, or of the detached header, that a handle names.

#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::c_int;

use underseal_image::{Header, KeyslotOptions};

use crate::edge::{bad, call, slice, write};
use crate::handle::Handle;

fn options(keyslot: c_int) -> KeyslotOptions {
    let options = KeyslotOptions::new();
    u32::try_from(keyslot).map_or(options.clone(), |number| options.number(number))
}

/// Adds a keyslot for the passphrase `new`; `keyslot` is its number, or -1 for the first free one.
/// `*number` is the number it got.
///
/// # Safety
/// The pointers are valid for their lengths; `number` is null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_keyslot_add(
    handle: *mut Handle,
    passphrase: *const u8,
    passphrase_len: usize,
    new: *const u8,
    new_len: usize,
    keyslot: c_int,
    number: *mut u32,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let (old, new) = (slice(passphrase, passphrase_len)?, slice(new, new_len)?);
            let mut header = Header::open_writable(handle.header()?)?;
            let key = header.unlock(old, None)?;
            write(number, header.add_keyslot(&key, new, &options(keyslot))?);
            Ok(())
        })
    }
}

/// Removes a keyslot. The last one stays, with -ENOENT, unless `last` is not 0: its data cannot be
/// read any more then.
///
/// # Safety
/// The handle is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_keyslot_remove(handle: *mut Handle, keyslot: c_int, last: c_int) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let number = u32::try_from(keyslot).map_err(|_| bad("a negative keyslot"))?;
            Header::open_writable(handle.header()?)?.remove_keyslot(number, last != 0)
        })
    }
}

/// Replaces the keyslot that `old` opens by one for `new`; `keyslot` tries one keyslot only, -1
/// all.
///
/// # Safety
/// The pointers are valid for their lengths; `number` is null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_keyslot_change(
    handle: *mut Handle,
    old: *const u8,
    old_len: usize,
    new: *const u8,
    new_len: usize,
    keyslot: c_int,
    number: *mut u32,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let (old, new) = (slice(old, old_len)?, slice(new, new_len)?);
            let mut header = Header::open_writable(handle.header()?)?;
            let keyslot = u32::try_from(keyslot).ok();
            write(number, header.change_keyslot(old, new, keyslot, &KeyslotOptions::new())?);
            Ok(())
        })
    }
}
