//! A handle: the image's address, the options, and the open image.

#![expect(unsafe_code, reason = "the C interface")]

use std::ffi::{CString, c_char, c_int, c_uint};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::{process, ptr};

use underseal_image::{Error, ErrorKind, Image, OpenOptions, Result, TcryptOptions};

use crate::callbacks::{Callbacks, Device};
use crate::edge::{bad, call, path, slice, slice_mut, text, write};
use crate::last_error::LastError;
use crate::lower::LowerChoice;
use crate::reencrypt::PreparedReencryption;

/// `UNDERSEAL_WRITABLE`.
const WRITABLE: c_uint = 1;
/// `UNDERSEAL_ALLOW_NULL`.
const ALLOW_NULL: c_uint = 2;
/// `UNDERSEAL_ALLOW_DISCARDS`.
const ALLOW_DISCARDS: c_uint = 4;

/// The handle, C's `struct underseal`.
pub(crate) struct Handle {
    setup: Mutex<Setup>,
    /// Set while `setup` is locked.
    image: OnceLock<Image>,
    pub(crate) error: LastError,
    /// The process with the threads that may hold the lock.
    process: u32,
}

#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) lower: LowerChoice,
    pub(crate) header: Option<PathBuf>,
    flags: c_uint,
    keyslot: Option<u32>,
    /// Options by name, which were checked.
    named: Vec<(String, String)>,
    /// The hidden volume that is protected.
    protected: Option<TcryptOptions>,
    pub(crate) reencryption: PreparedReencryption,
}

impl Setup {
    /// Whether options say how the volume is unlocked.
    pub(crate) fn has_options_to_unlock(&self) -> bool {
        self.keyslot.is_some() || self.protected.is_some() || !self.named.is_empty()
    }
}

impl Handle {
    /// Waits for other threads. A child of a fork does not: a thread of its parent would never
    /// release the lock.
    pub(crate) fn setup(&self) -> Result<MutexGuard<'_, Setup>> {
        if self.process == process::id() {
            return Ok(self.setup.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match self.setup.try_lock() {
            Ok(setup) => Ok(setup),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let what = "the handle was in use before a fork; make another one in this process";
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// The header's file: the detached one, or the image.
    pub(crate) fn header(&self) -> Result<PathBuf> {
        let setup = self.setup()?;
        match (&setup.header, &setup.lower) {
            (Some(header), _) => Ok(header.clone()),
            (None, LowerChoice::Path(path)) => Ok(path.clone()),
            _ => Err(LowerChoice::without_path()),
        }
    }

    /// Describes the header of a volume that is not unlocked.
    fn info_json(&self) -> Result<String> {
        let lower = match &*self.setup()? {
            Setup { header: None, lower, .. } => lower.again()?,
            Setup { header: Some(header), .. } => LowerChoice::Path(header.clone()),
        };
        match lower {
            LowerChoice::Device(device) => underseal_image::info_json_on(device),
            LowerChoice::Path(path) => underseal_image::info_json(path),
            _ => Err(LowerChoice::without_path()),
        }
    }

    fn image(&self) -> Result<&Image> {
        self.image.get().ok_or_else(|| bad("the volume is not unlocked"))
    }

    /// Refuses a handle whose volume is open.
    pub(crate) fn refuse_unlocked(&self) -> Result<()> {
        self.image.get().map_or(Ok(()), |_| Err(bad("the volume is unlocked already")))
    }

    fn unlock(&self, secret: impl FnOnce(OpenOptions) -> Result<OpenOptions>) -> Result<()> {
        self.refuse_unlocked()?;
        let setup = self.setup()?;
        setup.reencryption.refuse_running()?;
        let mut options = OpenOptions::new();
        if let Some(protected) = &setup.protected {
            options = options.tcrypt(protected.clone());
        }
        options = options
            .writable(setup.flags & WRITABLE != 0)
            .allow_null(setup.flags & ALLOW_NULL != 0)
            .allow_discards(setup.flags & ALLOW_DISCARDS != 0);
        if let Some(header) = &setup.header {
            options = options.header(header);
        }
        if let Some(keyslot) = setup.keyslot {
            options = options.keyslot(keyslot);
        }
        for (name, value) in &setup.named {
            options = options.set(name, value)?;
        }
        let options = secret(options)?;
        let image = match setup.lower.again()? {
            LowerChoice::Unset => return Err(LowerChoice::missing()),
            LowerChoice::Path(path) => options.open(path)?,
            LowerChoice::File(file) => options.open_file(file)?,
            LowerChoice::Device(device) => options.open_on(device)?,
        };
        self.image.set(image).map_err(|_| bad("the volume is unlocked already"))
    }
}

/// Makes a handle. Null when there is no memory.
#[unsafe(no_mangle)]
extern "C" fn underseal_new() -> *mut Handle {
    let (image, error) = (OnceLock::new(), LastError::default());
    let handle = Handle { setup: Mutex::default(), image, error, process: process::id() };
    Box::into_raw(Box::new(handle))
}

/// Closes the image, wipes its key and frees the handle. Null is ignored.
///
/// # Safety
/// No other call on the handle runs or comes later.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_free(handle: *mut Handle) {
    if !handle.is_null() {
        // SAFETY: it came from underseal_new, and the caller gives it up.
        let handle = unsafe { Box::from_raw(handle) };
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(handle)));
    }
}

/// The text of the last failure of a call on the handle; an empty string if none failed. It is
/// valid until the next call of this function on the handle, or its end.
///
/// # Safety
/// One thread at a time calls this function on the handle.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_error(handle: *const Handle) -> *const c_char {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_ref() };
    handle.map_or(c"no handle".as_ptr(), |handle| handle.error.show())
}

/// Takes the image at a path, or at an `nbd:` or `rbd:` address.
///
/// # Safety
/// `image` ends with a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_path(handle: *mut Handle, image: *const c_char) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            handle.setup()?.lower = LowerChoice::Path(path(image)?.to_owned());
            Ok(())
        })
    }
}

/// Takes the image on an open file or block device. The descriptor is duplicated.
///
/// # Safety
/// The handle is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_fd(handle: *mut Handle, fd: RawFd) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            if fd < 0 {
                return Err(bad("a negative descriptor"));
            }
            // Borrowed for the duplication only; a number that is not open fails there.
            let borrowed = BorrowedFd::borrow_raw(fd);
            let owned = borrowed.try_clone_to_owned();
            let owned = owned
                .map_err(|e| Error::new(ErrorKind::Io, "cannot duplicate the descriptor").with_source(e))?;
            handle.setup()?.lower = LowerChoice::File(owned.into());
            Ok(())
        })
    }
}

/// Takes the image on a program's own device.
///
/// # Safety
/// `callbacks` points to the structure; its functions and their argument are valid until the handle
/// is freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_callbacks(handle: *mut Handle, callbacks: *const Callbacks) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let callbacks = callbacks.as_ref().ok_or_else(|| bad("a null pointer instead of callbacks"))?;
            handle.setup()?.lower = LowerChoice::Device(Arc::new(Device::new(callbacks)?));
            Ok(())
        })
    }
}

/// Reads the header from another file than the data.
///
/// # Safety
/// `header` ends with a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_header(handle: *mut Handle, header: *const c_char) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            handle.setup()?.header = Some(path(header)?.to_owned());
            Ok(())
        })
    }
}

/// Sets `UNDERSEAL_*` flags; unknown ones are refused.
///
/// # Safety
/// The handle is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_flags(handle: *mut Handle, flags: c_uint) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            if flags & !(WRITABLE | ALLOW_NULL | ALLOW_DISCARDS) != 0 {
                return Err(bad("an unknown flag"));
            }
            handle.setup()?.flags = flags;
            Ok(())
        })
    }
}

/// Tries one keyslot only; -1 tries all.
///
/// # Safety
/// The handle is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_keyslot(handle: *mut Handle, keyslot: c_int) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            handle.setup()?.keyslot = u32::try_from(keyslot).ok();
            Ok(())
        })
    }
}

/// Sets an option by its name: the volume's type, its layout. An option that may have several
/// values gets one more with each call.
///
/// # Safety
/// `name` and `value` end with a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_set_option(
    handle: *mut Handle,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let (name, value) = (text(name)?, text(value)?);
            OpenOptions::new().set(name, value)?;
            handle.setup()?.named.push((name.to_owned(), value.to_owned()));
            Ok(())
        })
    }
}

/// Protects the hidden volume that opens with this passphrase and PIM.
///
/// # Safety
/// `passphrase` points to `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_protect_hidden(
    handle: *mut Handle,
    passphrase: *const u8,
    len: usize,
    pim: c_uint,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let protected = TcryptOptions::new().protect_hidden(slice(passphrase, len)?, pim, [])?;
            handle.setup()?.protected = Some(protected);
            Ok(())
        })
    }
}

/// Unlocks the volume with a passphrase.
///
/// # Safety
/// `passphrase` points to `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_unlock_passphrase(
    handle: *mut Handle,
    passphrase: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(handle, |handle| handle.unlock(|options| options.passphrase(slice(passphrase, len)?))) }
}

/// Unlocks the volume with the contents of a key file.
///
/// # Safety
/// `file` ends with a zero byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_unlock_keyfile(handle: *mut Handle, file: *const c_char) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(handle, |handle| handle.unlock(|options| options.key_file(path(file)?))) }
}

/// Unlocks the volume with its volume key.
///
/// # Safety
/// `key` points to `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_unlock_key(handle: *mut Handle, key: *const u8, len: usize) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(handle, |handle| handle.unlock(|options| options.volume_key(slice(key, len)?))) }
}

/// Returns the size of the plaintext in bytes, and of an encryption sector. Either pointer may be
/// null.
///
/// # Safety
/// The pointers are null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_size(handle: *const Handle, size: *mut u64, sector_size: *mut u32) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            let image = handle.image()?;
            write(size, image.size());
            write(sector_size, u32::try_from(image.sector_size()).unwrap_or(u32::MAX));
            Ok(())
        })
    }
}

/// Reads up to `len` bytes at `offset`; `*done` is fewer at the end of the volume only.
///
/// # Safety
/// `buffer` points to `len` bytes, `done` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_pread(
    handle: *const Handle,
    buffer: *mut u8,
    len: usize,
    offset: u64,
    done: *mut usize,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            if done.is_null() {
                return Err(bad("a null pointer for the number of bytes"));
            }
            ptr::write(done, handle.image()?.read_at(offset, slice_mut(buffer, len)?)?);
            Ok(())
        })
    }
}

/// Writes all of `len` bytes at `offset`, or fails; beyond the end nothing is written.
///
/// # Safety
/// `buffer` points to `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_pwrite(
    handle: *const Handle,
    buffer: *const u8,
    len: usize,
    offset: u64,
) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(handle, |handle| handle.image()?.write_at(offset, slice(buffer, len)?)) }
}

/// Returns when everything that was written is on stable storage.
///
/// # Safety
/// The handle is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_flush(handle: *const Handle) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(handle, |handle| handle.image()?.flush()) }
}

/// Discards the whole sectors within a range.
///
/// # Safety
/// The handle is one.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_discard(handle: *const Handle, offset: u64, len: u64) -> c_int {
    // SAFETY: the caller's promises.
    unsafe { call(handle, |handle| handle.image()?.discard(offset, len)) }
}

/// Describes the header as JSON. The caller frees `*json` with `underseal_string_free`.
///
/// # Safety
/// `json` is valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_info_json(handle: *const Handle, json: *mut *mut c_char) -> c_int {
    // SAFETY: the caller's promises.
    unsafe {
        call(handle, |handle| {
            if json.is_null() {
                return Err(bad("a null pointer for the text"));
            }
            let text = match handle.image.get() {
                Some(image) => image.info_json().to_owned(),
                None => handle.info_json()?,
            };
            let text = CString::new(text).map_err(|_| bad("the text holds a zero byte"))?;
            ptr::write(json, text.into_raw());
            Ok(())
        })
    }
}

/// Frees a text of `underseal_info_json`. Null is ignored.
///
/// # Safety
/// `text` came from there and was not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn underseal_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Keeps this process's memory out of core dumps: 0 or -errno.
#[unsafe(no_mangle)]
extern "C" fn underseal_protect_process() -> c_int {
    underseal_image::protect_process().map_or_else(|e| -e.errno(), |()| 0)
}
